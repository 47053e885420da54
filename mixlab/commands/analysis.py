"""Any registered analysis as a command: the options that all of them share, then its own."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixlab.choices import Fit
from mixlab.commands.answer import Answer
from mixlab.commands.options import Flat, SeveralTargets
from mixlab.commands.output import drawing, evaluation_machine, print_left_out, progress_bar
from mixlab.console import console
from mixlab.errors import InputError, check_counts
from mixlab.plugins import needed_plugins
from mixlab.run import provenance

if TYPE_CHECKING:
    from mixlab.analysis.registry import Analysis


@dataclass(frozen=True)
class ViewedTargets(SeveralTargets):
    """Networks on some images of a set. A photograph among the targets is the image."""

    data: str | None = None  # type: ignore[assignment]
    """shapes (drawn scenes), photo, photo:NAME or photo:all (photographs that come with mixlab), an image file, a
    folder, wds:PATTERN (tar shards), or images with masks as for `maps`; default: depends on the analysis. An image
    file may also be given among the targets."""
    num_images: int | None = None  # number of images, evenly spaced; default: depends on the analysis.
    fit: Fit | None = None
    """whole (the whole image in its own shape, at most 4:1), square (the largest square in the middle), crop (centre
    crop of it, as in kNN and probes) or squash (the whole image as a square); default: depends on the analysis; square
    instead of whole for networks that take no other shape."""


def command_of(analysis: Analysis) -> Callable[..., dict[str, Any]]:
    """`mixlab NAME TARGET ...`, with the options of its function, explained by its docstring."""

    def command(on: ViewedTargets, answer: Answer, **options: Any) -> dict[str, Any]:
        return run_analysis(analysis, on, answer, options)

    groups = {"on": Flat[ViewedTargets], "answer": Flat[Answer]}
    parameters = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
        for name, kind in groups.items()
    ] + list(analysis.options)
    command.__signature__ = inspect.Signature(parameters, return_annotation=dict[str, Any])  # type: ignore[attr-defined]
    command.__annotations__ = {part.name: part.annotation for part in parameters}
    command.__doc__, command.__name__ = inspect.getdoc(analysis.function), analysis.name
    return command


def run_named(name: str, on: ViewedTargets, answer: Answer, **options: Any) -> dict[str, Any]:
    """One of mixlab's own, by the name of its module."""
    import_module(f"mixlab.analysis.{name}")
    from mixlab.analysis.registry import ANALYSES

    return run_analysis(ANALYSES[name], on, answer, options)


def run_analysis(analysis: Analysis, on: ViewedTargets, answer: Answer, options: dict[str, Any]) -> dict[str, Any]:
    """Analyse, write the result and its pictures, print its table."""
    from mixlab.analysis.viewed_images import ViewedImages
    from mixlab.analysis.views import common_view

    answer.check()
    check_counts(num_images=on.num_images)
    on, data = _with_photograph(on, analysis.data)
    with evaluation_machine(on.device, workers=on.workers) as machine:
        if not machine.world.is_first:  # an analysis knows nothing of ranks
            return {}
        loaded = on.load(machine.world.device)
        size, number = on.image or loaded[0].backbone.image, on.num_images or analysis.num_images
        view = common_view(loaded, size, on.fit, analysis.fit, pairs=analysis.pairs(options))
        images = ViewedImages(data, **view, num_images=number, workers=machine.workers)
        directory = on.open_run()
        with progress_bar(analysis.name, len(loaded)) as step:
            given = {"seed": on.seed, "progress": step}
            wanted = {name: value for name, value in given.items() if name in analysis.parameters}
            found = analysis.run(loaded, images, **options, **wanted)
    content = {
        "kind": analysis.name,
        "subjects": [target.describe() for target in loaded],
        "protocol": images.choices | {name: _plain(value) for name, value in options.items()},
        **found.to_json(),
        "provenance": provenance(seed=on.seed, device=str(next(loaded[0].backbone.parameters()).device)),
    }
    if needed := needed_plugins([("analysis", analysis.name)]):
        content["plugins"] = needed
    with directory.named(analysis.name, content) as name:
        with drawing():
            folder = directory.figure_path(name).parent
            content["exhibit"]["figures"] = found.save_pictures(folder, name)
        directory.write_result(name, content, dict(found.arrays))
    answer.table(
        f"{found.title}: {images.num_read} image{'s' if images.num_read != 1 else ''} of {data}",
        found.columns,
        found.rows,
    )
    if sys.stderr.isatty():
        console.print(found.about, style="dim")
    print_left_out(images)
    for figure in content["exhibit"]["figures"]:
        console.print(f"picture: {folder / figure['file']}")
    console.print(f"results in {directory.path}")
    return answer.emit(content)


def _with_photograph(on: ViewedTargets, usual: str) -> tuple[ViewedTargets, str]:
    """The targets alone, and the data: a photograph among them, else --data, else what is usual."""
    from mixlab.data.decode import SUFFIXES

    places = [text for text in on.targets if Path(text).suffix.lower() in SUFFIXES]
    if len(places) + (on.data is not None) > 1:
        raise InputError(
            f"{', '.join([*places, *filter(None, [on.data])])}: give one source of images; --data takes a folder"
        )
    if not places:
        return on, on.data or usual
    return replace(on, targets=tuple(text for text in on.targets if text not in places)), places[0]


def _plain(value: Any) -> Any:
    """An option as JSON has it."""
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
