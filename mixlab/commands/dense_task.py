"""What `mixlab segment` and `mixlab detect` share: which recipe is taken, and how a run ends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mixlab.console import console
from mixlab.data.source import TooManyUnreadableError
from mixlab.errors import InputError, WorkError
from mixlab.evaluation.dense_task import DensePlan, draws_shapes
from mixlab.recipes import RECIPES, find_recipe
from mixlab.training.config import TrainConfig
from mixlab.training.distributed import choose_device
from mixlab.training.stopping import Stopped


def target_and_recipe(target: str, recipe: str | None) -> tuple[str | None, TrainConfig | None]:
    """What is named on the command line. TARGET may be a recipe itself, for its own backbone."""
    if target not in RECIPES or Path(target).is_dir():
        return target, None if recipe is None else find_recipe(recipe)
    if recipe is not None:
        raise InputError(f"{target} is a recipe itself; leave out --recipe {recipe}, or name a model")
    return None, find_recipe(target)


def say_recipe(plan: DensePlan, *, device: str | None, published: str) -> None:
    """Which recipe was taken where none was named, and on a CPU a smaller one than the papers'."""
    if not is_first():
        return
    config = plan.config
    length = f"{config.steps:,} steps" if config.steps is not None else f"{config.epochs:,} epochs"
    about = f"{length} in batches of {config.batch}, images of {config.method.image} px"
    if draws_shapes(plan.data):
        console.print(f"no --recipe: the small one for shapes, {about}", highlight=False)
        return
    console.print(f"no --recipe: the papers' for {published}, {about}", highlight=False)
    if choose_device(device).type == "cpu":
        advice = f"that is meant for GPUs; --recipe {small_recipe(config)} is small enough for a CPU"
        console.print(advice, style="yellow", highlight=False)


def small_recipe(config: TrainConfig) -> str:
    """The name of a small recipe for the same task. It must not reshape a backbone that comes with weights."""
    kind, model = config.method.kind, config.model
    names = (f"{kind}_{family}_tiny64" for family in (model.name.partition("_")[0], "vit", "gatedconv"))
    fits = (
        name for name in names if name in RECIPES and (not model.weights or model.name != find_recipe(name).model.name)
    )
    return next(fits)


def is_first() -> bool:
    """Whether this process prints and writes."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def stoppable() -> Iterator[None]:
    """Around training: a signal ends the command with its own exit code."""
    try:
        yield
    except Stopped as stopped:
        console.print(f"{stopped}; run the same command again to resume")
        raise SystemExit(stopped.exit_code) from stopped
    except TooManyUnreadableError as error:
        raise WorkError(f"{error} (data.skip_limit)") from error
