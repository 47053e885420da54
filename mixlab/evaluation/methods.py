"""The table of training methods by the `kind` that config.json stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from mixlab.backbones.zoo import check_fields
from mixlab.errors import InputError
from mixlab.evaluation.detection.recipe import DetectionConfig
from mixlab.evaluation.segmentation.recipe import SegmentConfig
from mixlab.plugins import Registry, check_class
from mixlab.run.codec import from_json
from mixlab.training.config import MethodConfig, TrainConfig
from mixlab.training.dino import DinoConfig
from mixlab.training.lejepa import LeJepaConfig
from mixlab.training.stored_settings import as_recorded
from mixlab.training.supervised import SupervisedConfig

METHODS: Registry[type[MethodConfig]] = Registry(
    "method",
    {
        "dino": DinoConfig,
        "lejepa": LeJepaConfig,
        "supervised": SupervisedConfig,
        "segment": SegmentConfig,
        "detect": DetectionConfig,
    },
)
COMMANDS = ("pretrain", "train")  # that run methods from outside
C = TypeVar("C", bound=type[MethodConfig])


def register_method(method: C) -> C:
    """Register a training method under the `kind` of its config; a decorator of the config's class.

    `mixlab pretrain` runs its recipes, or `mixlab train` where the class says `command = "train"`.
    """
    check_class("method", method, MethodConfig)
    if not isinstance(getattr(method, "title", None), str):
        raise InputError(f'{method.__name__} has no title; add a line such as `title: ClassVar[str] = "My method"`')
    if method.command not in COMMANDS:
        raise InputError(f"{method.__name__}.command is {method.command!r}; choose {' or '.join(COMMANDS)}")
    METHODS[method.kind] = method
    return method


def train_config(settings: Mapping[str, Any]) -> TrainConfig:
    """The config of a training run from the settings in its config.json; newer fields are what the run did without."""
    before = settings.get("method")
    method = METHODS.get(str(before.get("kind"))) if isinstance(before, Mapping) else None
    stored = settings if method is None else as_recorded(settings, method)
    config = from_json(TrainConfig, stored, kinds={MethodConfig: METHODS}, where="settings")
    check_fields(config.model.name, config.model.fields)  # before anything is built
    return config
