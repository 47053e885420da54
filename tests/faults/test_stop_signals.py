"""The promise: a signal to the whole group saves and stops, and the run resumes to the same bits."""

import os
import random
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from fault_processes import STOPS, Group, children_of, last_logged, moments, only_all, steps_of, wait_for
from small_runs import MOST_STEPS, assert_same_end, pretraining, wait_for_moment

from mixlab.signals import STOP_SIGNALS

MOST_LOST = 2  # steps, of a run that saves at every step: one is being written while the next is trained
pytestmark = pytest.mark.timeout(3600 if STOPS > 1 else 1200)
BUSY = {"training": [], "saving": ["checkpoint.every_steps=1"], "scoring": ["knn.every_epochs=1"]}


@dataclass(frozen=True)
class Case:
    """`to`: every process of the group, as a terminal and most schedulers do it, or one rank alone."""

    number: int
    workers: int
    ranks: int
    to: Literal["group", "rank"] = "group"
    busy: Literal["training", "saving", "scoring"] = "training"

    def __str__(self) -> str:
        name, to = signal.Signals(self.number).name, f"to the {self.to}"
        return f"{name} {to} while {self.busy}, {self.workers} workers, {self.ranks} ranks"

    def strike(self, group: Group, chance: random.Random) -> None:
        if self.to == "rank":
            os.kill(chance.choice(group.processes).pid or 0, self.number)
            return
        group.signal(self.number)
        if chance.random() < 0.5:  # as `timeout` and torchrun do
            group.signal(self.number)


DEFAULT = Case(signal.SIGTERM, 2, 2)
CASES = [
    *(Case(number, workers, ranks) for number in STOP_SIGNALS for workers in (0, 2) for ranks in (1, 2)),
    *(Case(number, 2, ranks, to="rank") for number in (signal.SIGTERM, signal.SIGINT) for ranks in (1, 2)),
    *(Case(signal.SIGTERM, 2, ranks, busy=busy) for busy in ("saving", "scoring") for ranks in (1, 2)),
]


@pytest.mark.parametrize(
    "case", [pytest.param(each, marks=[] if each == DEFAULT else only_all) for each in CASES], ids=str
)
def test_a_run_that_is_signalled_at_random_moments_loses_no_step(case: Case, whole, tmp_path: Path) -> None:
    chance, run, log = moments(str(case)), tmp_path / "run", tmp_path / "log.txt"
    reference, name = whole(case.ranks), signal.Signals(case.number).name
    call = pretraining(run, f"data.workers={case.workers}", *BUSY[case.busy])
    for _ in range(STOPS):
        before = last_logged(run)
        struck = tmp_path / f"struck after {before}"
        group = Group(call, log, ranks=case.ranks, pauses={before + MOST_STEPS: struck})
        wait_for_moment(run, before, chance, scoring=case.busy == "scoring", is_alive=group.is_alive)
        case.strike(group, chance)
        struck.touch()
        codes, done = group.codes(), last_logged(run)
        assert codes == [128 + case.number] * case.ranks, group.said
        line = f"stopped by {name} after step {done}, which is saved; run the same command again to resume"
        assert group.said.count("stopped by") == group.said.count(line) == 1, group.said
        assert "Traceback" not in group.said
        assert steps_of(run)[-1] == done  # what was logged is what was trained: no step is lost
    group = Group(call, log, ranks=case.ranks)
    assert group.codes() == [0] * case.ranks, group.said
    assert_same_end(run, reference)
    print(f"{case}: {STOPS} of {STOPS} stopped and resumed, none lost a step")


@only_all
@pytest.mark.parametrize(("workers", "ranks"), [(0, 1), (2, 1), (2, 2)])
def test_a_run_that_is_killed_at_random_moments_resumes_from_its_newest_checkpoint(
    workers: int, ranks: int, whole, tmp_path: Path
) -> None:
    """It saves at every step, so that many a kill comes in the middle of a file."""
    chance, run, log = moments(f"kill {workers} {ranks}"), tmp_path / "run", tmp_path / "log.txt"
    call = pretraining(run, f"data.workers={workers}", "checkpoint.every_steps=1")
    halves = 0
    for _ in range(STOPS):
        before = last_logged(run)
        group = Group(call, log, ranks=ranks, pauses={before + MOST_STEPS: tmp_path / "never"})
        wait_for_moment(run, before, chance, is_alive=group.is_alive)
        group.signal(signal.SIGKILL)
        assert group.codes() == [-signal.SIGKILL] * ranks, group.said
        assert "Traceback" not in group.said and "damaged" not in group.said
        assert last_logged(run) - (steps_of(run) or [0])[-1] <= MOST_LOST
        halves += any(run.glob("checkpoints/*.partial"))
    group = Group(call, log, ranks=ranks)
    assert group.codes() == [0] * ranks, group.said
    assert_same_end(run, whole(ranks))
    assert not list(run.glob("checkpoints/*.partial")), "what a killed run left is tidied"
    print(f"SIGKILL, {workers} workers, {ranks} ranks: {STOPS} of {STOPS} resumed, {halves} in the middle of a file")


@only_all
def test_a_reading_process_that_is_killed_ends_the_run_with_a_sentence_and_every_step_saved(
    whole, tmp_path: Path
) -> None:
    run, log = tmp_path / "run", tmp_path / "log.txt"
    struck = tmp_path / "struck"
    group = Group(pretraining(run, "data.workers=2"), log, pauses={MOST_STEPS: struck})
    wait_for(lambda: last_logged(run) > 0)
    os.kill(children_of(group.number)[-1], signal.SIGKILL)  # as a system without memory does
    struck.touch()
    assert group.codes() == [1], group.said
    assert "error: a process that reads data was killed, perhaps for want of memory" in group.said
    assert "Traceback" not in group.said
    assert steps_of(run)[-1] == last_logged(run)
    group = Group(pretraining(run, "data.workers=0"), log)
    assert group.codes() == [0], group.said
    assert_same_end(run, whole(1))
