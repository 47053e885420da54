"""TARGET of a dense task as the model of a training config."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mixlab.errors import InputError
from mixlab.evaluation.methods import train_config
from mixlab.run import RunDirectory
from mixlab.training.config import ModelConfig, TrainConfig


def target_model(text: str, *, weights: str | None = None) -> ModelConfig:
    """What TARGET names: the exported backbone of a finished run, or a name of the zoo or of timm with `weights`."""
    if not Path(text).is_dir():
        return ModelConfig(name=text, weights=weights)
    if weights:
        raise InputError(f"{text} is a run and has weights of its own; leave out --weights or name a model")
    config = RunDirectory.open(text).read_config()
    if "settings" not in config or not (Path(text) / "weights.safetensors").is_file():
        raise FileNotFoundError(f"{text} is no finished training run (weights.safetensors); finish the run first")
    return replace(train_config(config["settings"]).model, weights=text)


def with_model(config: TrainConfig, model: ModelConfig) -> TrainConfig:
    """The config for another model. Fields that it sets for a model of the same name stay, below the model's own."""
    kept = config.model.fields if config.model.name == model.name else {}
    return replace(config, model=replace(model, fields={**kept, **model.fields}))


def training_of(model: ModelConfig) -> str:
    """How a model's backbone was trained before: the method of its run; "trained" by a file, "untrained" without."""
    if model.weights is None:
        return "untrained"
    place = Path(model.weights)
    run = RunDirectory(place if place.is_dir() else place.parent)
    if not (run.path / "config.json").is_file():
        return "trained"
    return str(run.read_config().get("settings", {}).get("method", {}).get("kind", "trained"))
