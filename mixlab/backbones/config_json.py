"""Configs of our backbones as JSON and back, strictly (`mixlab.run.codec`)."""

from collections.abc import Mapping
from typing import Any

from mixlab.backbones.isotropic import IsotropicConfig
from mixlab.mixers import MIXERS, MixerConfig
from mixlab.run.codec import from_json, to_json


def config_to_json(config: IsotropicConfig) -> dict[str, Any]:
    """All fields, with `kind` naming the mixer."""
    return to_json(config)


def config_from_json(values: Mapping[str, Any]) -> IsotropicConfig:
    """The config that `config_to_json` wrote; fields that are left out take their defaults."""
    return from_json(IsotropicConfig, values, kinds={MixerConfig: MIXERS})
