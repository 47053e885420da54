"""Configs as JSON and back, strictly: what a config does not know is an error, not a guess."""

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from mixlab.backbones.isotropic import IsotropicConfig
from mixlab.errors import InputError
from mixlab.mixers import MIXERS, MixerConfig


def config_to_json(config: IsotropicConfig) -> dict[str, Any]:
    """All fields, with `kind` naming the mixer."""
    return _to_json(config)


def config_from_json(values: Mapping[str, Any]) -> IsotropicConfig:
    """The config that `config_to_json` wrote; fields that are left out take their defaults."""
    return _from_json(IsotropicConfig, values, where="config")


def _to_json(config: Any) -> dict[str, Any]:
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    values = {name: _to_json(value) if is_dataclass(value) else value for name, value in values.items()}
    return {"kind": config.kind, **values} if isinstance(config, MixerConfig) else values


def _from_json(cls: type[Any], values: object, where: str) -> Any:
    if not isinstance(values, Mapping):
        raise InputError(f"{where} must be an object with fields, got {values!r}")
    values = dict(values)
    if cls is MixerConfig:
        kind = values.pop("kind", None)
        if kind not in MIXERS:
            raise InputError(f"{where}.kind is {kind!r}; choose one of {', '.join(MIXERS)}")
        cls = MIXERS[kind]
    hints, known = get_type_hints(cls), {field.name: field for field in fields(cls)}
    for name in values:
        if name not in known:
            near = get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"fields are {', '.join(known)}"
            raise InputError(f"{where} has no field {name!r}; {hint}")
    required = [name for name, field in known.items() if field.default is MISSING and field.default_factory is MISSING]
    if missing := [name for name in required if name not in values]:
        raise InputError(f"{where} lacks {', '.join(missing)}; give a value for each")
    return cls(**{name: _value(hints[name], value, f"{where}.{name}") for name, value in values.items()})


def _value(hint: Any, value: object, where: str) -> Any:
    if is_dataclass(hint):
        return _from_json(hint, value, where)  # type: ignore[arg-type]
    if not _fits(hint, value):
        raise InputError(f"{where} is {value!r}; expected {_rule(hint)}")
    return value


def _fits(hint: Any, value: object) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        return any(_fits(option, value) for option in get_args(hint))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is hint  # exactly: True is not an int here


def _rule(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(repr, get_args(hint)))}"
    return getattr(hint, "__name__", str(hint)) if isinstance(hint, type) else str(hint)
