"""Work in threads behind a bounded queue: equal requests share it, and it stops when no request waits for it."""

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
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
    run: Callable[[Progress], Answer]
    is_long: bool
    future: Future[Answer] = field(default_factory=Future)
    progress: Progress = field(default_factory=Progress)
    tickets: dict[str, "Ticket"] = field(default_factory=dict)

    @property
    def is_awaited(self) -> bool:
        """Whether a request waits for it at this moment."""
        return any(ticket.num_waiting for ticket in self.tickets.values())

    @property
    def last_seen(self) -> float:
        return max((ticket.last_seen for ticket in self.tickets.values()), default=0.0)


@dataclass(eq=False)
class Ticket:
    id: str
    work: Work
    last_seen: float
    num_waiting: int = 0


class Jobs:
    """Two pools: quick questions never wait behind long ones, and what is awaited never behind what is not.

    Where there is no place left, work that no request waits for makes room, the longest unasked for first.
    """

    def __init__(self, *, workers: int = 2, max_open: int = 256, patience_s: float = 5.0) -> None:
        self.max_open, self.patience_s = max_open, patience_s
        self._pools = {
            is_long: ThreadPoolExecutor(number, thread_name_prefix="look")
            for is_long, number in ((False, workers), (True, 1))
        }
        self._lock = threading.RLock()  # cancelling a future calls back into `_finished`
        self._works: dict[str, Work] = {}  # those not finished
        self._queues: dict[bool, list[Work]] = {False: [], True: []}  # those not begun
        self._tickets: dict[str, Ticket] = {}

    @property
    def num_open(self) -> int:
        return len(self._works)

    def submit(self, key: str, run: Callable[[Progress], Answer], *, is_long: bool = False) -> Ticket:
        """Join the work of that key, or start it."""
        with self._lock:
            self.drop_abandoned()
            if key not in self._works and self.num_open >= self.max_open:
                self._make_room(self._works.values())
            if len(self._tickets) >= 4 * self.max_open:
                self._make_room({ticket.work for ticket in self._tickets.values()})
            work = self._works.get(key) or self._start(Work(key, run, is_long))
            ticket = Ticket(secrets.token_urlsafe(12), work, time.monotonic())
            work.tickets[ticket.id] = self._tickets[ticket.id] = ticket
            return ticket

    def find(self, ticket_id: str) -> Ticket | None:
        with self._lock:
            ticket = self._tickets.get(ticket_id)
            if ticket:
                ticket.last_seen = time.monotonic()
            return ticket

    @contextmanager
    def awaiting(self, ticket: Ticket) -> Iterator[None]:
        """While a request waits for it."""
        with self._lock:
            ticket.num_waiting += 1
        try:
            yield
        finally:
            with self._lock:
                ticket.num_waiting -= 1
                ticket.last_seen = time.monotonic()

    def leave(self, ticket: Ticket) -> None:
        """Wait no longer; the last to leave stops the work."""
        with self._lock:
            self._tickets.pop(ticket.id, None)
            work = ticket.work
            work.tickets.pop(ticket.id, None)
            if not work.tickets and not work.future.done():
                self._works.pop(work.key, None)  # who asks again starts anew
                if work in self._queues[work.is_long]:
                    self._queues[work.is_long].remove(work)
                work.progress.cancel()
                work.future.cancel()

    def drop_abandoned(self) -> None:
        """Drop tickets that have not been polled for a while, such as those of closed pages."""
        with self._lock:
            oldest = time.monotonic() - self.patience_s
            for ticket in [t for t in self._tickets.values() if not t.num_waiting and t.last_seen < oldest]:
                self.leave(ticket)

    def close(self) -> None:
        with self._lock:
            for ticket in list(self._tickets.values()):
                self.leave(ticket)
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    def _make_room(self, works: Iterable[Work]) -> None:
        unasked = [work for work in works if not work.is_awaited]
        if not unasked:
            raise QueueFullError
        for ticket in list(min(unasked, key=lambda work: work.last_seen).tickets.values()):
            self.leave(ticket)

    def _start(self, work: Work) -> Work:
        self._works[work.key] = work
        self._queues[work.is_long].append(work)
        work.future.add_done_callback(lambda _: self._finished(work))
        self._pools[work.is_long].submit(self._run_next, work.is_long)
        return work

    def _run_next(self, is_long: bool) -> None:
        """Runs in a thread, once for every work; nothing is left where some were cancelled."""
        with self._lock:
            queue = self._queues[is_long]
            if not queue:
                return
            work = next((each for each in queue if each.is_awaited), queue[0])
            queue.remove(work)
            work.future.set_running_or_notify_cancel()
        try:
            work.progress(0, 1, "started")
            answer = work.run(work.progress)
        except BaseException as error:
            work.future.set_exception(error)
        else:
            work.future.set_result(answer)

    def _finished(self, work: Work) -> None:
        with self._lock:
            if self._works.get(work.key) is work:
                del self._works[work.key]
