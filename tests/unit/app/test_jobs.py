"""The queue: shared work, cancelling, limits."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from mixlab.app.jobs import Answer, CancelledError, Jobs, Progress, QueueFullError
from tests.waiting import PATIENCE_S, wait_for


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    made = Jobs(workers=1, max_open=3, patience_s=3600)
    yield made
    made.close()


class Slow:
    """Work that goes on until released or cancelled, and counts its starts."""

    def __init__(self) -> None:
        self.started, self.release, self.starts = threading.Event(), threading.Event(), 0

    def __call__(self, progress: Progress) -> Answer:
        self.starts += 1
        self.started.set()
        while not self.release.is_set():
            progress(1, 4, "working")
            time.sleep(0.005)
        return {"value": 42}


def test_two_who_ask_the_same_share_one_work(jobs: Jobs) -> None:
    slow = Slow()
    first, second = jobs.submit("key", slow), jobs.submit("key", slow)
    slow.release.set()
    assert first.work.future.result(PATIENCE_S) == second.work.future.result(PATIENCE_S) == {"value": 42}
    assert slow.starts == 1


def test_work_goes_on_while_anybody_waits_and_stops_when_the_last_leaves(jobs: Jobs) -> None:
    slow = Slow()
    first, second = jobs.submit("key", slow), jobs.submit("key", slow)
    assert slow.started.wait(PATIENCE_S)
    jobs.leave(first)
    time.sleep(0.05)
    assert not first.work.future.done()
    wait_for(lambda: second.work.progress.share == 0.25)
    jobs.leave(second)
    with pytest.raises(CancelledError):
        second.work.future.result(PATIENCE_S)
    assert jobs.num_open == 0


def test_who_asks_again_after_cancelling_gets_a_fresh_answer(jobs: Jobs) -> None:
    slow = Slow()
    jobs.leave(jobs.submit("key", slow))
    again = Slow()
    again.release.set()
    assert jobs.submit("key", again).work.future.result(PATIENCE_S) == {"value": 42}


def test_a_full_queue_refuses_new_work_but_not_shared_work(jobs: Jobs) -> None:
    slow = Slow()
    with ExitStack() as waiting:
        for key in "abc":
            waiting.enter_context(jobs.awaiting(jobs.submit(key, slow)))
        with pytest.raises(QueueFullError):
            jobs.submit("d", slow)
        jobs.submit("a", slow)
    slow.release.set()


def test_work_that_no_request_waits_for_makes_room_the_longest_unasked_for_first(jobs: Jobs) -> None:
    slow = Slow()
    tickets = [jobs.submit(key, slow) for key in "abc"]
    with jobs.awaiting(tickets[0]):
        assert jobs.find(tickets[1].id) is tickets[1]  # asked for again: now the third is the oldest
        jobs.submit("d", slow)
        assert [jobs.find(ticket.id) is not None for ticket in tickets] == [True, True, False]
        assert jobs.num_open == 3
    slow.release.set()


def test_what_is_awaited_runs_before_what_was_asked_earlier_and_left(jobs: Jobs) -> None:
    first, order = Slow(), []
    jobs.submit("running", first)
    assert first.started.wait(PATIENCE_S)
    left = jobs.submit("left", lambda progress: order.append("left") or {})
    awaited = jobs.submit("awaited", lambda progress: order.append("awaited") or {})
    with jobs.awaiting(awaited):
        first.release.set()
        awaited.work.future.result(PATIENCE_S)
    left.work.future.result(PATIENCE_S)
    assert order == ["awaited", "left"]


def test_quick_work_does_not_wait_behind_long_work(jobs: Jobs) -> None:
    slow, quick = Slow(), Slow()
    quick.release.set()
    jobs.submit("long", slow, is_long=True)
    assert slow.started.wait(PATIENCE_S)
    assert jobs.submit("quick", quick).work.future.result(PATIENCE_S) == {"value": 42}
    slow.release.set()


def test_work_that_nobody_asked_about_for_a_while_is_stopped() -> None:
    jobs, slow = Jobs(patience_s=0.05), Slow()
    ticket = jobs.submit("key", slow)
    assert slow.started.wait(PATIENCE_S)
    time.sleep(0.1)
    jobs.drop_abandoned()
    assert jobs.find(ticket.id) is None
    with pytest.raises(CancelledError):
        ticket.work.future.result(PATIENCE_S)
    jobs.close()
