"""`mixlab models`: the backbones with their parameters, multiply-accumulates and mixers."""

from typing import Annotated, Any

import tyro

from mixlab.analysis.cost import count_macs, count_parameters, count_with_classifier, on_meta
from mixlab.backbones.zoo import ZOO, list_models
from mixlab.commands.options import Json
from mixlab.commands.output import emit, table
from mixlab.errors import InputError
from mixlab.ops.backend import backend_name


def models(
    pattern: Annotated[str, tyro.conf.Positional] = "*", *, image: int = 224, json: Json = None
) -> dict[str, Any]:
    """List the backbones: parameters, multiply-accumulates, mixer and source.

    Args:
        pattern: a shell pattern such as "dinovim_*"; "timm/NAME" shows one of timm's models.
        image: image size in pixels for the multiply-accumulates.
    """
    names = [pattern] if pattern.startswith("timm/") else list_models(pattern)
    if not names:
        raise InputError(f"no model matches {pattern!r}; `mixlab models` without a pattern lists all")
    rows = [_row(name, image) for name in names]
    columns = list(rows[0])
    title = f"Backbones at {image} px; the scan runs on {backend_name()}"
    table(title, [column.replace("_", " ") for column in columns], [list(row.values()) for row in rows])
    return emit({"image": image, "backend": backend_name(), "models": rows}, json)


def _row(name: str, image: int) -> dict[str, Any]:
    model = on_meta(name)
    return {
        "name": name,
        "params_M": round(count_parameters(model) / 1e6, 2),
        "with_classifier_M": round(count_with_classifier(model) / 1e6, 2),
        "GMACs": round(count_macs(model, image) / 1e9, 2),
        "dim": model.dim,
        "mixer": _mixer_of(name, model.family),
        "source": ZOO[name].source if name in ZOO else "timm",
    }


def _mixer_of(name: str, family: str) -> str:
    """Of what is no mixer of ours, where to look."""
    entry = ZOO.get(name)
    by_timm = entry is None or isinstance(entry.config, str)
    return "see timm" if family == "other" and by_timm else family
