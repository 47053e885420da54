"""Checkpoint files: what is written can be read by others, and nothing half-written is ever taken for whole."""

import hashlib
import json
import multiprocessing
import os
import re
from multiprocessing.synchronize import Event
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from mixlab.backbones.weights.writing import num_bytes_of
from mixlab.errors import WorkError
from mixlab.recipes import RECIPES
from mixlab.training import checkpoint
from mixlab.training.checkpoint import Checkpoints, write_tensors
from mixlab.training.log import TrainingProgress
from mixlab.training.loop import train
from mixlab.training.settings import override

TENSORS = {
    "matrix": torch.randn(3, 5),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "empty": torch.zeros(1, 0, 4),
    "half": torch.randn(7).to(torch.bfloat16),
    "counts": torch.arange(4),
    "turned": torch.randn(4, 6).T,
}


def no_warning(text: str) -> None:
    raise AssertionError(text)


def test_safetensors_reads_what_we_write_and_the_checksum_is_of_the_file(tmp_path: Path) -> None:
    written = write_tensors(tmp_path / "file", TENSORS)
    loaded = load_file(tmp_path / "file")
    assert loaded.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert loaded[name].dtype == tensor.dtype and torch.equal(loaded[name], tensor), name
    data = (tmp_path / "file").read_bytes()
    assert written == (len(data), hashlib.sha256(data).hexdigest())


def test_a_checkpoint_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    assert checkpoints.newest(no_warning) is None
    checkpoints.save(7, TENSORS, {"loader": {"epoch": 1, "skipped": {"bad ü.jpg": "broken"}}})
    found = checkpoints.newest(no_warning)
    assert found is not None and found.step == 7
    assert found.state == {"loader": {"epoch": 1, "skipped": {"bad ü.jpg": "broken"}}}
    assert all(torch.equal(tensor, TENSORS[name]) for name, tensor in found.tensors())


def test_only_the_newest_few_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 5, 12, 100_000_000):
        checkpoints.save(step, TENSORS, {})
    assert checkpoints.steps() == [12, 100_000_000]
    assert len(list(tmp_path.iterdir())) == 4


def test_a_write_that_fails_leaves_the_older_checkpoint_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, TENSORS, {})

    def full(tensor: torch.Tensor) -> torch.Tensor:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "whole", full)
    with pytest.raises(WorkError, match="the last good checkpoint is that of step 1. Make room and run") as error:
        checkpoints.save(2, TENSORS, {})
    needed = sum(tensor.numel() * tensor.element_size() for tensor in TENSORS.values())
    assert f"step-00000002.safetensors could not be written (No space left on device): it needs {needed}" in str(
        error.value
    )
    assert sorted(file.name for file in tmp_path.iterdir()) == ["step-00000001.json", "step-00000001.safetensors"]


def test_tensors_without_their_json_are_no_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (1, 2):
        checkpoints.save(step, TENSORS, {})
    (tmp_path / "step-00000002.json").unlink()  # a kill between the two renames
    found = checkpoints.newest(no_warning)
    assert found is not None and found.step == 1


def flip_a_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)


DAMAGES = {
    "a flipped bit": lambda stem: flip_a_byte(stem.with_suffix(".safetensors")),
    "a cut file": lambda stem: os.truncate(stem.with_suffix(".safetensors"), 100),
    "a lost file": lambda stem: stem.with_suffix(".safetensors").unlink(),
    "an empty JSON": lambda stem: stem.with_suffix(".json").write_text(""),
    "a changed JSON": lambda stem: stem.with_suffix(".json").write_text(
        stem.with_suffix(".json").read_text().replace('"epoch": ', '"epoch": 1')
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_taken(damage: str, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (1, 2):
        checkpoints.save(step, TENSORS, {"loader": {"epoch": 2}})
    DAMAGES[damage](tmp_path / "step-00000002")
    warnings: list[str] = []
    found = checkpoints.newest(warnings.append)
    assert found is not None and found.step == 1
    assert len(warnings) == 1 and "the checkpoint of step 2 is damaged" in warnings[0]


def test_a_newer_format_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    checkpoints.save(1, TENSORS, {})
    content = json.loads((tmp_path / "step-00000001.json").read_text())
    content.pop("sha256")
    content["format"] = 99
    content["sha256"] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    (tmp_path / "step-00000001.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="format 99"):
        checkpoints.newest(no_warning)


def keep_saving(folder: Path, over: Event) -> None:
    checkpoints, step = Checkpoints(folder, keep=1), 1
    while not over.is_set():
        step += 1
        checkpoints.save(step, {"step": torch.full((20_000,), step, dtype=torch.float32)}, {"step": step})


def test_a_run_can_be_read_at_any_time_while_it_saves_and_keeps_one(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    over = context.Event()
    Checkpoints(tmp_path, keep=1).save(1, {"step": torch.ones(20_000)}, {"step": 1})
    writer = context.Process(target=keep_saving, args=(tmp_path, over))
    writer.start()
    found = []
    try:
        while len(set(found)) < 100:
            checkpoint = Checkpoints(tmp_path, keep=1).newest(no_warning)
            assert checkpoint is not None
            ((_, values),) = checkpoint.tensors()
            assert checkpoint.state == {"step": checkpoint.step} and (values == checkpoint.step).all()
            found.append(checkpoint.step)
    finally:
        over.set()
        writer.join()
    assert found == sorted(found)


def test_a_disk_without_room_for_a_checkpoint_is_noticed_before_one_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    needed = num_bytes_of(TENSORS)
    space = SimpleNamespace(f_frsize=1, f_blocks=10**9, f_bavail=needed, f_bfree=needed)
    monkeypatch.setattr("mixlab.run.disk.os.statvfs", lambda place: space)
    checkpoints.check_free(500, TENSORS)
    checkpoints.save(3, TENSORS, {})
    space.f_bavail = space.f_bfree = needed - 1
    with pytest.raises(WorkError, match="step-00000500.safetensors would not fit: it needs") as error:
        checkpoints.check_free(500, TENSORS)
    assert f"it needs {needed} bytes, {needed - 1} bytes are free in {checkpoints.folder}" in str(error.value)
    assert "checkpoint is that of step 3. Make room, or keep fewer than 2 (checkpoint.keep)" in str(error.value)


def test_a_run_stops_before_its_first_step_or_after_it_where_the_moments_are_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ["steps=4", "batch=4", "model.dim=32", "model.depth=1", "model.image=32", "method.size=32",
                "optim.warmup_steps=0", "log.every_steps=1", "log.tensorboard=false", "data.workers=0",
                "knn.every_epochs=0"]  # fmt: skip
    config = override(RECIPES["supervised_vit_tiny64"](), settings)
    space, done = SimpleNamespace(f_frsize=1, f_blocks=10**9, f_bavail=0, f_bfree=0), []
    monkeypatch.setattr("mixlab.run.disk.os.statvfs", lambda place: space)
    monkeypatch.setattr(TrainingProgress, "step", lambda self, step: done.append(step))
    needed = []
    for steps in (0, 1):
        with pytest.raises(WorkError, match="step-00000004.safetensors would not fit") as error:
            train(config, data="shapes:n=8", run=tmp_path / "run", device="cpu")
        assert len(done) == steps
        needed.append(float(re.findall(r"it needs ([\d.]+) kB", str(error.value))[0]))
        space.f_bavail = space.f_bfree = int(1500 * needed[0])
    assert needed[1] == pytest.approx(3 * needed[0], rel=0.02)  # AdamW has two moments
    space.f_bavail = space.f_bfree = 2**40
    assert train(config, data="shapes:n=8", run=tmp_path / "run", device="cpu").step == 4
