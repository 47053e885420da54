"""One process writes a run at a time."""

import fcntl
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Self

from mixlab.errors import WorkError
from mixlab.run.disk import naming_file


class RunLock:
    """A lock on a run directory: a second process is refused or, if it can `say` so, waits. The system releases it when
    the process ends.
    """

    def __init__(self, folder: Path, say: Callable[[str], None] | None = None) -> None:
        self.file, self.say = folder / ".lock", say

    def __enter__(self) -> Self:
        self._handle = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            # lockf, not flock: processes that read data are forks, and must not keep the lock of a killed parent.
            fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(self._handle, 200).decode(errors="replace").strip() or "another process"
            if self.say is None:
                os.close(self._handle)
                raise WorkError(
                    f"{self.file.parent} is in use by {owner}; wait for it, stop it, or choose another --run directory"
                ) from error
            self.say(f"waiting for {owner}, which uses {self.file.parent}")
            self._wait()
        os.ftruncate(self._handle, 0)
        with naming_file(self.file):
            os.write(self._handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        return self

    def _wait(self) -> None:
        try:
            fcntl.lockf(self._handle, fcntl.LOCK_EX)
        except BaseException:  # a signal, above all
            os.close(self._handle)
            raise

    def __exit__(self, *error: object) -> None:
        os.ftruncate(self._handle, 0)
        os.close(self._handle)
