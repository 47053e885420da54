"""On SIGTERM and Ctrl-C the loop finishes its step or interrupts scoring, writes a checkpoint and stops."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self, TypeVar

from mixlab.training.distributed import any_rank

T = TypeVar("T")
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(Exception):  # noqa: N818  not an error
    """The run was asked to stop and did, with a checkpoint. Exit code: 128 + the signal's number, as shells have it."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} after step {step}, which is saved")
        self.exit_code = 128 + signal_number


class ScoringStopped(Exception):  # noqa: N818  not an error
    """The run was stopped during scoring, so there are no scores."""


class StopRequests:
    """Listens while entered. The first signal is noted in `number`; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # others get no signals
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def asked(self) -> bool:
        """Whether this process was asked to stop."""
        return self.number is not None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number


def never() -> bool:
    """Nobody asks to stop."""
    return False


def until_stopped(batches: Iterable[T], stopped: Callable[[], bool], *, together: bool = False) -> Iterator[T]:
    """Batches until this process is asked to stop, then `ScoringStopped`, on every rank.

    Ranks may have different numbers of batches: they agree once each has no more. `together` they agree at every
    batch, for networks that need every rank in every pass.
    """
    left = iter(batches)
    while True:
        try:
            batch = next(left)
        except StopIteration:
            break
        except RuntimeError:  # the signal also ended the processes that read images
            if not stopped():
                raise
            batch = None
        asked = any_rank(stopped()) if together else stopped()
        if asked or batch is None:
            break
        yield batch
    if any_rank(stopped()):
        raise ScoringStopped


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, even where a shell started us in the background with SIGINT ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
