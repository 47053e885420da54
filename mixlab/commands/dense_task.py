"""What `mixlab segment` and `mixlab detect` share: choosing a config, training and judging, finished runs."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from mixlab.backbones.weights.reading import read_weights
from mixlab.commands.output import console, emit
from mixlab.data.unreadable import TooManyUnreadableError
from mixlab.errors import InputError, WorkError
from mixlab.evaluation.dense.recipe import DenseConfig, DenseRecipe
from mixlab.evaluation.dense.targets import target_model, with_model
from mixlab.evaluation.methods import train_config
from mixlab.recipes import RECIPES, find_recipe
from mixlab.run import RunDirectory
from mixlab.training.config import ModelConfig, TrainConfig
from mixlab.training.distributed import World, choose_device, join_world
from mixlab.training.loop import Trainer, train
from mixlab.training.settings import override
from mixlab.training.stopping import Stopped


def choose_config(
    target: str,
    *,
    data: str,
    recipe: str | None,
    settings: list[str],
    frozen: bool = False,
    weights: str | None,
    num_val: int | None = None,
    method: type[DenseConfig],
    on_shapes: Callable[[ModelConfig], TrainConfig],
    published: Callable[[ModelConfig], TrainConfig],
) -> TrainConfig:
    """The recipe, its model replaced by the target, and the settings on top. `num_val` bounds the live scores too."""
    if target in RECIPES and not Path(target).is_dir():
        if recipe is not None:
            raise InputError(f"{target} is a recipe itself; leave out --recipe {recipe}, or name a model")
        config = find_recipe(target)
        config = replace(config, model=replace(config.model, weights=weights))
    else:
        model = target_model(target, weights=weights)
        if recipe is not None:
            config = with_model(find_recipe(recipe), model)
        else:
            config = (on_shapes if draws_shapes(data) else published)(model)
    if not isinstance(config.method, method):
        raise InputError(f"{recipe or target} is a {config.method.kind} recipe, not one for `mixlab {method.kind}`")
    config = override(config, [*settings, *(["method.frozen=true"] if frozen else [])])
    assert isinstance(config.method, method)
    if num_val is None or num_val >= config.method.score_images:
        return config
    return override(config, [f"method.score_images={num_val}"])


def draws_shapes(data: str) -> bool:
    return data.partition(":")[0] == "shapes"


def say_recipe(
    config: TrainConfig, *, target: str, data: str, recipe: str | None, device: str | None, published: str
) -> None:
    """Which recipe was taken where none was named, and on a CPU a smaller one than the papers'."""
    chosen = recipe is not None or (target in RECIPES and not Path(target).is_dir())
    if chosen or os.environ.get("RANK", "0") != "0":
        return
    length = f"{config.steps:,} steps" if config.steps is not None else f"{config.epochs:,} epochs"
    about = f"{length} in batches of {config.batch}, images of {config.method.image} px"
    if draws_shapes(data):
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


def train_and_judge(
    config: TrainConfig,
    *,
    data: str,
    run: Path | None,
    device: str | None,
    name: str,
    judge: Callable[[Trainer], dict[str, Any]],
    json: str | None,
) -> dict[str, Any]:
    """Train to the end, then judge on every rank; the first writes the result."""
    if run is None:
        raise InputError("a run needs a directory; give --run DIR")
    result: dict[str, Any] = {}
    try:
        train(config, data=data, run=run, device=device, name=name, then=lambda trainer: result.update(judge(trainer)))
    except Stopped as stopped:
        console.print(f"{stopped}; run the same command again to resume")
        raise SystemExit(stopped.exit_code) from stopped
    except TooManyUnreadableError as error:
        raise WorkError(f"{error} (data.skip_limit)") from error
    return emit(result, json if os.environ.get("RANK", "0") == "0" else None)


@contextmanager
def finished_run(
    target: Path, *, method: type[DenseConfig], recipe: type[DenseRecipe], device: str | None
) -> Iterator[tuple[DenseRecipe, TrainConfig, World]]:
    """The network of a finished run, its config, and the world to judge it in."""
    stored = RunDirectory.open(target).read_config()
    if stored.get("settings", {}).get("method", {}).get("kind") != method.kind:
        raise InputError(f"{target} is no run of `mixlab {method.kind}`; train one first, without --evaluate-only")
    head = f"{recipe.head_name}.safetensors"
    for file in ("weights.safetensors", head):
        if not (target / file).is_file():
            raise FileNotFoundError(f"{target} has no {file}; finish the run first")
    config = train_config(stored["settings"])
    with join_world(device) as world:
        backbone = replace(config.model, weights=str(target)).build()
        built = config.method.build(backbone, num_classes=len(stored["classes"]), total_steps=1, steps_per_epoch=1)
        assert isinstance(built, recipe)
        built.load_head(read_weights(target / head).entries)
        built.network.to(world.device)
        yield built, config, world
