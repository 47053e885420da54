"""When a signal asks to stop, the loop finishes its step or interrupts scoring, writes a checkpoint and stops."""

import signal
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from mixlab.signals import StopRequests
from mixlab.training.distributed import any_rank, from_all

T = TypeVar("T")


class Stopped(Exception):  # noqa: N818  not an error
    """The run was asked to stop and did, with a checkpoint. Exit code: 128 + the signal's number, as shells have it."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} after step {step}, which is saved")
        self.number, self.exit_code = signal_number, 128 + signal_number


class ScoringStopped(Exception):  # noqa: N818  not an error
    """The run was stopped during scoring, so there are no scores."""


def agreed(stop: StopRequests) -> int:
    """The signal that stops all ranks; 0 where none came to any."""
    numbers = from_all(stop.number or 0)
    return next((number for number in numbers if number in stop.also), max(numbers))


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
