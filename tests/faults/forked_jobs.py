"""submitit's jobs for one machine, of processes that are forked with everything imported.

The same controller, tasks and signals, without the seconds of imports of each task. `MIXLAB_FAULTS=all` starts new
interpreters, as submitit does.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any
from unittest.mock import patch

from submitit.core.submission import submitit_main
from submitit.local import local

from tests.paused_training import pause_as_told


class Started:
    """A process as `subprocess` has it."""

    def __init__(self, process: Any) -> None:
        process.start()
        self.pid: int = process.pid
        self._process = process

    def poll(self) -> int | None:
        found: int | None = self._process.exitcode
        return found

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def start_controller(
    extra: dict[str, str], folder: Path, command: str, *, tasks_per_node: int, timeout_min: float, **_: Any
) -> Started:
    """In the place of submitit's: what it would tell a new interpreter by its environment, and `extra`."""
    told = {
        **extra,
        "SUBMITIT_LOCAL_NTASKS": str(tasks_per_node),
        "SUBMITIT_LOCAL_COMMAND": command,
        "SUBMITIT_LOCAL_TIMEOUT_S": str(int(60 * timeout_min)),
        "SUBMITIT_LOCAL_SIGNAL_DELAY_S": "120",
        "SUBMITIT_LOCAL_NODEID": "0",
        "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
        "SUBMITIT_STDERR_TO_STDOUT": "",
        "SUBMITIT_EXECUTOR": "local",
        "SUBMITIT_LOCAL_WITH_SHELL": "",
    }
    return Started(multiprocessing.get_context("forkserver").Process(target=_control, args=(folder, told)))


def _control(folder: Path, told: dict[str, str]) -> None:
    os.environ.update(told)
    with patch.object(local, "subprocess", SimpleNamespace(Popen=_start_task)):
        local.Controller(folder).run()


def _start_task(command: Sequence[str], *, env: dict[str, str], stdout: IO[str], stderr: IO[str], **_: Any) -> Started:
    files = (stdout.fileno(), stderr.fileno())
    return Started(multiprocessing.get_context("fork").Process(target=_run_task, args=(command[-1], env, *files)))


def _run_task(folder: str, environment: dict[str, str], stdout: int, stderr: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the controller's
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.environ.update(environment)
    pause_as_told()
    sys.argv = ["submitit", folder]
    submitit_main()
