"""The backbone of a run that was stopped: out of its newest checkpoint, as its recipe would export it."""

from pathlib import Path

import torch

from mixlab.backbones.backbone import Backbone
from mixlab.backbones.weights import build_architecture
from mixlab.commands.output import console
from mixlab.evaluation.methods import METHODS, train_config
from mixlab.run import RunDirectory
from mixlab.training.checkpoint import Checkpoints


def load_unfinished(run: RunDirectory) -> tuple[Backbone, Path]:
    """The backbone, for DINO the teacher's, and the file its tensors come from."""
    config = run.read_config() if (run.path / "config.json").is_file() else {}
    found = Checkpoints(run.path / "checkpoints", keep=1).newest(_warn)
    if found is None or config.get("settings", {}).get("method", {}).get("kind") not in METHODS:
        raise FileNotFoundError(
            f"{run.path} has no exported weights (weights.safetensors); run the same command again to finish it"
        )
    with torch.random.fork_rng(devices=[]):
        recipe = train_config(config["settings"]).method.build(
            build_architecture(config["architecture"]),
            num_classes=len(config["classes"]),
            total_steps=config["total_steps"],
            steps_per_epoch=config["steps_per_epoch"],
        )
    stored = {name: tensor for name, tensor in found.tensors() if not name.startswith("optimizer/")}
    for prefix, module in recipe.modules().items():
        module.load_state_dict(
            {name.removeprefix(f"{prefix}/"): value for name, value in stored.items() if name.startswith(f"{prefix}/")}
        )
    trained = recipe.exported()
    backbone = build_architecture(trained.architecture())  # the recipe's may drop paths and refuse gradients
    backbone.load_state_dict(trained.state_dict())
    _warn(f"{run.path} is not finished: these are the weights of step {found.step} of {config['total_steps']}")
    return backbone, found.tensor_file


def _warn(text: str) -> None:
    console.print(text, style="yellow", highlight=False)
