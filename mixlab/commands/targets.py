"""TARGET on the command line: a run, a file of `export`, a name of the zoo, `shipped/NAME` or `timm/NAME`; optionally
`=LABEL` after it."""

from dataclasses import dataclass
from pathlib import Path

import torch

from mixlab.backbones import shipped
from mixlab.backbones.backbone import Backbone
from mixlab.backbones.weights import model_from_file
from mixlab.backbones.zoo import create_model
from mixlab.commands.unfinished import load_unfinished
from mixlab.errors import InputError
from mixlab.run import RunDirectory


@dataclass
class Target:
    """A backbone to look at, ready for evaluation, under the label it has in tables."""

    label: str
    model: Backbone
    weights: str | None  # where the weights come from; None: untrained
    training: str | None = None  # how they were learnt, where that is known


def split_target(text: str) -> tuple[str, str]:
    """TARGET=LABEL as what is named and its label, "" without one; a path that is there may have `=` in its name."""
    if "=" not in text or Path(text).exists():
        return text, ""
    name, _, label = text.rpartition("=")
    return name, label


def label_of(text: str) -> str:
    """What a TARGET is called in tables: as asked, a run and a file by its own name, a model by its full one."""
    name, label = split_target(text)
    place = Path(name)
    return label or (place.name if place.is_dir() else place.stem if place.is_file() else name)


def load_target(text: str, *, weights: str | None = None, seed: int = 0) -> Target:
    """Load what TARGET names. A run and a file bring their own weights; a name takes `weights`, or stays untrained,
    drawn from the seed."""
    name, label = split_target(text)[0], label_of(text)
    place = Path(name)
    if weights and place.exists():
        kind = "run" if place.is_dir() else "file"
        raise InputError(f"{name} is a {kind} and has weights of its own; leave out --weights or name a model")
    if place.is_dir():
        exported = place / "weights.safetensors"
        if exported.is_file():
            return Target(label, model_from_file(exported).eval(), str(exported))
        model, file = load_unfinished(RunDirectory.open(name))
        return Target(label, model.eval(), str(file))
    if place.is_file():
        return Target(label, model_from_file(place).eval(), name)
    if name in shipped.NAMES and weights is None:
        return Target(label, shipped.load_shipped(name).eval(), name, training=shipped.TRAINING)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # as an untrained twin is
        return Target(label, create_model(name, weights=weights).eval(), weights)
