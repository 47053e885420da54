"""The promise: kill -9 at any instant, between and inside checkpoint writes, and the final weights are the same bits.

MIXLAB_KILLS sets how many kills (20 for the full test), MIXLAB_KILL_SEED their instants.
"""

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
import torch
from command_line import command
from deadly_photos import DeadlyPhotos
from safetensors.torch import load_file
from torch import Tensor

from mixlab.recipes import find_recipe
from mixlab.run.files import read_json
from mixlab.training import checkpoint
from mixlab.training.loop import train
from mixlab.training.settings import override
from tests.paused_training import pause
from tests.waiting import PATIENCE_S, exit_codes

pretrain = command("pretrain")

KILLS = int(os.environ.get("MIXLAB_KILLS", "4"))
SEED = int(os.environ.get("MIXLAB_KILL_SEED", "0"))
STEPS_A_KILL = 3  # at most
EPOCHS = 1 + KILLS * STEPS_A_KILL // 8
DATA = "shapes:size=32,n=64"
SETTINGS = ["batch=8", "data.size=32", "model.dim=32", "model.depth=2", "model.image=32", "model.drop_path=0.1",
            "method.num_prototypes=1024", "method.hidden=64", "method.bottleneck=32", "method.num_local=2",
            "method.global_size=32", "method.local_size=16", "log.every_steps=2", "checkpoint.every_steps=1",
            "checkpoint.keep=2", "knn.every_epochs=0"]  # fmt: skip
CONTEXT = multiprocessing.get_context("forkserver")


def child(folder: str, last: int | None = None) -> None:
    """It waits for its end after step `last`."""
    torch.set_num_threads(1)
    if last is not None:
        pause({last: Path(folder) / "never"})
    pretrain("dino_vit_tiny64", data=DATA, run=Path(folder), set=[*SETTINGS, f"epochs={EPOCHS}"], device="cpu")


def child_stuck_in_a_write(folder: str, step: int, stuck: Event) -> None:
    """As `child`, but of the tensors of one checkpoint only half are ever written."""

    def write_half(path: Path, tensors: Mapping[str, Tensor]) -> tuple[int, str]:
        left = iter(range(len(tensors) // 2))

        def whole_or_never(tensor: Tensor) -> Tensor:
            if f"-{step:08d}." in path.name and next(left, None) is None:
                stuck.set()
                time.sleep(600)
            return put_together(tensor)

        checkpoint.whole = whole_or_never
        return write(path, tensors)

    put_together = checkpoint.whole
    write, checkpoint.write_tensors = checkpoint.write_tensors, write_half
    child(folder)


def child_with_own_data(folder: str, kill_at: int) -> None:
    torch.set_num_threads(1)
    config = override(find_recipe("dino_vit_tiny64"), [*SETTINGS, "epochs=1", "data.workers=0"])
    train(config, data=DeadlyPhotos(64, kill_at), run=folder, device="cpu")


def start(target: Callable[..., None], *arguments: object) -> multiprocessing.Process:
    process = CONTEXT.Process(target=target, args=arguments)
    process.start()
    return process


def run_to_the_end(folder: Path) -> None:
    assert exit_codes(start(child, str(folder))) == [0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody killed."""
    folder = tmp_path_factory.mktemp("whole")
    run_to_the_end(folder)
    return folder


def assert_same_end(killed: Path, whole: Path) -> None:
    last = newest_step(whole)
    assert newest_step(killed) == last == EPOCHS * 8
    for file in (f"checkpoints/step-{last:08d}.safetensors", "weights.safetensors"):
        ours, theirs = load_file(killed / file), load_file(whole / file)
        assert ours.keys() == theirs.keys()
        assert not [name for name in ours if not torch.equal(ours[name], theirs[name])]
    assert not list(killed.glob("checkpoints/*.partial"))


def newest_step(folder: Path) -> int:
    return max((int(file.stem.removeprefix("step-")) for file in folder.glob("checkpoints/step-*.json")), default=0)


def test_killed_at_random_instants_every_restart_works_and_the_end_is_bit_identical(
    whole: Path, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    inside_writes = 0
    for kill in range(KILLS):
        before = newest_step(tmp_path)
        last = before + STEPS_A_KILL
        process = start(child, str(tmp_path), last)
        while newest_step(tmp_path) <= before:  # some progress each time, or the test would never end
            assert process.is_alive(), "a restart failed"
            time.sleep(0.001)
        if kill % 2:  # inside a write: as soon as a half-written file shows
            while not list(tmp_path.glob("checkpoints/*.partial")) and newest_step(tmp_path) < last:
                assert process.is_alive(), "a restart failed"
                time.sleep(0.0002)
            time.sleep(chance.random() * 0.005)
            inside_writes += bool(list(tmp_path.glob("checkpoints/*.partial")))
        else:
            time.sleep(chance.random() * 0.1)
        process.kill()
        process.join()
    run_to_the_end(tmp_path)
    assert_same_end(tmp_path, whole)
    if KILLS >= 10:  # a few may all miss, on a busy machine; the next test never does
        assert inside_writes, "no kill fell inside a write"


def test_killed_inside_a_write_it_goes_on_from_the_checkpoint_before_to_the_same_bits(
    whole: Path, tmp_path: Path
) -> None:
    stuck = CONTEXT.Event()
    process = start(child_stuck_in_a_write, str(tmp_path), 3, stuck)
    assert stuck.wait(PATIENCE_S), "no checkpoint was begun"
    process.kill()
    process.join()
    (half,) = tmp_path.glob("checkpoints/*.partial")
    assert half.name == "step-00000003.safetensors.partial"
    assert 0 < half.stat().st_size < (tmp_path / "checkpoints" / "step-00000002.safetensors").stat().st_size
    assert newest_step(tmp_path) == 2
    run_to_the_end(tmp_path)
    assert_same_end(tmp_path, whole)
    assert [session["from_step"] for session in read_json(tmp_path / "config.json")["sessions"]] == [0, 2]


def test_a_run_on_a_data_set_of_ones_own_is_killed_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    read_before = 64 + 16 + 1  # for labels, a fingerprint, and to see what it is
    for folder, kill_at in ((killed, read_before + 8 * 4 + 3), (killed, -1), (whole, -1)):
        process = start(child_with_own_data, str(folder), kill_at)
        assert exit_codes(process) == [0 if kill_at < 0 else -signal.SIGKILL]
    ours, theirs = (load_file(folder / "weights.safetensors") for folder in (killed, whole))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    sessions = [session["from_step"] for session in read_json(killed / "config.json")["sessions"]]
    assert sessions[0] == 0 and 1 <= sessions[1] < 8
