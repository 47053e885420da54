"""A pretraining small enough to be stopped many times, and what two runs of it must have in common."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import torch
from fault_processes import STOPS, last_logged
from safetensors.torch import load_file

from tests.waiting import wait_for

STEPS = 16 * STOPS  # more than are made until the last stop, see `wait_for_moment`
STEPS_PER_EPOCH = 8
MOST_STEPS = 8  # of a run that is stopped: then it pauses, until the signal is sent
SETTINGS = [f"steps={STEPS}", "batch=8", "precision=fp32", "data.size=32", "model.dim=32", "model.depth=2",
            "model.image=32", "model.drop_path=0.1", "method.num_prototypes=64", "method.hidden=32",
            "method.bottleneck=16", "method.num_local=2", "method.global_size=32", "method.local_size=16",
            "optim.warmup_epochs=0", "log.every_steps=1", "log.tensorboard=false", "checkpoint.every_steps=100000",
            f"knn.every_epochs={max(1, STEPS // 32)}", "knn.bank=48", "knn.queries=48"]  # fmt: skip


def pretraining(run: Path, *extra: str) -> list[str]:
    settings = [part for setting in (*SETTINGS, *extra) for part in ("--set", setting)]
    return ["pretrain", "dino_vit_tiny64", "--data", "shapes:size=32,n=64", "--device", "cpu", "--run", str(run),
            *settings]  # fmt: skip


def wait_for_moment(
    run: Path,
    before: int,
    chance: random.Random,
    *,
    scoring: bool = False,
    is_alive: Callable[[], bool] = lambda: True,
) -> None:
    """Up to four steps later than `before`, or at the end of an epoch; then anywhere within a step or two."""
    least = before + 1 + chance.randrange(4)

    def is_there() -> bool:
        step = last_logged(run)
        return step > before and (step % STEPS_PER_EPOCH == 0 if scoring else step >= least)

    wait_for(lambda: is_there() or not is_alive())
    time.sleep(chance.random() * 0.05)


def assert_same_end(run: Path, whole: Path) -> None:
    for file in (f"checkpoints/step-{STEPS:08d}.safetensors", "weights.safetensors"):
        ours, theirs = load_file(run / file), load_file(whole / file)
        assert ours.keys() == theirs.keys()
        assert not [name for name in ours if not torch.equal(ours[name], theirs[name])]
