"""When a signal asks to stop, the loop finishes its step or interrupts scoring, writes a checkpoint and stops."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self, TypeVar

from mixlab.signals import REPEAT_S, STOP_SIGNALS, StopSignal
from mixlab.training.distributed import any_rank, from_all

T = TypeVar("T")


class Stopped(Exception):  # noqa: N818  not an error
    """The run was asked to stop and did, with a checkpoint. Exit code: 128 + the signal's number, as shells have it."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} after step {step}, which is saved")
        self.number, self.exit_code = signal_number, 128 + signal_number


class ScoringStopped(Exception):  # noqa: N818  not an error
    """The run was stopped during scoring, so there are no scores."""


class WaitingStopped(Exception):  # noqa: N818  not an error
    """The run was stopped while it waited for data."""


class StopRequests:
    """Listens while entered. The first signal is noted in `number`; a second Ctrl-C, later, interrupts at once.

    `also` are signals by which this job's scheduler says more than "stop": they are noted before all others. Under
    torchrun, which passes on what a terminal has sent already, a second Ctrl-C is the first one.
    """

    def __init__(self, also: Iterable[int] = ()) -> None:
        self.number: int | None = None
        self.also = tuple(also)
        self._before: dict[int, Any] = {}
        self._since = 0.0
        self._waits = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # others get no signals
            for number in (*STOP_SIGNALS, *self.also):
                if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def asked(self) -> bool:
        """Whether this process was asked to stop."""
        return self.number is not None

    def agreed(self) -> int:
        """The signal that stops all ranks; 0 where none came to any."""
        numbers = from_all(self.number or 0)
        return next((number for number in numbers if number in self.also), max(numbers))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a wait that may never end: a signal, or one that came before, ends it with `WaitingStopped`."""
        self._waits = True
        try:
            if self.asked():
                raise WaitingStopped
            yield
        finally:
            self._waits = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.number is None or number in self.also:
            self.number, self._since = number, now
        elif number == signal.SIGINT and "RANK" not in os.environ and now - self._since >= REPEAT_S:
            raise StopSignal(number, "steps since the last checkpoint are lost; run the same command again to resume")
        if self._waits:
            self._waits = False
            raise WaitingStopped


def never() -> bool:
    """Nobody asks to stop."""
    return False


def until_stopped(batches: Iterable[T], stopped: Callable[[], bool], *, together: bool = False) -> Iterator[T]:
    """Batches until this process is asked to stop, then `ScoringStopped`, on every rank.

    Ranks may have different numbers of batches: they agree once each has no more. `together` they agree at every
    batch, for networks that need every rank in every pass.
    """
    for batch in batches:
        if any_rank(stopped()) if together else stopped():
            break
        yield batch
    if any_rank(stopped()):
        raise ScoringStopped
