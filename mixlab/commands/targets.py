"""TARGET on the command line: a run, a name of the zoo, `shipped/NAME` or `timm/NAME`; optionally `=LABEL` after it."""

from dataclasses import dataclass
from pathlib import Path

from mixlab.backbones import shipped
from mixlab.backbones.backbone import Backbone
from mixlab.backbones.weights import model_from_file
from mixlab.backbones.zoo import create_model
from mixlab.run import RunDirectory


@dataclass
class Target:
    """A backbone to look at, ready for evaluation, under the label it has in tables."""

    label: str
    model: Backbone
    weights: str | None  # where the weights come from; None: untrained
    training: str | None = None  # how they were learnt, where that is known


def load_target(text: str, *, weights: str | None = None) -> Target:
    """Load what TARGET names. A run brings its own exported weights; a name takes `weights`, or stays untrained."""
    name, _, label = text.partition("=")
    exported = Path(name) / "weights.safetensors"
    if Path(name).is_dir():
        if weights:
            raise ValueError(f"{name} is a run and has weights of its own; leave out --weights or name a model")
        if not exported.is_file():
            RunDirectory.open(name)
            raise FileNotFoundError(
                f"{name} has no exported weights (weights.safetensors); finish or export the run first"
            )
        return Target(label or Path(name).name, model_from_file(exported).eval(), str(exported))
    if name in shipped.NAMES and weights is None:
        return Target(label or name, shipped.load_shipped(name).eval(), name, training=shipped.TRAINING)
    return Target(label or name, create_model(name, weights=weights).eval(), weights)
