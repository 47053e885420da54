"""Which device: alike for every command, with one sentence where there is no such device."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from mixlab.training.distributed import World, choose_device, distribute, join_world


def pretend(monkeypatch: pytest.MonkeyPatch, num_gpus: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: num_gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)


@pytest.mark.parametrize(("num_gpus", "kind"), [(0, "cpu"), (2, "cuda")])
@pytest.mark.parametrize("text", ["auto", None])
def test_auto_is_a_gpu_where_there_is_one(
    text: str | None, num_gpus: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, num_gpus)
    assert choose_device(text) == torch.device(kind)


def test_other_devices_are_taken_at_their_word(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 2)
    for text in ("cpu", "cuda", "cuda:0", "cuda:1"):
        assert choose_device(text) == torch.device(text)


@pytest.mark.parametrize(
    ("text", "num_gpus", "words"),
    [
        ("cuda", 0, "device 'cuda', but torch sees no GPU here"),
        ("cuda:0", 0, "device 'cuda:0', but torch sees no GPU here"),
        ("cuda:1", 1, "device 'cuda:1', but torch sees 1 GPU here, counted from 0"),
        ("cuda:7", 4, "device 'cuda:7', but torch sees 4 GPUs here, counted from 0"),
        ("gpu", 1, "device 'gpu' does not exist; choose auto, cpu, cuda or cuda:N"),
        ("cuda:", 1, "device 'cuda:' does not exist"),
        ("meta", 1, "device 'meta' does not exist"),
    ],
)
def test_a_device_that_is_not_there_gets_a_sentence(
    text: str, num_gpus: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, num_gpus)
    with pytest.raises(ValueError, match=words):
        choose_device(text)
    with pytest.raises(ValueError, match=words), join_world(text):
        pass


def test_the_world_takes_auto_and_none_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 0)
    for text in ("auto", None, "cpu"):
        with join_world(text) as world:
            assert world == World(torch.device("cpu"))


@pytest.mark.parametrize(
    ("text", "ranks", "chosen"),
    [("auto", True, "cuda:1"), ("cuda", True, "cuda:1"), ("cuda:0", True, "cuda:0"), ("cuda:1", False, "cuda:1")],
)
def test_the_gpu_of_a_process_becomes_the_current_one(
    text: str, ranks: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, 2)
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    for name in ("init_process_group", "destroy_process_group"):
        monkeypatch.setattr(torch.distributed, name, lambda *options: None)
    told = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "here"}
    for name, value in told.items():
        monkeypatch.setenv(name, value) if ranks else monkeypatch.delenv(name, raising=False)
    with join_world(text) as world:
        assert replace(world, cores=None, is_first_here=True) == (
            World(torch.device(chosen), 3, 4) if ranks else World(torch.device(chosen))
        )
    assert current == [torch.device(chosen)]


def test_half_of_what_torchrun_sets_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(ValueError, match="not MASTER_ADDR; start with torchrun"), join_world("cpu"):
        pass


def test_torch_has_nothing_to_say_about_how_a_network_is_distributed(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        recipe: Any = SimpleNamespace(network=torch.nn.Linear(2, 2))
        distribute(recipe, "ddp", world=World(torch.device("cpu"), 0, 2), find_unused=False)
        synchronises = [name for name in ("forward_sync_buffers", "broadcast_buffers") if hasattr(recipe.run, name)]
        assert not getattr(recipe.run, synchronises[0]), "by the name that this torch knows"
    finally:
        dist.destroy_process_group()
    assert not [warning for warning in recwarn if "broadcast_buffers" in str(warning.message)]
