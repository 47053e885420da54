"""The promise: a signal to the whole group saves and stops, and the run resumes to the same bits."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from fault_processes import STOPS, Group, last_logged, left_in, moments, only_all, steps_of, wait_for
from safetensors.torch import load_file

pytestmark = pytest.mark.timeout(3600 if STOPS > 1 else 300)
STEPS = 32 * STOPS
SETTINGS = [f"steps={STEPS}", "batch=8", "precision=fp32", "data.size=32", "model.dim=32", "model.depth=2",
            "model.image=32", "model.drop_path=0.1", "method.num_prototypes=64", "method.hidden=32",
            "method.bottleneck=16", "method.num_local=2", "method.global_size=32", "method.local_size=16",
            "optim.warmup_epochs=0", "log.every_steps=1", "log.tensorboard=false", "checkpoint.every_steps=100000",
            f"knn.every_epochs={STEPS // 32}", "knn.bank=48", "knn.queries=48"]  # fmt: skip


def pretraining(run: Path, *extra: str) -> list[str]:
    settings = [part for setting in (*SETTINGS, *extra) for part in ("--set", setting)]
    return ["pretrain", "dino_vit_tiny64", "--data", "shapes:size=32,n=64", "--device", "cpu", "--run", str(run),
            *settings]  # fmt: skip


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


@pytest.mark.parametrize(
    ("workers", "ranks", "number"),
    [
        pytest.param(2, 1, signal.SIGTERM, marks=only_all),
        pytest.param(0, 1, signal.SIGTERM, marks=only_all),
        (2, 2, signal.SIGTERM),
        pytest.param(0, 2, signal.SIGTERM, marks=only_all),
        pytest.param(2, 1, signal.SIGINT, marks=only_all),
        pytest.param(2, 2, signal.SIGINT, marks=only_all),
    ],
)
def test_a_group_that_is_signalled_at_random_moments_loses_no_step(
    workers: int, ranks: int, number: int, whole, tmp_path: Path
) -> None:
    chance, run, log = moments(f"{workers} {ranks} {number}"), tmp_path / "run", tmp_path / "log.txt"
    reference = whole(ranks)
    for _ in range(STOPS):
        before = last_logged(run)
        group = Group(pretraining(run, f"data.workers={workers}"), log, ranks=ranks)
        wait_for(lambda group=group, before=before: last_logged(run) > before or not group.is_alive())
        time.sleep(chance.random() * 0.3)
        group.signal(number)
        if chance.random() < 0.5:  # as `timeout` and torchrun do
            group.signal(number)
        codes, done = group.codes(), last_logged(run)
        assert codes == [128 + number] * ranks, group.said
        name = signal.Signals(number).name
        line = f"stopped by {name} after step {done}, which is saved; run the same command again to resume"
        assert group.said.count("stopped by") == group.said.count(line) == 1, group.said
        assert "Traceback" not in group.said
        assert steps_of(run)[-1] == done  # what was logged is what was trained: no step is lost
    group = Group(pretraining(run, f"data.workers={workers}"), log, ranks=ranks)
    assert group.codes() == [0] * ranks, group.said
    assert_same_end(run, reference)


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
