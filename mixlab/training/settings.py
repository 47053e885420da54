"""Settings of a run on the command line: `--set a.b=c`.

What is unknown is an error. One parser for all settings, and not the flags that tyro makes of nested dataclasses:
`model.` takes any field of any backbone, ours or timm's, which no dataclass lists; `compile=true` and
`local_scale=0.1,0.4` would be written in another way; and a wrong name is answered with the nearest one.
"""

import json
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Union, get_args, get_origin, get_type_hints

from mixlab.backbones.zoo import check_fields, known_fields
from mixlab.errors import InputError, did_you_mean
from mixlab.run.codec import check, to_json
from mixlab.training.config import MethodConfig, ModelConfig, TrainConfig
from mixlab.training.schedules import SCHEDULES

WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def override(config: TrainConfig, settings: Iterable[str]) -> TrainConfig:
    """Apply settings such as `optim.lr=1e-3`, `model.dim=64` or `method.local_scale=0.1,0.4`; of one name, the last.

    All at once, so that two that only fit together may come in any order. Where they name another model, fields that
    the config has for its own and the other lacks are dropped.
    """
    changes: dict[str, Any] = {}
    pairs: dict[str, str] = {}
    for setting in settings:
        path, equals, text = (part.strip() for part in setting.partition("="))
        if not equals:
            raise InputError(f"setting {setting!r} has no value; write it like optim.lr=1e-3")
        pairs[path] = text
    if "model.name" in pairs:
        config = replace(config, model=_with_fields_for(config.model, pairs["model.name"]))
    for path, text in pairs.items():
        _add(changes, config, path.split("."), text, config, path)
    changed: TrainConfig = _rebuilt(config, changes)
    check_fields(changed.model.name, changed.model.fields)  # before anything is built
    check_effects(changed, pairs)
    return changed


def with_method(config: TrainConfig, method: type[MethodConfig], **settings: Any) -> TrainConfig:
    """The same training by another method of the same kind, such as another `ViewsConfig` or `SupervisedConfig`.

    What both kinds have keeps the recipe's values: views, crops, augmentation. `settings` are the method's own.
    """
    shared = next(base for base in method.__mro__ if isinstance(config.method, base))
    if not is_dataclass(shared) or not fields(shared):
        raise InputError(
            f"{method.__name__} has no settings in common with {type(config.method).__name__}, the method of this "
            "recipe; start from a recipe of its own kind"
        )
    if unknown := [name for name in settings if name not in {field.name for field in fields(method)}]:
        hint = did_you_mean(unknown[0], [field.name for field in fields(method)], otherwise="see its class")
        raise InputError(f"{method.__name__} has no setting {unknown[0]!r}; {hint}")
    kept = {field.name: getattr(config.method, field.name) for field in fields(shared)}
    return replace(config, method=method(**{**kept, **settings}))


def _has_no_drops(decay: str) -> bool:
    return decay != "drops" and SCHEDULES.origin(decay) is None  # a plugin's may have any


# Settings that another one overrules: which, by which, when, and what holds instead.
OVERRULED: tuple[tuple[tuple[str, ...], str, Callable[[TrainConfig], bool], str], ...] = (
    (("epochs",), "steps", lambda c: c.steps is not None, "this recipe counts steps"),
    (("optim.warmup_epochs",), "optim.warmup_steps", lambda c: c.optim.warmup_steps is not None,
     "this recipe warms up for a number of steps"),
    (("optim.drop_epochs",), "optim.decay", lambda c: _has_no_drops(c.optim.decay),
     "this recipe has no drops"),
    (("knn.bank", "knn.queries", "knn.k", "knn.temperature"), "knn.every_epochs", lambda c: c.knn.every_epochs == 0,
     "this recipe has no live kNN"),
)  # fmt: skip


def check_effects(config: TrainConfig, given: Collection[str]) -> None:
    """Refuse settings that would change nothing. Where what overrules one was given beside it, that was meant."""
    for names, by, holds, why in OVERRULED:
        for name in names:
            if name in given and by not in given and holds(config):
                value = to_json(config)
                for part in by.split("."):
                    value = value[part]
                raise InputError(f"{name} has no effect: {why} ({by}={value}); set {by}, or {by}=none beside it")
    for name in given:
        if name.startswith(config.method.unused or ("\0",)):
            raise InputError(f"{name} has no effect on {config.method.title}; leave it out")


def setting_names(config: Any, prefix: str = "") -> list[str]:
    """Every setting of a config, dotted."""
    names: list[str] = []
    for field in fields(config):
        value = getattr(config, field.name)
        names += setting_names(value, f"{prefix}{field.name}.") if is_dataclass(value) else [f"{prefix}{field.name}"]
    return names


def _with_fields_for(model: ModelConfig, name: str) -> ModelConfig:
    """The model without the fields that one of another name does not have."""
    if name == model.name:
        return model
    known = known_fields(name)
    if known is not None and known_fields(model.name) is not None:
        return replace(model, fields={key: value for key, value in model.fields.items() if key in known})
    same_family = model.name.partition("_")[0] == name.partition("_")[0]  # of timm's, as mambaout_tiny and _femto
    return model if same_family else replace(model, fields={})


def _add(changes: dict[str, Any], node: Any, path: list[str], text: str, root: TrainConfig, whole: str) -> None:
    """Put one setting into nested `changes` of a config's node."""
    key, *rest = path
    known = {field.name for field in fields(node)}
    if isinstance(node, ModelConfig) and key not in known and not rest:
        changes.setdefault("fields", dict(node.fields))[key] = _guess(text)
    elif isinstance(node, ModelConfig) and key == "fields" and rest:
        raise InputError(f"unknown setting {whole!r}; did you mean model.{'.'.join(rest)}?")
    elif key not in known or (is_dataclass(getattr(node, key)) != bool(rest)):
        raise InputError(f"unknown setting {whole!r}; {_nearest(whole, setting_names(root))}")
    elif rest:
        _add(changes.setdefault(key, {}), getattr(node, key), rest, text, root, whole)
    else:
        changes[key] = _parse(get_type_hints(type(node))[key], text, whole)


def _rebuilt(node: Any, changes: Mapping[str, Any]) -> Any:
    """The node with all its changes, checked once."""
    parts = {
        key: _rebuilt(getattr(node, key), value) if is_dataclass(getattr(node, key)) else value
        for key, value in changes.items()
    }
    return replace(node, **parts)


def _nearest(name: str, known: list[str]) -> str:
    by_last_word = [other for other in known if other.rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1]]
    if by_last_word:
        return f"did you mean {' or '.join(by_last_word)}?"
    return did_you_mean(name, known, otherwise=f"settings are {', '.join(known)}")


def _parse(hint: Any, text: str, where: str) -> Any:
    """Text to what a field takes."""
    if get_origin(hint) in (Union, types.UnionType):
        if text.lower() in ("none", "null") and type(None) in get_args(hint):
            return None
        hint = next(option for option in get_args(hint) if option is not type(None))
    if get_origin(hint) is tuple:
        parts = text.strip("()[] ").split(",")
        if len(parts) != len(get_args(hint)):
            raise InputError(f"{where} is {text!r}; expected {len(get_args(hint))} values with commas between")
        return tuple(_parse(kind, part.strip(), where) for kind, part in zip(get_args(hint), parts, strict=True))
    value: Any = text
    if hint is bool:
        value = WORDS.get(text.lower(), text)
    elif hint in (int, float) or get_origin(hint) is dict:
        value = _guess(text)
    return check(hint, value, where)


def _guess(text: str) -> Any:
    """JSON where it is JSON, True and False as Python writes them, otherwise the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return {"True": True, "False": False}.get(text, text)
