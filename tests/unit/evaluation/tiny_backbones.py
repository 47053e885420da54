"""A tiny backbone, a drawn data set, and what the tests of this folder do with them."""

from contextlib import nullcontext
from pathlib import Path

import torch

import mixlab
from mixlab.backbones.backbone import Backbone
from mixlab.data.labelled import LabelledSplits, labelled_splits
from mixlab.evaluation.machine import Machine, no_bar
from mixlab.evaluation.probe import ProbeSettings, evaluate_linear_probe
from mixlab.evaluation.probe.result import GridScores
from mixlab.signals import StopRequests
from mixlab.training.distributed import World

DATA = "shapes:n=44,size=16"
ALONE = World(torch.device("cpu"))
PLAIN = nullcontext


def tiny_backbone(seed: int = 0) -> Backbone:
    torch.manual_seed(seed)
    model = mixlab.create_model("dinovim_tiny", dim=16, depth=2, image=16, patch=4, head_dim=8, state=8)
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


def run_tiny(folder: Path, settings: ProbeSettings, *, world: World = ALONE, bar=no_bar, **options) -> GridScores:
    """One mode; FOLDER/probe/MODE is its place."""
    machine = Machine(world, features=folder / "features", bar=bar)
    with StopRequests() as stop:
        found = evaluate_linear_probe(
            tiny_backbone(), tiny_splits(), settings, machine=machine, folder=folder / "probe", stop=stop, **options
        )
    (scores,) = found.scores.values()
    return scores
