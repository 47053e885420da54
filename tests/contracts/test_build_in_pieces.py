"""The promise: ranks that hold a network in pieces while they build it have the weights of one process, bit for bit,
and are never given the whole of it.
"""

import multiprocessing
import os
from multiprocessing.queues import SimpleQueue
from typing import Any

import torch
from ranks import free_port
from torch import Tensor, nn

from mixlab.recipes import find_recipe
from mixlab.training.building import build_recipe
from mixlab.training.distributed import World, join_world
from mixlab.training.pieces import Pieces
from mixlab.training.recipe import Recipe
from mixlab.training.settings import override
from mixlab.training.sharded import whole
from mixlab.training.supervised import SupervisedRecipe
from tests.waiting import exit_codes

SIZES: dict[str, Any] = {"num_classes": 5, "total_steps": 10, "steps_per_epoch": 10}
RECIPES = {  # a teacher that is a copy, in another type; weights that timm draws again; layers in stages
    "dino_dinovim_tiny64": ["precision=fp64", "model.depth=2", "method.hidden=128", "method.num_prototypes=512"],
    "supervised_mambaout_femto64": ["model.depths=[1,1,1,1]", "model.dims=[16,32,32,64]"],
    "supervised_vit_tiny64": ["model.name=vmamba_tiny", "model.dims=[16,32,64,64]", "model.depths=[1,1,2,1]"],
}


def layers(num: int) -> nn.ModuleList:
    torch.manual_seed(0)
    made = nn.ModuleList(nn.Linear(128, 128) for _ in range(num))
    for layer in reversed(made):
        nn.init.trunc_normal_(layer.weight)
    return made


def held(module: nn.Module) -> int:
    return sum(parameter.untyped_storage().nbytes() for parameter in module.parameters())


def tensors(recipe: Recipe) -> dict[str, Tensor]:
    state = {f"{name}/{key}": v for name, module in recipe.modules().items() for key, v in module.state_dict().items()}
    return {name: whole(value).detach() for name, value in state.items()}


def outputs(recipe: Recipe) -> Tensor:
    """Of the classifier, where there is one."""
    network = recipe.run.eval() if isinstance(recipe, SupervisedRecipe) else recipe.exported().eval()
    return network(torch.ones(1, 3, 64, 64, dtype=next(network.parameters()).dtype)).detach()


def rank_of_two(rank: int, port: int, found: SimpleQueue) -> None:
    torch.set_num_threads(1)
    names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2}
    os.environ |= {name: str(value) for name, value in names.items()}
    with join_world("cpu") as world:
        with Pieces(rank=rank, num_ranks=2) as pieces:
            network = layers(10)
        most = held(network)
        pieces.put_together(network.parameters())
        plain = layers(10).state_dict()
        found.put(
            ("layers", most, all(torch.equal(value, plain[name]) for name, value in network.state_dict().items()))
        )
        for name, settings in RECIPES.items():
            config = override(find_recipe(name), ["sharding=fsdp", *settings])
            sharded, _ = build_recipe(config, world=world, **SIZES)
            alone, _ = build_recipe(config, world=World(torch.device("cpu")), **SIZES)
            ours, theirs = tensors(sharded), tensors(alone)
            unlike = [key for key in ours.keys() | theirs.keys() if not torch.equal(ours[key], theirs[key])]
            found.put((name, unlike, float((outputs(sharded) - outputs(alone)).abs().max())))


def test_two_ranks_build_the_weights_of_one_process_and_hold_a_part_of_them() -> None:
    context, port = multiprocessing.get_context("fork"), free_port()
    found = context.SimpleQueue()
    processes = [context.Process(target=rank_of_two, args=(rank, port, found)) for rank in range(2)]
    for process in processes:
        process.start()
    assert exit_codes(*processes) == [0, 0]
    answers = [found.get() for _ in range(2 * (1 + len(RECIPES)))]
    two_weights, biases = 2 * 128 * 128 * 4, 10 * 128 * 4
    assert [answer[1:] for answer in answers if answer[0] == "layers"] == [(two_weights + biases, True)] * 2
    assert sorted(answer for answer in answers if answer[0] != "layers") == sorted(
        (name, [], 0.0) for name in RECIPES for _ in range(2)
    )
