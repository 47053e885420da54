"""One run, one directory: a second run into it is refused, and a killed one leaves no lock behind."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path
from types import TracebackType

from mixlab.errors import WorkError


class RunLock:
    """Held from `with` to its end. The system drops it with the process, however that ends."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / ".lock"

    def __enter__(self) -> RunLock:
        self._handle = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            # lockf, not flock: processes that read data are forks, and must not keep the lock of a killed parent.
            fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(self._handle, 200).decode(errors="replace").strip() or "another process"
            os.close(self._handle)
            raise WorkError(
                f"{self.file.parent} is in use by {owner}; wait for it, stop it, or choose another --run directory"
            ) from error
        os.ftruncate(self._handle, 0)
        os.write(self._handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.ftruncate(self._handle, 0)
        os.close(self._handle)
