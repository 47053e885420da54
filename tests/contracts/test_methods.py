"""The contract of training methods, for every one that `mixlab pretrain` or `mixlab train` runs."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mixlab.evaluation.methods import METHODS
from mixlab.evaluation.target import load_target
from mixlab.recipes import RECIPES, find_recipe
from mixlab.run.codec import to_json
from mixlab.training.config import TrainConfig
from mixlab.training.loop import train
from mixlab.training.settings import override

KINDS = [kind for kind, method in METHODS.items() if method.command in ("pretrain", "train")]
DATA = "shapes:size=32,n=16"
SIZES = ("size", "global_size")  # what methods call the side of their views
SMALL = ["steps=4", "batch=8", "data.size=none", "model.dim=32", "model.depth=1", "model.image=32", "log.every_steps=1",
         "checkpoint.every_steps=1", "checkpoint.keep=9", "knn.every_epochs=0", "optim.warmup_steps=1"]  # fmt: skip


def small(kind: str) -> TrainConfig:
    config = RECIPES[f"{kind}_vit_tiny64"]()
    sides = [f"method.{name}=32" for name in SIZES if hasattr(config.method, name)]
    local = ["method.local_size=16"] if hasattr(config.method, "local_size") else []
    return override(config, [*SMALL, *sides, *local])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of each method, made once."""
    place: Path = tmp_path_factory.mktemp("methods")
    for kind in KINDS:
        run(kind, place / kind)
    return place


def run(kind: str, place: Path) -> None:
    train(small(kind), data=DATA, run=place, device="cpu", name=f"{kind}_vit_tiny64")


def checkpoint(place: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(place / "checkpoints" / f"step-{step:08d}.safetensors")


def test_every_method_has_a_small_recipe_and_a_title() -> None:
    for kind in KINDS:
        assert f"{kind}_vit_tiny64" in RECIPES, f"add a recipe {kind}_vit_tiny64 to RECIPES: the contracts train it"
        assert METHODS[kind].kind == kind and METHODS[kind].title, f"{kind} needs its own kind, and a title"


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_finite_and_trains_the_whole_backbone(kind: str, folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / kind / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 4 and all(math.isfinite(row["loss"]) for row in rows)
    first, last = (checkpoint(folder / kind, step) for step in (1, 4))
    parts = [name for name in first if name.startswith("network/backbone.") and first[name].numel()]
    assert parts and not [name for name in parts if torch.equal(first[name], last[name])]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_drawn_and_watched_is_logged(kind: str, folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / kind / "metrics.jsonl").read_text().splitlines()]
    method, watch = METHODS[kind], small(kind).method.watch()
    assert set(method.curves) <= rows[-1].keys()
    for row in rows:
        assert watch is None or not watch.look(row["step"], row)  # four reports are too few for a warning


@pytest.mark.parametrize("kind", KINDS)
def test_settings_come_back_from_config_json(kind: str, folder: Path) -> None:
    assert to_json(find_recipe(str(folder / kind / "config.json"))) == to_json(small(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_run_is_a_target_and_resumes_to_the_same_bits(kind: str, folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "run"
    shutil.copytree(folder / kind, place)
    (place / "weights.safetensors").unlink()
    for file in (place / "checkpoints").glob("step-0000000[34].*"):
        file.unlink()
    with pytest.warns(UserWarning, match="not finished: these are the weights of step 2 of 4"):
        stopped = load_target(str(place), device="cpu")
    assert stopped.training == kind
    run(kind, place)
    whole, again = load_file(folder / kind / "weights.safetensors"), load_file(place / "weights.safetensors")
    assert whole.keys() == again.keys() and not [name for name in whole if not torch.equal(whole[name], again[name])]
