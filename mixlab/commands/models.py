"""`mixlab models`: the backbones with their parameters, multiply-accumulates and mixers."""

import gc
from fnmatch import fnmatch
from typing import Annotated, Any

import tyro

from mixlab.commands.answer import WideAnswer
from mixlab.commands.options import Flat
from mixlab.commands.output import progress_bar, warn
from mixlab.errors import InputError, check_counts, did_you_mean, few


def models(
    pattern: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PATTERN")] = "*",
    answer: Flat[WideAnswer] = WideAnswer(),
    *,
    image: int = 224,
) -> dict[str, Any]:
    """List the backbones, and the trained networks that come with mixlab: parameters, multiply-accumulates, mixer.

    Args:
        pattern: a name, a part of names such as vim, or a shell pattern such as "shipped/*". Patterns that begin with
            timm/, such as "timm/convnext*", list timm's models.
        image: image size in pixels for the multiply-accumulates.
    """
    from mixlab.backbones.zoo import SHIPPED, list_models
    from mixlab.ops.backend import backend_name

    answer.check()
    check_counts(image=image)
    is_timm = pattern.startswith("timm/")
    known = list_models("timm/*") if is_timm else [*SHIPPED, *list_models()]
    names = [name for name in known if fnmatch(name, pattern)] or [name for name in known if pattern in name]
    if not names and is_timm and not set("*?[") & set(pattern):
        names = [pattern]  # a name with the tag of its weights; of others, timm's models say what is near
    if not names:
        every = (
            "`mixlab models 'timm/*'` lists all of timm's" if is_timm else "`mixlab models` without a pattern lists all"
        )
        hint = every if is_timm else did_you_mean(pattern, known, otherwise=every)
        raise InputError(f"no model matches {pattern!r}; {hint}")
    rows = _rows(names, image)
    columns = [column.replace("_", " ") for column in rows[0]]
    title = f"Backbones; GMACs: billions of multiply-adds for an image of {image} px"
    answer.table(title, columns, [list(row.values()) for row in rows], more=("with classifier M", "dim"))
    return answer.emit({"image": image, "backend": backend_name(), "models": rows})


def _rows(names: list[str], image: int) -> list[dict[str, Any]]:
    """A row for each; those of timm's that do not take such images are named in a note."""
    rows: list[dict[str, Any]] = []
    counted: dict[Any, Any] = {}  # families have layers in common
    refused: list[str] = []
    collects = gc.isenabled()
    gc.disable()  # there is little garbage, and looking for it in all of torch is a seventh of the time
    try:
        with progress_bar("counting", len(names)) as step:
            for name in names:
                try:
                    rows.append(_row(name, image, counted))
                except (AssertionError, AttributeError, RuntimeError, ValueError) as error:  # as timm's models refuse
                    if not name.startswith("timm/") or (isinstance(error, InputError) and len(names) == 1):
                        raise
                    refused.append(f"{name} ({str(error.__cause__ or error).rstrip('.') or type(error).__name__})")
                step()
    finally:
        if collects:
            gc.enable()
    if not rows:
        raise InputError(f"nothing can be counted at {image} px: {few(refused, 3)}; try another --image")
    if refused:
        warn(f"{len(refused)} left out, which cannot be counted at {image} px: {few(refused, 3)}")
    return rows


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
