"""SIGTERM and Ctrl-C ask the loop to finish its step or leave its scoring, write a checkpoint and stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, TracebackType
from typing import Any, TypeVar

from mixlab.training.distributed import any_rank

T = TypeVar("T")
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(Exception):  # noqa: N818  not an error
    """The run was asked to stop and did, with a checkpoint. Exit code: 128 + the signal's number, as shells have it."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} after step {step}, which is saved")
        self.exit_code = 128 + signal_number


class ScoringLeft(Exception):  # noqa: N818  not an error
    """A stop was asked for while the network was scored, so that there are no scores."""


class StopRequests:
    """Listens while entered. The first signal is noted in `number`; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():  # others get no signals
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
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


def until_stopped(batches: Iterable[T], stopped: Callable[[], bool]) -> Iterator[T]:
    """Batches until this process is asked to stop, then `ScoringLeft`, on every rank.

    Ranks may have different numbers of batches, so they agree once each has left off.
    """
    for batch in batches:
        if stopped():
            break
        yield batch
    if any_rank(stopped()):
        raise ScoringLeft
