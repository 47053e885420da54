"""A run on a GPU that is killed at random moments resumes to the same bits, with and without a graph.

By default it is killed twice; `MIXLAB_FAULTS=all` kills it ten times. `MIXLAB_FAULT_SEED` sets the moments.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.paused_training import told

ROOT = Path(__file__).parents[2]
KILLS = 10 if os.environ.get("MIXLAB_FAULTS") == "all" else 2
STEPS = 80
STEPS_A_KILL = STEPS // (KILLS + 1)  # at most: then it waits for its end, however fast it is
SETTINGS = [f"steps={STEPS}", "batch=8", "model.depth=2", "model.drop_path=0.1", "method.num_prototypes=256",
            "method.hidden=16", "method.bottleneck=32", "method.num_local=2", "optim.warmup_epochs=0",
            "log.every_steps=1", "log.tensorboard=false", "checkpoint.every_steps=7", "data.workers=2"]  # fmt: skip


def start(run: Path, recipe: str, optimizer: str, graph: bool, *, last: int | None = None) -> subprocess.Popen[bytes]:
    """Global crops of 224 px and local ones of 96 px, which resize the position table. After step `last`, it waits."""
    settings = [
        part
        for each in (*SETTINGS, f"optim.name={optimizer}", f"graph={str(graph).lower()}")
        for part in ("--set", each)
    ]
    call = ["pretrain", recipe, "--data", "shapes:size=224,n=16", "--device", "cuda", "--run", str(run), *settings]
    pauses = {} if last is None else {"MIXLAB_IMPORT": "tests.paused_training", **told({last: run / "never"})}
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, **pauses}
    with run.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "mixlab", *call], stdout=log, stderr=log, start_new_session=True, env=environment
        )


def num_logged(run: Path) -> int:
    file = run / "metrics.jsonl"
    return file.read_text().count('"loss"') if file.is_file() else 0


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize(
    ("recipe", "optimizer"), [("dino_dinovim_tiny", "adamw"), ("dino_vit_tiny", "adamw"), ("dino_vit_tiny", "muon")]
)
def test_a_killed_run_resumes_to_the_same_bits(recipe: str, optimizer: str, graph: bool, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(whole, recipe, optimizer, graph).wait() == 0, whole.with_suffix(".log").read_text()
    chance = random.Random(f"{os.environ.get('MIXLAB_FAULT_SEED', '0')} {recipe} {graph}")
    for _ in range(KILLS):
        before = num_logged(killed)
        process = start(killed, recipe, optimizer, graph, last=before + STEPS_A_KILL)
        while num_logged(killed) <= before and process.poll() is None:
            time.sleep(0.002)
        time.sleep(chance.random() * 0.3)
        assert process.poll() is None, killed.with_suffix(".log").read_text()  # it was killed, not over
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert start(killed, recipe, optimizer, graph).wait() == 0, killed.with_suffix(".log").read_text()
    ours, theirs = load_file(killed / "weights.safetensors"), load_file(whole / "weights.safetensors")
    assert ours.keys() == theirs.keys()
    assert not [name for name in ours if not torch.equal(ours[name], theirs[name])]
