"""The promise: kill -9 at any instant, between and inside checkpoint writes, and the final weights are the same bits.

MIXLAB_KILLS sets how many kills (20 for the full test), MIXLAB_KILL_SEED their instants.
"""

import multiprocessing
import os
import random
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

from mixlab.commands.pretrain import pretrain

KILLS = int(os.environ.get("MIXLAB_KILLS", "4"))
SEED = int(os.environ.get("MIXLAB_KILL_SEED", "0"))
DATA = "shapes:size=32,n=64"
SETTINGS = ["batch=8", "data.size=32", "model.dim=32", "model.depth=2", "model.image=32", "model.drop_path=0.1",
            "method.num_prototypes=1024", "method.hidden=64", "method.bottleneck=32", "method.num_local=2",
            "method.global_size=32", "method.local_size=16", "log.every_steps=2", "checkpoint.every_steps=1",
            "checkpoint.keep=2", "knn.every_epochs=0"]  # fmt: skip
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["mixlab.commands.pretrain"])


def child(folder: str, epochs: int) -> None:
    torch.set_num_threads(1)
    pretrain("dino_vit_tiny64", data=DATA, run=Path(folder), set=[*SETTINGS, f"epochs={epochs}"], device="cpu")


def start(folder: Path, epochs: int) -> multiprocessing.Process:
    process = CONTEXT.Process(target=child, args=(str(folder), epochs))
    process.start()
    return process


def newest_step(folder: Path) -> int:
    return max((int(file.stem.removeprefix("step-")) for file in folder.glob("checkpoints/step-*.json")), default=0)


def test_killed_at_random_instants_every_restart_works_and_the_end_is_bit_identical(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    epochs = 1 + KILLS // 4
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    process = start(whole, epochs)
    process.join(250)
    assert process.exitcode == 0
    inside_writes = 0
    for kill in range(KILLS):
        before = newest_step(killed)
        process = start(killed, epochs)
        while newest_step(killed) <= before:  # some progress each time, or the test would never end
            assert process.is_alive(), "a restart failed"
            time.sleep(0.001)
        if kill % 2:  # inside a write: as soon as a half-written file shows
            while not list(killed.glob("checkpoints/*.partial")) and process.is_alive():
                time.sleep(0.0002)
            time.sleep(chance.random() * 0.005)
            inside_writes += bool(list(killed.glob("checkpoints/*.partial")))
        else:
            time.sleep(chance.random() * 0.1)
        process.kill()
        process.join()
    process = start(killed, epochs)
    process.join(250)
    assert process.exitcode == 0
    last = newest_step(whole)
    assert newest_step(killed) == last == epochs * 8
    for file in (f"checkpoints/step-{last:08d}.safetensors", "weights.safetensors"):
        ours, theirs = load_file(killed / file), load_file(whole / file)
        assert ours.keys() == theirs.keys()
        assert not [name for name in ours if not torch.equal(ours[name], theirs[name])]
    assert inside_writes or KILLS < 10, "no kill fell inside a write"  # a few may all miss, on a busy machine
    assert not list(killed.glob("checkpoints/*.partial"))
