"""`mixlab models`: the backbones with their parameters, multiply-accumulates and mixers."""

import gc
from fnmatch import fnmatch
from typing import Annotated, Any

import tyro

from mixlab.commands.answer import WideAnswer
from mixlab.commands.options import Flat
from mixlab.errors import InputError, check_counts, did_you_mean


def models(
    pattern: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PATTERN")] = "*",
    answer: Flat[WideAnswer] = WideAnswer(),
    *,
    image: int = 224,
) -> dict[str, Any]:
    """List the backbones, and the trained networks that come with mixlab: parameters, multiply-accumulates, mixer.

    Args:
        pattern: a name, a part of names such as vim, or a shell pattern such as "shipped/*"; "timm/NAME" shows one of
            timm's models.
        image: image size in pixels for the multiply-accumulates.
    """
    from mixlab.backbones.zoo import SHIPPED, list_models
    from mixlab.ops.backend import backend_name

    answer.check()
    check_counts(image=image)
    known = [*SHIPPED, *list_models()]
    names = [pattern] if pattern.startswith("timm/") else [name for name in known if fnmatch(name, pattern)]
    names = names or [name for name in known if pattern in name]
    if not names:
        hint = did_you_mean(pattern, known, otherwise="`mixlab models` without a pattern lists all")
        raise InputError(f"no model matches {pattern!r}; {hint}")
    counted: dict[Any, Any] = {}  # families have layers in common
    collects = gc.isenabled()
    gc.disable()  # there is little garbage, and looking for it in all of torch is a seventh of the time
    try:
        rows = [_row(name, image, counted) for name in names]
    finally:
        if collects:
            gc.enable()
    columns = [column.replace("_", " ") for column in rows[0]]
    title = f"Backbones; GMACs: billions of multiply-adds for an image of {image} px"
    answer.table(title, columns, [list(row.values()) for row in rows], more=("with classifier M", "dim"))
    return answer.emit({"image": image, "backend": backend_name(), "models": rows})


def _row(name: str, image: int, known: dict[Any, Any]) -> dict[str, Any]:
    from mixlab.analysis.cost import count_macs, count_parameters, count_with_classifier, on_meta
    from mixlab.backbones.zoo import SHIPPED, ZOO

    model = on_meta(name)
    return {
        "name": name,
        "params_M": round(count_parameters(model) / 1e6, 2),
        "with_classifier_M": round(count_with_classifier(model) / 1e6, 2),
        "GMACs": round(count_macs(model, image, known=known) / 1e9, 2),
        "dim": model.dim,
        "mixer": "see timm" if model.family == "other" and ZOO.origin(name) is None else model.family,
        "source": "trained with DINO" if name in SHIPPED else ZOO[name].source if name in ZOO else "timm",
    }
