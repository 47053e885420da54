"""Dataclasses to JSON and back, strictly: unknown fields and wrong types are errors.

Where a field may hold one of several classes, their `kind` is stored beside their fields, and a table by `kind` says
which class to make: `from_json(TrainConfig, values, kinds={MethodConfig: {"dino": DinoConfig, ...}})`.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from mixlab.errors import InputError, did_you_mean, short
from mixlab.plugins import Registry

T = TypeVar("T")
Kinds = Mapping[type[Any], Mapping[str, type[Any]]]  # for each base class: its subclasses by `kind`


def to_json(config: Any) -> dict[str, Any]:
    """All fields, with `kind` first where the class has one; tuples become lists."""
    values = {field.name: _plain(getattr(config, field.name)) for field in fields(config)}
    kind = getattr(type(config), "kind", None)
    return values if kind is None else {"kind": kind, **values}


def from_json(cls: type[T], values: object, *, kinds: Kinds | None = None, where: str = "config") -> T:
    """The dataclass that `to_json` wrote; fields that are left out take their defaults. `where` is for errors."""
    if not isinstance(values, Mapping):
        raise InputError(f"{where} must be an object with fields, got {values!r}")
    values, kinds = dict(values), kinds or {}
    made: Any = cls
    if cls in kinds:
        kind = values.pop("kind", None)
        if kind not in kinds[cls]:
            load = ", or load the plugin that adds it (mixlab --import)" if isinstance(kinds[cls], Registry) else ""
            raise InputError(f"{where}.kind is {kind!r}; choose one of {', '.join(kinds[cls])}{load}")
        made = kinds[cls][kind]
    hints, known, required = _fields_of(made)
    for name in values:
        if name not in known:
            hint = did_you_mean(str(name), known, otherwise=f"fields are {', '.join(known)}")
            raise InputError(f"{where} has no field {name!r}; {hint}")
    if missing := [name for name in required if name not in values]:
        raise InputError(f"{where} lacks {', '.join(missing)}; give a value for each")
    read = {name: check(hints[name], value, f"{where}.{name}", kinds) for name, value in values.items()}
    return cast(T, made(**read))


def check_values(
    cls: Any, values: Mapping[str, Any], kinds: Kinds | None = None, *, prefix: str = ""
) -> dict[str, Any]:
    """Values for known fields of a dataclass, in their types; numpy's numbers become Python's."""
    hints, _, _ = _fields_of(cls)
    return {name: check(hints[name], _in_python(value), prefix + name, kinds) for name, value in values.items()}


def check(hint: Any, value: object, where: str, kinds: Kinds | None = None) -> Any:
    """A JSON value as a field of that type holds it: lists become tuples, and whole numbers floats where it has those.
    An object of the field's own class stays as it is.

    Otherwise types must be equal (True is not an int); if not, `InputError` names the value, the rule and `where`.
    """
    if type(value) in _kept_as_they_are(hint):
        return value
    for option in _options(hint):
        if value is not None and (is_dataclass(option) or option in (kinds or {})):
            return value if isinstance(value, option) else from_json(option, value, kinds=kinds, where=where)
    try:
        return _fit(hint, value)
    except _Misfit:
        raise InputError(f"{where} is {short(value, 200)}; expected {_rule(hint)}") from None


def differences(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Dotted names of what two JSON objects set differently, with both values."""
    found: dict[str, tuple[Any, Any]] = {}
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found |= differences(old, new, f"{prefix}{key}.")
        elif old != new:
            found[f"{prefix}{key}"] = (old, new)
    return found


@cache  # a study has thousands of records of a few classes
def _fields_of(cls: Any) -> tuple[dict[str, Any], dict[str, Field[Any]], tuple[str, ...]]:
    """The types of a dataclass's fields, and the fields, by name; and which of them have no default."""
    known = {field.name: field for field in fields(cls)}
    required = [name for name, field in known.items() if field.default is MISSING and field.default_factory is MISSING]
    return get_type_hints(cls), known, tuple(required)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return to_json(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _in_python(value: Any) -> Any:
    """NumPy's numbers, also those in lists, as Python's."""
    if type(value) in (list, tuple):
        return type(value)(map(_in_python, value))
    return value.item() if isinstance(value, np.generic) else value


class _Misfit(Exception):  # noqa: N818  never seen outside
    pass


def _fit(hint: Any, value: Any) -> Any:
    """`value` in the type of `hint`."""
    if (options := _options(hint)) != (hint,):
        for option in options:
            with suppress(_Misfit):
                return _fit(option, value)
        raise _Misfit
    if get_origin(hint) is tuple:
        return _fit_tuple(get_args(hint), value)
    if hint is float and type(value) is int and abs(value) < 2**1023:
        return float(value)
    fits = value in get_args(hint) if get_origin(hint) is Literal else type(value) is (get_origin(hint) or hint)
    if not fits and hint is not Any:
        raise _Misfit
    return value


def _fit_tuple(hints: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _Misfit
    each = hints[:1] * len(value) if hints[1:] == (...,) else hints
    if len(each) != len(value):
        raise _Misfit
    return tuple(_fit(hint, item) for hint, item in zip(each, value, strict=True))


def _rule(hint: Any) -> str:
    """The expected type of a value, as text."""
    if (options := _options(hint)) != (hint,):
        return " or ".join(map(_rule, options))
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    if get_origin(hint) is tuple:
        inner = get_args(hint)
        if inner[1:] == (...,):
            return f"a list of {_rule(inner[0])}"
        return f"{len(inner)} values ({', '.join(map(_rule, inner))})"
    return "None" if hint is type(None) else str((get_origin(hint) or hint).__name__)


@cache
def _kept_as_they_are(hint: Any) -> frozenset[type]:
    """The types of values that `check` returns unchanged at once, where the type holds nothing but plain values."""
    options = _options(hint)
    if not all(option in (str, bool, int, float, type(None)) for option in options):
        return frozenset()
    return frozenset(options) - ({int} if float in options else set())


@cache
def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
