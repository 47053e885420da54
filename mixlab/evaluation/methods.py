"""The table of training methods by the `kind` that config.json stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mixlab.evaluation.detection.recipe import DetectionConfig
from mixlab.evaluation.segmentation.recipe import SegmentConfig
from mixlab.run.codec import from_json
from mixlab.training.config import MethodConfig, TrainConfig
from mixlab.training.dino import DinoConfig
from mixlab.training.lejepa import LeJepaConfig
from mixlab.training.settings import as_recorded, check_model
from mixlab.training.supervised import SupervisedConfig

METHODS: dict[str, type[MethodConfig]] = {
    "dino": DinoConfig,
    "lejepa": LeJepaConfig,
    "supervised": SupervisedConfig,
    "segment": SegmentConfig,
    "detect": DetectionConfig,
}


def train_config(settings: Mapping[str, Any]) -> TrainConfig:
    """The config of a training run from the settings in its config.json; newer fields are what the run did without."""
    before = settings.get("method")
    method = METHODS.get(str(before.get("kind"))) if isinstance(before, Mapping) else None
    stored = settings if method is None else as_recorded(settings, method)
    config = from_json(TrainConfig, stored, kinds={MethodConfig: METHODS}, where="settings")
    check_model(config.model)
    return config
