"""Analyses by name. `register_analysis` makes a function an analysis: a command with options, a result in the run
directory, a section of the report. docs/add_an_analysis.md has a complete example.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from mixlab.analysis.exhibit import Exhibit
from mixlab.analysis.viewed_images import ViewedImages
from mixlab.analysis.views import common_view
from mixlab.backbones.backbone import Backbone
from mixlab.backbones.room import check_room
from mixlab.choices import Fit
from mixlab.data.given import AnyData
from mixlab.errors import InputError
from mixlab.evaluation.target import Target, distinct_targets
from mixlab.plugins import Registry, is_ours
from mixlab.run.protocols import Metric, add_metrics

Function = Callable[..., Exhibit]
GIVEN = ("seed", "progress")  # options that every command has: handed to an analysis that takes them


@dataclass(frozen=True)
class Analysis:
    """A function of targets and images, and of options of its own after them."""

    name: str
    function: Function
    data: str = "shapes"  # unless told otherwise, as the next two
    num_images: int | None = 16  # evenly spaced; None: all
    fit: Fit = "crop"
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    matrices: bool = False

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise InputError(f"an analysis cannot be called {self.name!r}: use letters, digits and _")
        rest = [*self.parameters.values()][2:]
        if len(self.parameters) < 2 or any(part.kind is not part.KEYWORD_ONLY for part in rest):
            raise InputError(
                f"analysis {self.name} must take (targets, images, *, options with defaults), got "
                f"{self.name}{inspect.signature(self.function)}"
            )
        if self.matrices and "layer" not in self.parameters:
            raise InputError(f"analysis {self.name} has matrices=True; it must then have an option layer, such as -1")

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.function, eval_str=True).parameters

    @property
    def options(self) -> list[inspect.Parameter]:
        """Its own: what follows targets and images."""
        return [part for part in [*self.parameters.values()][2:] if part.name not in GIVEN]

    @property
    def about(self) -> str:
        """One line, from the docstring."""
        line = (inspect.getdoc(self.function) or self.name).split("\n\n")[0].replace("\n", " ")
        return line[:1].lower() + line[1:].rstrip(".")

    def pairs(self, options: Mapping[str, Any]) -> list[int]:
        """The layers of which it makes matrices of all tokens by all tokens, as `check_room` takes them."""
        return [options.get("layer", self.parameters["layer"].default)] if self.matrices else []

    def run(
        self, targets: Target | Backbone | Sequence[Target | Backbone], images: ViewedImages | AnyData, **options: Any
    ) -> Exhibit:
        """What it finds. `images` by a name, as `--data` takes it, are seen at the size of the first network."""
        several = distinct_targets(targets)
        pairs = self.pairs(options)
        if not isinstance(images, ViewedImages):
            view = common_view(several, several[0].backbone.image, None, self.fit, pairs=pairs)
            images = ViewedImages(images, **view, num_images=self.num_images)
        for target in several:
            check_room(target.backbone, images.view.size, pairs=pairs)
        found = self.function(several, images, **options)
        if not isinstance(found, Exhibit):
            raise InputError(f"analysis {self.name} returned a {type(found).__name__}; return an Exhibit")
        return found


ANALYSES: Registry[Analysis] = Registry("analysis", {})  # those that are imported; `cli.COMMANDS` lists all of ours


def register_analysis(
    name: str | Function | None = None,
    *,
    data: str = "shapes",
    num_images: int | None = 16,
    fit: Fit = "crop",
    metrics: Mapping[str, Metric] | None = None,
    matrices: bool = False,
) -> Any:
    """Register a function as an analysis: `mixlab NAME TARGET ...`. NAME is the function's unless `name` is given.

    A decorator: `@register_analysis`, or with any of these arguments in parentheses.

    The function takes (targets, images, *, options with defaults); the command passes `seed` and `progress` if they are
    among them. In Python it may then be called with one backbone, and with images by name. `data`, `num_images` and
    `fit` are the defaults of the options of that name. `metrics`: those of its measurements that are not in
    `mixlab.run.METRICS`. `matrices`: it makes a matrix of all tokens by all tokens of its option `layer`, so images are
    refused for which memory cannot hold one.
    """

    called = name if isinstance(name, str) else None

    def register(function: Function) -> Function:
        made = Analysis(called or function.__name__, function, data, num_images, fit, dict(metrics or {}), matrices)
        if is_ours(function):
            ANALYSES.data[made.name] = made  # ours
        else:
            ANALYSES[made.name] = made
        add_metrics(made.metrics)

        @wraps(function)
        def call(*given: Any, **options: Any) -> Exhibit:
            return made.run(*given, **options)

        return call

    return register(name) if callable(name) else register
