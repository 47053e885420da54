"""Work in threads behind a bounded queue: equal requests share it, and it stops when no request waits for it."""

import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

Answer = dict[str, Any]


class CancelledError(Exception):
    """Nobody waits for this work any more."""


class QueueFullError(Exception):
    """The queue is full."""


class Progress:
    """Progress of a job, and its cancellation."""

    def __init__(self) -> None:
        self.share, self.note = 0.0, "waiting"
        self._cancelled = threading.Event()

    def __call__(self, done: int, total: int, note: str) -> None:
        """Say that `done` of `total` steps are done; raises CancelledError once the work is cancelled."""
        if self._cancelled.is_set():
            raise CancelledError
        self.share, self.note = done / total, note

    def cancel(self) -> None:
        self._cancelled.set()


@dataclass(eq=False)
class Work:
    """One computation and the tickets of the requests that wait for it."""

    key: str
    future: Future[Answer]
    progress: Progress
    tickets: set[str] = field(default_factory=set)


@dataclass
class Ticket:
    id: str
    work: Work
    last_seen: float


class Jobs:
    """Two pools: quick questions never wait behind long ones."""

    def __init__(self, *, workers: int = 2, max_open: int = 256, patience_s: float = 20.0) -> None:
        self.max_open, self.patience_s = max_open, patience_s
        self._pools = {
            is_long: ThreadPoolExecutor(number, thread_name_prefix="look")
            for is_long, number in ((False, workers), (True, 1))
        }
        self._lock = threading.RLock()  # cancelling a future calls back into `_finished`
        self._works: dict[str, Work] = {}  # those not finished
        self._tickets: dict[str, Ticket] = {}

    @property
    def num_open(self) -> int:
        return len(self._works)

    def submit(self, key: str, run: Callable[[Progress], Answer], *, is_long: bool = False) -> Ticket:
        """Join the work of that key, or start it."""
        with self._lock:
            self.drop_abandoned()
            if len(self._tickets) >= 4 * self.max_open:
                raise QueueFullError
            work = self._works.get(key) or self._start(key, run, is_long)
            ticket = Ticket(secrets.token_urlsafe(12), work, time.monotonic())
            work.tickets.add(ticket.id)
            self._tickets[ticket.id] = ticket
            return ticket

    def find(self, ticket_id: str) -> Ticket | None:
        with self._lock:
            ticket = self._tickets.get(ticket_id)
            if ticket:
                ticket.last_seen = time.monotonic()
            return ticket

    def leave(self, ticket: Ticket) -> None:
        """Wait no longer; the last to leave stops the work."""
        with self._lock:
            self._tickets.pop(ticket.id, None)
            ticket.work.tickets.discard(ticket.id)
            if not ticket.work.tickets and not ticket.work.future.done():
                self._works.pop(ticket.work.key, None)  # who asks again starts anew
                ticket.work.progress.cancel()
                ticket.work.future.cancel()

    def drop_abandoned(self) -> None:
        """Drop tickets that have not been polled for a while, such as those of closed pages."""
        with self._lock:
            oldest = time.monotonic() - self.patience_s
            for ticket in [t for t in self._tickets.values() if t.last_seen < oldest]:
                self.leave(ticket)

    def close(self) -> None:
        with self._lock:
            for ticket in list(self._tickets.values()):
                self.leave(ticket)
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    def _start(self, key: str, run: Callable[[Progress], Answer], is_long: bool) -> Work:
        if self.num_open >= self.max_open:
            raise QueueFullError
        progress = Progress()
        future = self._pools[is_long].submit(_begin, run, progress)
        work = self._works[key] = Work(key, future, progress)
        future.add_done_callback(lambda _: self._finished(work))
        return work

    def _finished(self, work: Work) -> None:
        with self._lock:
            if self._works.get(work.key) is work:
                del self._works[work.key]


def _begin(run: Callable[[Progress], Answer], progress: Progress) -> Answer:
    progress(0, 1, "started")
    return run(progress)
