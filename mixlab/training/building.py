"""From settings to a recipe whose network is on this rank's device: whole, copied or sharded."""

from contextlib import nullcontext

import torch
from torch.nn import Module

from mixlab.backbones.backbone import Architecture, Backbone
from mixlab.backbones.weights import check_can_be_rebuilt
from mixlab.errors import InputError
from mixlab.training.config import TrainConfig
from mixlab.training.distributed import World, distribute
from mixlab.training.pieces import Pieces
from mixlab.training.recipe import Recipe, compile_recipe, seed_all
from mixlab.training.update import reason_against_capture


def build_recipe(
    config: TrainConfig,
    *,
    world: World,
    num_classes: int,
    total_steps: int,
    steps_per_epoch: int,
    given: Backbone | None = None,
    in_pieces: bool = True,
) -> tuple[Recipe, Architecture]:
    """A recipe with fresh weights, or around the backbone `given`; and the architecture of its backbone.

    A network to be sharded is never whole on a rank: see `Pieces`. Without `in_pieces` it is, with the same weights.
    """
    in_pieces = in_pieces and config.sharding == "fsdp" and world.size > 1
    pieces = Pieces(rank=world.rank, num_ranks=world.size) if in_pieces else None
    seed_all(config.seed)
    with pieces or nullcontext():
        backbone = given if given is not None else config.model.build()
    if config.activation_checkpointing:
        backbone.set_grad_checkpointing()
    if config.keep_scans is not None:
        backbone.set_keep_scans(config.keep_scans)
    architecture = check_can_be_rebuilt(backbone)  # now, and not when a week of training is to be exported
    with pieces or nullcontext():
        recipe = config.method.build(
            backbone, num_classes=num_classes, total_steps=total_steps, steps_per_epoch=steps_per_epoch
        )
        if not isinstance(recipe, Recipe):
            what = f"{type(config.method).__name__}.build"
            raise InputError(f"{what} gives a {type(recipe).__name__}; return a Recipe, such as a ViewsRecipe")
        check_modules(recipe, backbone)
        if config.compile:
            compile_recipe(recipe)
        dtype = torch.float64 if config.precision == "fp64" else torch.float32
        for module in recipe.modules().values():
            module.to(dtype=dtype) if pieces else module.to(world.device, dtype)
    distribute(
        recipe,
        config.sharding,
        world=world,
        find_unused=backbone.has_unused_parameters,
        after_passes=config.graph is not False and reason_against_capture(recipe, config, world) is None,
        pieces=pieces,
    )
    if pieces:
        for module in recipe.modules().values():
            module.to(world.device)
    return recipe, architecture


def check_modules(recipe: Recipe, backbone: Backbone) -> None:
    """Refuse parts with weights that `Recipe.modules` lacks: checkpoints would, and a resumed run had fresh ones.

    A classifier of timm's has copies of the weights of its backbone, which is filled from them when it is exported.
    """
    kept = {id(value) for part in recipe.modules().values() for value in part.state_dict(keep_vars=True).values()}
    for name, part in vars(recipe).items():
        if not isinstance(part, Module) or part is backbone:
            continue
        if any(id(value) not in kept for value in part.state_dict(keep_vars=True).values()):
            kind = type(recipe).__name__
            raise InputError(
                f"{kind}.{name} has weights or buffers and is not in {kind}.modules(), so that no checkpoint has them; "
                f'return {{**super().modules(), "{name}": self.{name}}} there'
            )
