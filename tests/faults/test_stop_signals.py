"""The promise: a signal to the whole group saves and stops, and the run resumes to the same bits."""

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
import torch
from fault_processes import STOPS, Group, last_logged, left_in, moments, only_all, steps_of, wait_for
from safetensors.torch import load_file

from mixlab.signals import STOP_SIGNALS

pytestmark = pytest.mark.timeout(3600 if STOPS > 1 else 300)
STEPS = 32 * STOPS
STEPS_PER_EPOCH = 8
MOST_LOST = 1  # steps, of a run that saves at every step
SETTINGS = [f"steps={STEPS}", "batch=8", "precision=fp32", "data.size=32", "model.dim=32", "model.depth=2",
            "model.image=32", "model.drop_path=0.1", "method.num_prototypes=64", "method.hidden=32",
            "method.bottleneck=16", "method.num_local=2", "method.global_size=32", "method.local_size=16",
            "optim.warmup_epochs=0", "log.every_steps=1", "log.tensorboard=false", "checkpoint.every_steps=100000",
            f"knn.every_epochs={STEPS // 32}", "knn.bank=48", "knn.queries=48"]  # fmt: skip


def pretraining(run: Path, *extra: str) -> list[str]:
    settings = [part for setting in (*SETTINGS, *extra) for part in ("--set", setting)]
    return ["pretrain", "dino_vit_tiny64", "--data", "shapes:size=32,n=64", "--device", "cpu", "--run", str(run),
            *settings]  # fmt: skip


def reached(run: Path, before: int, is_moment: Callable[[int], bool] = lambda step: True) -> bool:
    """Whether a step beyond `before` is logged, of the wanted kind."""
    return (step := last_logged(run)) > before and is_moment(step)


def assert_same_end(run: Path, whole: Path) -> None:
    for file in (f"checkpoints/step-{STEPS:08d}.safetensors", "weights.safetensors"):
        ours, theirs = load_file(run / file), load_file(whole / file)
        assert ours.keys() == theirs.keys()
        assert not [name for name in ours if not torch.equal(ours[name], theirs[name])]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory):
    """Runs that nobody stopped, by their number of ranks."""
    made: dict[int, Path] = {}

    def get(ranks: int) -> Path:
        if ranks not in made:
            made[ranks] = tmp_path_factory.mktemp("whole") / "run"
            group = Group(pretraining(made[ranks], "data.workers=0"), made[ranks].with_name("log.txt"), ranks=ranks)
            assert group.codes() == [0] * ranks, group.said
        return made[ranks]

    return get


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

    def is_moment(self, step: int) -> bool:
        return self.busy != "scoring" or step % STEPS_PER_EPOCH == 0

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
        group = Group(call, log, ranks=case.ranks)
        wait_for(lambda group=group, before=before: reached(run, before, case.is_moment) or not group.is_alive())
        time.sleep(chance.random() * (0.3 if case.busy == "training" else 0.1))
        case.strike(group, chance)
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
        group = Group(call, log, ranks=ranks)
        wait_for(lambda group=group, before=before: reached(run, before) or not group.is_alive())
        time.sleep(chance.random() * 0.3)
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
    group = Group(pretraining(run, "data.workers=2"), log)
    wait_for(lambda: last_logged(run) > 0)
    os.kill(max(left_in(group.number)), signal.SIGKILL)  # as a system without memory does
    assert group.codes() == [1], group.said
    assert "error: a process that reads data was killed, perhaps for want of memory" in group.said
    assert "Traceback" not in group.said
    assert steps_of(run)[-1] == last_logged(run)
    group = Group(pretraining(run, "data.workers=0"), log)
    assert group.codes() == [0], group.said
    assert_same_end(run, whole(1))
