"""Processes that read data: they leave signals to their parent, and their end is noticed where it does no harm."""

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from multiprocessing import popen_fork
from multiprocessing.context import ForkContext, ForkProcess
from pathlib import Path
from typing import Any, TypeVar

from mixlab.errors import WorkError
from mixlab.signals import held, obey_parent_alone

T = TypeVar("T")
_PREFETCHED = 2  # batches per process: torch's default


class _Started(popen_fork.Popen):
    def terminate(self) -> None:
        """Of two SIGTERMs at once a process gets one, perhaps the group's, which it leaves to its parent. So kill."""
        self.kill()


class _Reader(ForkProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802  Python's
        return _Started(process_obj)


class _Readers(ForkContext):
    """Forks: children of their own parent, also where Python's default is otherwise."""

    Process = _Reader


class LostWorkerError(WorkError):
    """A process that reads data was killed."""


def worker_settings(number: int) -> dict[str, Any]:
    """What torch's DataLoader is given for so many processes."""
    context = _Readers() if number and sys.platform == "linux" else None
    return {"num_workers": number, "worker_init_fn": obey_parent_alone, "multiprocessing_context": context}


def check_shared_memory(batch_bytes: int, number: int, *, place: str = "/dev/shm") -> None:
    """Refuse to start processes whose batches do not fit into shared memory: the system would kill them.

    Each of them keeps two batches ready there, and one is in use. All ranks of a machine start at the same time.
    """
    if not number or not Path(place).is_dir():
        return
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # of torchrun's or submitit's
    free, each = shutil.disk_usage(place).free, (_PREFETCHED * number + 1) * batch_bytes
    if ranks * each <= free:
        return
    fitting = max(0, (free // ranks // max(1, batch_bytes) - 1) // _PREFETCHED)
    whose = f" on each of {ranks} ranks" if ranks > 1 else ""
    raise WorkError(
        f"{number} processes that read data{whose} keep up to {_megabytes(ranks * each)} in shared memory (batches of "
        f"{_megabytes(batch_bytes)}), but {place} has {_megabytes(free)} free; use at most {fitting} of them "
        "(data.workers or --workers), smaller batches or images (data.size), or give the container more "
        "(docker run --shm-size)"
    )


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f} MB"


def start_workers(loader: Iterable[T]) -> Iterator[T]:
    """The batches of a torch loader, whose processes start here.

    When one of them is killed, torch's own handler raises wherever the program happens to be, in a backward pass for
    example. It is taken away: whoever waits for the next batch is told, within seconds.
    """
    before = signal.getsignal(signal.SIGCHLD)
    with held():  # a signal that comes meanwhile raises at its end, when torch's handler is gone
        try:
            batches = iter(loader)
        finally:
            if before is not None and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGCHLD, before)
    try:
        yield from batches
    except (RuntimeError, ConnectionError, EOFError) as error:  # the latter while a batch was handed over
        if isinstance(error, RuntimeError) and not str(error).startswith("DataLoader worker (pid"):
            raise
        raise LostWorkerError(
            f"a process that reads data was killed, perhaps for want of memory ({error}); use fewer of them "
            "(data.workers or --workers) and run the same command again"
        ) from error
