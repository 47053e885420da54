"""Full configurations by name: `RECIPES["dino_dinovim_base"]()`. The papers' own (`imagenet.py`), and small ones
(`small.py`); those of dense tasks are with their methods.

dino_NAME              DINO on ImageNet, Dino-Mamba §5.1
lejepa_NAME            LeJEPA on ImageNet: lejepa_FAMILY_mini and lejepa_FAMILY_tiny64 as for DINO
dino_FAMILY_mini, supervised_FAMILY_mini, segment_FAMILY_mini
                       photographs of about 112 px such as Imagenette: a minute on one GPU (`mixlab study miniature`).
                       Families share all but the depth (without an MLP a layer is half as large) and the learning rate,
                       which the study tunes; the length is given in steps, so it does not depend on the data set
dino_FAMILY_small160, dino_FAMILY_tiny160, lejepa_vit_small160, supervised_FAMILY_SIZE160, segment_FAMILY_SIZE160
                       photographs of 160 px: about 22 million parameters and patches of 16 px, or 5.5 million and
                       patches of 8, in every family; minutes on one GPU (`mixlab speedrun`, `mixlab study small`)
dino_FAMILY_tiny64     DINO on 64 px images such as `shapes`: minutes on two cores
supervised_NAME        classification on ImageNet: MambaOut Table 5, visual Mambas with their own drop path; for vit_*,
                       vit_causal_* and linearvit_* DeiT's
supervised_FAMILY_tiny64, supervised_mambaout_femto64
segment_NAME           UperNet on ADE20K, both papers
segment_FAMILY_tiny64, segment_mambaout_femto64
detect_NAME            Cascade Mask R-CNN on COCO, Dino-Mamba; Mask R-CNN for mambaout_NAME, MambaOut
detect_FAMILY_tiny64, detect_mambaout_femto64
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

from mixlab.backbones.visual_mambas import VISUAL_MAMBAS
from mixlab.backbones.zoo import SIZES, ZOO, ZooEntry, list_models
from mixlab.errors import InputError, check_kind, did_you_mean
from mixlab.evaluation.dense_recipe import MAMBAOUT_DROP_PATH
from mixlab.evaluation.detection.recipe import detect
from mixlab.evaluation.methods import train_config
from mixlab.evaluation.segmentation.recipe import segment
from mixlab.plugins import Registry, check_plugins
from mixlab.recipes.imagenet import DEIT_FAMILIES, deit, dino, lejepa, supervised
from mixlab.recipes.small import MAMBA_FAMILIES, SMALL, lejepa_160, small_recipes, smallest
from mixlab.run.directory import RunDirectory, read_config_file
from mixlab.training.config import ModelConfig, TrainConfig
from mixlab.training.settings import with_method
from mixlab.training.stored_settings import has_begun, is_older

__all__ = ["RECIPES", "RECIPE_FAMILIES", "find_recipe", "recipe_for", "register_recipe", "with_method"]
MakeRecipe = Callable[[], TrainConfig]
RECIPE_FAMILIES = ("vit", "linearvit", "dinovim", "dinomambareg", "gatedconv")


def _own_recipes() -> dict[str, MakeRecipe]:
    names = {family: list_models(f"{family}_*") for family in RECIPE_FAMILIES}
    trained = [*(name for own in names.values() for name in own), *VISUAL_MAMBAS]
    as_deit = {name for family in DEIT_FAMILIES for name in names[family]}
    classified = [*trained, *(f"mambaout_{size}" for size in MAMBAOUT_DROP_PATH)]
    small: dict[str, MakeRecipe] = {}
    for family in RECIPE_FAMILIES:
        small |= small_recipes(family, *SMALL)
    for family in MAMBA_FAMILIES:
        small |= small_recipes(family, "tiny64")
    for kind in ("supervised", "segment", "detect"):
        small[f"{kind}_mambaout_femto64"] = partial(SMALL["tiny64"][kind], "mambaout")
    return {
        **{f"dino_{name}": partial(dino, name) for name in trained},
        **{f"lejepa_{name}": partial(lejepa, name) for name in trained},
        **{f"supervised_{name}": partial(deit if name in as_deit else supervised, name) for name in classified},
        **{f"segment_{name}": partial(segment, ModelConfig(name=name)) for name in list_models()},
        **{f"detect_{name}": partial(detect, ModelConfig(name=name)) for name in list_models()},
        **small,
        "lejepa_vit_small160": partial(lejepa_160, "vit", "small"),
    }


RECIPES: Registry[MakeRecipe] = Registry("recipe", _own_recipes())
R = TypeVar("R", bound=MakeRecipe)


def register_recipe(recipe: R | str) -> Any:
    """Register a full configuration by name; a decorator of a function that returns a `TrainConfig`.

    The recipe has the name of the function, or that in `@register_recipe("another_name")`.
    """
    called = recipe if isinstance(recipe, str) else None

    def register(function: R) -> R:
        if not callable(function):
            raise InputError(f"a recipe is a function that returns a TrainConfig; got a {type(function).__name__}")
        name = called or function.__name__
        try:
            signature(function).bind()
        except TypeError as error:
            raise InputError(f"the recipe {name} must take no arguments, or have defaults for all: {error}") from error
        RECIPES[name] = function
        return function

    return register if isinstance(recipe, str) else register(recipe)


def family_of(name: str) -> str:
    """The name of a backbone without its size."""
    return next((name.removesuffix(f"_{size}") for size in SIZES if name.endswith(f"_{size}")), name)


def _derive_recipes(name: str, entry: ZooEntry) -> None:
    """What every registered backbone gets: the recipes of ImageNet and COCO, and small ones of its family."""
    origin = ZOO.origin(name)
    if origin is None:
        return  # ours are above, with what was published of each
    model, family = ModelConfig(name=name), family_of(name)
    found: dict[str, MakeRecipe] = {
        f"dino_{name}": partial(dino, name),
        f"lejepa_{name}": partial(lejepa, name),
        f"supervised_{name}": partial(deit, name),
        f"segment_{name}": partial(segment, model),
        f"detect_{name}": partial(detect, model),
    }
    if name == smallest(family):
        found |= small_recipes(family, "mini", "tiny64")
    for recipe, make in found.items():
        RECIPES.derive(recipe, make, origin)


ZOO.follow(_derive_recipes)


def recipe_for(run: Path, name: str) -> TrainConfig:
    """The config of a recipe for a run; one that is older than some of its settings resumes as it recorded."""
    stored = RunDirectory(run).read_config_if_any()
    check_plugins(stored.get("plugins"), run)
    config = find_recipe(name)
    settings = stored.get("settings")
    if stored.get("recipe") == name and settings and has_begun(RunDirectory(run)):
        return train_config(settings) if is_older(settings, config) else config
    return config


def find_recipe(name: str | Path) -> TrainConfig:
    """The config of a recipe, or the one in another run's config.json."""
    name = str(name) if isinstance(name, Path) else name
    check_kind(name, str, "give the name of a recipe, such as 'dino_vit_tiny64', or a config.json")
    if name.endswith(".json"):
        stored = read_config_file(Path(name))
        if "settings" not in stored:
            raise InputError(f"{name} is not the config.json of a training run; give one, or a recipe's name")
        check_plugins(stored.get("plugins"), name)
        return train_config(stored["settings"])
    if name not in RECIPES:
        hint = did_you_mean(
            name, RECIPES, otherwise="a name is METHOD_BACKBONE, such as dino_vit_tiny64 or supervised_vit_base"
        )
        raise InputError(f"unknown recipe {name!r}; {hint}")
    config = RECIPES[name]()
    if not isinstance(config, TrainConfig):
        raise InputError(f"the recipe {name} gives a {type(config).__name__}; its function must return a TrainConfig")
    return config
