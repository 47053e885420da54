"""What the commands of dense tasks share: which recipe is taken, and whether to train or to evaluate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mixlab.commands.options import DenseTarget
from mixlab.commands.output import is_first, progress_bar, stoppable, warn
from mixlab.console import console
from mixlab.errors import InputError, check_counts

if TYPE_CHECKING:
    from mixlab.evaluation.dense_task import DensePlan
    from mixlab.training.config import TrainConfig

R = TypeVar("R")


def train_or_evaluate(
    on: DenseTarget,
    data: str,
    *,
    plan: Callable[..., DensePlan],
    fit: Callable[..., R],
    evaluate: Callable[..., R],
    published: str,
    settings: Sequence[str] = (),
    inference: dict[str, Any] | None = None,
) -> tuple[R, Path]:
    """What the command asks for, and the run that it belongs to. `published` names the data of the papers' recipe."""
    check_counts(num_val=on.num_val)
    scoring = {"num_val": on.num_val, "device": on.device, "bar": progress_bar, **(inference or {})}
    if on.evaluate_only:
        given = {"set": on.set, "recipe": on.recipe, "frozen": on.frozen, "weights": on.weights, "head": settings}
        for name in (name for name, value in given.items() if value):
            raise InputError(f"--{name} has no effect with --evaluate-only, which takes the run as it is; leave it out")
        return evaluate(on.target, data, training=on.training, **scoring), on.run or Path(on.target)
    if on.run is None:
        raise InputError("a run needs a directory; give --run DIR")
    target, recipe = target_and_recipe(on.target, on.recipe)
    planned = plan(
        target,
        data=data,
        recipe=recipe,
        settings=[*on.set, *settings],
        frozen=on.frozen,
        weights=on.weights,
        training=on.training,
        num_val=on.num_val,
        name=on.recipe or on.target,
    )
    if recipe is None:
        say_recipe(planned, device=on.device, published=published)
    with stoppable():
        return fit(planned, on.run, **scoring), on.run


def target_and_recipe(target: str, recipe: str | None) -> tuple[str | None, TrainConfig | None]:
    """What is named on the command line. TARGET may be a recipe itself, for its own backbone."""
    from mixlab.recipes import RECIPES, find_recipe

    if target not in RECIPES or Path(target).is_dir():
        return target, None if recipe is None else find_recipe(recipe)
    if recipe is not None:
        raise InputError(f"{target} is a recipe itself; leave out --recipe {recipe}, or name a model")
    return None, find_recipe(target)


def say_recipe(plan: DensePlan, *, device: str | None, published: str) -> None:
    """Say which recipe is the default here and, on a CPU, name a smaller one than the papers'."""
    from mixlab.data.source_names import is_drawn
    from mixlab.training.distributed import choose_device

    if not is_first():
        return
    config = plan.config
    count, unit = (config.steps, "step") if config.steps is not None else (config.epochs, "epoch")
    length = f"{count:,} {unit}{'s' * (count != 1)}"
    about = f"{length} in batches of {config.batch}, images of {config.method.image} px"
    if is_drawn(str(plan.data)):
        console.print(f"without --recipe, the small one for shapes is used: {about}")
        return
    console.print(f"without --recipe, the papers' recipe for {published} is used: {about}")
    if choose_device(device).type == "cpu":
        warn(f"this recipe is meant for GPUs; --recipe {small_recipe(config)} is small enough for a CPU")


def small_recipe(config: TrainConfig) -> str:
    """A small recipe for the same task that leaves the architecture of pretrained backbones as it is."""
    from mixlab.recipes import RECIPES, find_recipe

    kind, model = config.method.kind, config.model
    names = (f"{kind}_{family}_tiny64" for family in (model.name.partition("_")[0], "vit", "gatedconv"))
    fits = (
        name for name in names if name in RECIPES and (not model.weights or model.name != find_recipe(name).model.name)
    )
    return next(fits)
