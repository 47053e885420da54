"""A tiny backbone, a drawn data set, and what the tests of this folder do with them."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch

import mixlab
from mixlab.backbones.backbone import Backbone
from mixlab.data.labelled import LabelledSplits, labelled_splits
from mixlab.evaluation.probe_run import Machine, ProbeOutcome, ProbeSettings, run_probe
from mixlab.training.distributed import World
from mixlab.training.stopping import StopRequests

DATA = "shapes:n=44,size=16"
ALONE = World(torch.device("cpu"))
PLAIN = nullcontext


def tiny_backbone(seed: int = 0) -> Backbone:
    torch.manual_seed(seed)
    model = mixlab.create_model("dinovim_tiny", dim=16, depth=3, image=16, patch=4, head_dim=8, state=8)
    return model.eval().requires_grad_(False)


def tiny_splits() -> LabelledSplits:
    return labelled_splits(DATA)


def tiny_settings(**changes) -> ProbeSettings:
    defaults = {
        "blocks": (1, 2),
        "strategies": ("cls", "cls+mean"),
        "source": "branch",
        "image": 16,
        "lrs": (0.1, 1.0),
        "weight_decays": (0.0, 1e-2),
        "epochs": 3,
        "batch": 12,
        "seed": 5,
    }
    return ProbeSettings(**{**defaults, **changes})


@contextmanager
def no_bar(description: str, total: int) -> Iterator[object]:
    yield lambda count: None


def run_tiny(folder: Path, settings: ProbeSettings, *, world: World = ALONE, bar=no_bar, **options) -> ProbeOutcome:
    machine = Machine(world=world, folder=folder / "probe", features=folder / "features", **options)
    with StopRequests() as stop:
        return run_probe(tiny_backbone(), tiny_splits(), settings, machine, data=DATA, stop=stop, bar=bar)
