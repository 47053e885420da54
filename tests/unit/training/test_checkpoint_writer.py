"""Checkpoints are written beside the training: what is written is the state of the save, and failures are told."""

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from command_line import command
from torch import Tensor

from mixlab.errors import WorkError
from mixlab.training import checkpoint, checkpoint_writer
from mixlab.training.checkpoint import Checkpoints
from mixlab.training.checkpoint_writer import CheckpointWriter
from mixlab.training.distributed import World
from tests.waiting import PATIENCE_S

pretrain = command("pretrain")


@pytest.fixture
def writer(tmp_path: Path) -> CheckpointWriter:
    return CheckpointWriter(Checkpoints(tmp_path, keep=2), world=World(torch.device("cpu")), sharded=False)


def newest(writer: CheckpointWriter) -> dict[str, Tensor]:
    found = writer.checkpoints.newest(pytest.fail)
    assert found is not None
    return dict(found.tensors())


def hold_writes(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Writes wait until the event is set."""
    go, write = threading.Event(), checkpoint.write_tensors

    def write_later(path: Path, tensors: Mapping[str, Tensor]) -> tuple[int, str]:
        assert go.wait(PATIENCE_S)
        return write(path, tensors)

    monkeypatch.setattr(checkpoint, "write_tensors", write_later)
    return go


def test_a_save_returns_before_the_write_and_holds_the_state_of_the_save(writer, monkeypatch) -> None:
    go = hold_writes(monkeypatch)
    weight = torch.arange(6.0).reshape(2, 3)
    writer.start(1, {"weight": weight, "turned": weight.T}, {"n": 1})
    assert writer.checkpoints.steps() == []  # it came back with nothing on the disk
    weight.mul_(-1)  # the next step of the training
    go.set()
    writer.wait()
    assert torch.equal(newest(writer)["weight"], torch.arange(6.0).reshape(2, 3))
    assert torch.equal(newest(writer)["turned"], torch.arange(6.0).reshape(2, 3).T)
    writer.start(2, {"weight": weight, "turned": weight.T}, {"n": 2})
    writer.wait()
    assert torch.equal(newest(writer)["weight"], weight) and writer.checkpoints.steps() == [1, 2]


def test_the_first_save_finds_its_memory_allocated(writer, monkeypatch) -> None:
    weight = torch.arange(6.0)
    writer.prepare({"weight": weight})
    monkeypatch.setattr(checkpoint_writer, "_allocate", pytest.fail)
    writer.start(1, {"weight": weight}, {})  # right away: it waits for the memory
    writer.wait()
    assert torch.equal(newest(writer)["weight"], weight)


def test_a_save_waits_for_the_one_before_it(writer, monkeypatch) -> None:
    go = hold_writes(monkeypatch)
    weight = torch.ones(3)
    writer.start(1, {"weight": weight}, {})
    threading.Timer(0.2, go.set).start()
    writer.start(2, {"weight": weight + 1}, {})  # its copies take the place of those of step 1
    assert 1 in writer.checkpoints.steps()
    writer.wait()
    found = {step: dict(writer.checkpoints._read(step).tensors())["weight"] for step in (1, 2)}
    assert found[1].tolist() == [1, 1, 1] and found[2].tolist() == [2, 2, 2]


def fail(path: Path, tensors: Mapping[str, Tensor]) -> tuple[int, str]:
    raise OSError(28, "No space left on device")


def test_a_write_that_failed_is_told_once_by_whoever_looks_first(writer, monkeypatch) -> None:
    writer.start(1, {"weight": torch.ones(3)}, {})
    writer.wait()
    monkeypatch.setattr(checkpoint, "write_tensors", fail)
    writer.start(2, {"weight": torch.ones(3)}, {})
    assert writer._thread is not None
    writer._thread.join()
    with pytest.raises(WorkError, match="No space left on device.*the last good checkpoint is that of step 1"):
        writer.check()
    writer.wait()
    writer.start(3, {"weight": torch.ones(3)}, {})
    with pytest.raises(WorkError, match="No space left"):
        writer.start(4, {"weight": torch.ones(3)}, {})


TINY = ["batch=8", "steps=6", "precision=fp32", "data.workers=0", "model.dim=16", "model.depth=1", "model.image=32",
        "method.num_prototypes=16", "method.hidden=8", "method.bottleneck=8", "method.num_local=1",
        "method.global_size=32", "method.local_size=16", "optim.warmup_epochs=0", "knn.every_epochs=0",
        "log.tensorboard=false", "checkpoint.keep=9"]  # fmt: skip


def run(folder: Path, *settings: str) -> None:
    pretrain("dino_vit_tiny64", data="shapes:size=32,n=16", run=folder, set=[*TINY, *settings], device="cpu")


def test_checkpoints_are_written_after_minutes_as_well_as_after_steps(tmp_path: Path) -> None:
    run(tmp_path / "often", "checkpoint.every_minutes=1e-9")
    assert Checkpoints(tmp_path / "often/checkpoints", keep=9).steps() == [0, 1, 2, 3, 4, 5, 6]
    run(tmp_path / "seldom", "checkpoint.every_minutes=100", "checkpoint.every_steps=4")
    assert Checkpoints(tmp_path / "seldom/checkpoints", keep=9).steps() == [4, 6]


def test_a_run_whose_write_fails_stops_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "run", "checkpoint.every_steps=2", "steps=2")
    monkeypatch.setattr(checkpoint, "write_tensors", fail)
    with pytest.raises(WorkError, match="step-00000002.safetensors could not be written"):
        run(tmp_path / "other", "checkpoint.every_steps=2")
