"""What a model is, as JSON: enough to build it again."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mixlab.backbones.backbone import Backbone
from mixlab.backbones.config_json import config_from_json, config_to_json
from mixlab.backbones.isotropic import Isotropic
from mixlab.backbones.timm_backbone import TimmBackbone
from mixlab.backbones.weights.reading import WeightsError
from mixlab.errors import InputError

METADATA_KEY = "mixlab"
Architecture = dict[str, Any]  # {"name", "config"} or, for a model of timm's, {"name", "timm_name", "fields"}
# timm's arguments that say where weights come from; a file may not send us to fetch others.
SOURCES = ("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir")


def architecture_of(model: Backbone) -> Architecture:
    """The name and the config of a backbone."""
    if isinstance(model, Isotropic):
        return {"name": model.name, "config": config_to_json(model.config)}
    if isinstance(model, TimmBackbone):
        fields = {key: _as_json(key, value) for key, value in model.fields.items() if key not in SOURCES}
        return {"name": model.name, "timm_name": model.timm_name, "fields": fields}
    raise WeightsError(f"cannot describe a {type(model).__name__}; give an Isotropic or a TimmBackbone, unwrapped")


def build_architecture(architecture: Mapping[str, Any]) -> Backbone:
    """A fresh backbone from what `architecture_of` said of another."""
    match dict(architecture):
        case {"name": str(name), "config": dict(config), **rest} if not rest:
            return Isotropic(config_from_json(config), name=name)
        case {"name": str(name), "timm_name": str(timm_name), "fields": dict(fields), **rest} if not rest:
            if sent := [key for key in SOURCES if key in fields]:
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


def differences(theirs: Architecture, ours: Architecture) -> list[str]:
    """Fields that two architectures set differently; names do not count."""
    flat_theirs, flat_ours = ({**_flat(a.get("config") or a.get("fields") or {})} for a in (theirs, ours))
    keys = [*flat_ours, *(key for key in flat_theirs if key not in flat_ours)]
    return [
        f"{key} is {flat_theirs.get(key)!r}, expected {flat_ours.get(key)!r}"
        for key in keys
        if flat_theirs.get(key) != flat_ours.get(key)
    ]


def _as_json(key: str, value: Any) -> Any:
    try:
        return json.loads(json.dumps(value))
    except TypeError as error:
        raise WeightsError(f"field {key} is {value!r}, which JSON cannot hold; choose it by name") from error


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _tuples(value: Any) -> Any:
    """JSON has lists where timm expects tuples."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
