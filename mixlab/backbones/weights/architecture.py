"""What a model is, as JSON: enough to build it again."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mixlab.backbones.backbone import Architecture, Backbone
from mixlab.backbones.isotropic import Isotropic, config_from_json
from mixlab.backbones.timm_backbone import WEIGHT_SOURCES, TimmBackbone
from mixlab.backbones.weights.reading import WeightsError
from mixlab.errors import InputError
from mixlab.run.codec import differences

METADATA_KEY = "mixlab"


def build_architecture(architecture: Mapping[str, Any]) -> Backbone:
    """A fresh backbone from the `architecture()` of another."""
    match dict(architecture):
        case {"name": str(name), "config": dict(config), **rest} if not rest:
            return Isotropic(config_from_json(config), name=name)
        case {"name": str(name), "timm_name": str(timm_name), "fields": dict(fields), **rest} if not rest:
            if sent := [key for key in WEIGHT_SOURCES if key in fields]:
                raise InputError(f"field {sent[0]} says where weights come from, which an architecture may not")
            return TimmBackbone(timm_name, {key: _tuples(value) for key, value in fields.items()}, name=name)
        case other:
            raise InputError(
                f"an architecture has name and config, or name, timm_name and fields; got {', '.join(map(str, other))}"
            )


def architecture_in(metadata: Mapping[str, str], path: Path) -> Architecture | None:
    """The architecture that `save_weights` left in a file, if it wrote the file."""
    if METADATA_KEY not in metadata:
        return None
    try:
        architecture = json.loads(metadata[METADATA_KEY])
    except ValueError as error:
        raise WeightsError(f"{path} has an architecture that is not JSON ({error}); save the weights again") from error
    if not isinstance(architecture, dict) or not isinstance(architecture.get("name"), str):
        raise WeightsError(f"{path} has an architecture without a name; save the weights again")
    return architecture


def different_fields(theirs: Architecture, ours: Architecture) -> list[str]:
    """Fields that two architectures set differently; names do not count."""
    found, expected = (
        architecture.get("config") or architecture.get("fields") or {} for architecture in (theirs, ours)
    )
    return [f"{key} is {one!r}, expected {other!r}" for key, (one, other) in differences(found, expected).items()]


def _tuples(value: Any) -> Any:
    """JSON has lists where timm expects tuples."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
