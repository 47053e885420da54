"""Two ranks on this machine that train side by side, and what they train."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from mixlab.data.loader import Batch
from mixlab.recipes import find_recipe
from mixlab.training.building import build_recipe
from mixlab.training.distributed import World
from mixlab.training.settings import override
from mixlab.training.update import Update
from tests.waiting import exit_codes

CONTEXT = multiprocessing.get_context("forkserver")
SMALL = ["batch=8", "model.dim=16", "model.depth=2", "model.image=32", "model.drop_path=0.5", "precision=fp32",
         "optim.warmup_epochs=0", "knn.every_epochs=0"]  # fmt: skip
DINO = [*SMALL, "method.num_prototypes=32", "method.hidden=16", "method.bottleneck=8", "method.num_local=2",
        "method.global_size=32", "method.local_size=16", "method.spread=0"]  # fmt: skip
CASES = {
    "supervised": ("supervised_vit_tiny64", [*SMALL, "method.size=32"]),
    "three passes": ("supervised_gatedconv_tiny64", [*SMALL, "method.size=32", "batch=12", "accumulate=3"]),
    "frozen prototypes, two passes": ("dino_vit_tiny64", [*DINO, "accumulate=2"]),
}


def join(rank: int, size: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}


RESERVED: list[socket.socket] = []


def free_port() -> int:
    """A port for ranks to meet at. A socket that never listens has it until this process ends: nobody else is given it,
    and who asks for it by number may listen there."""
    RESERVED.append(socket.socket())
    RESERVED[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    RESERVED[-1].bind(("127.0.0.1", 0))
    return int(RESERVED[-1].getsockname()[1])


def run_ranks(target: Callable[..., None], *arguments: object, size: int = 2) -> list[int | None]:
    """Exit codes of processes that call `target` with their rank, the number of ranks, a port and the arguments."""
    port = free_port()
    processes = [CONTEXT.Process(target=target, args=(rank, size, port, *arguments)) for rank in range(size)]
    for process in processes:
        process.start()
    return exit_codes(*processes)


def weights_after(name: str, settings: list[str], *, graph: bool | None, world: World) -> dict[str, Tensor]:
    """Weights and moments after six steps, two epochs of three."""
    config = replace(override(find_recipe(name), settings), graph=graph)
    recipe, _ = build_recipe(config, world=world, num_classes=3, total_steps=6, steps_per_epoch=3)
    assert (recipe.exchange is None) == isinstance(recipe.run, DistributedDataParallel) == (graph is False)
    update = Update(recipe, config, steps_per_epoch=3, world=world)
    generator, num = torch.Generator().manual_seed(world.rank), config.batch // config.accumulate // world.size
    for step in range(6):
        pixels = torch.randint(0, 256, (config.accumulate, num, 3, 32, 32), dtype=torch.uint8, generator=generator)
        labels = torch.randint(0, 3, (config.accumulate, num), generator=generator)
        shapes, indexes = torch.full((num, 2), 32), torch.arange(num)
        update([Batch(*part, indexes, shapes) for part in zip(pixels, labels, strict=True)], step)
    if world.device.type == "cuda":
        assert (update.captured is not None and update.captured.capture is not None) == (graph is not False)
    moments = [m for _, state in sorted(update.optimizer.state_dict()["state"].items()) for m in state.values()]
    return {
        **{f"{part}/{key}": v.cpu() for part, m in recipe.modules().items() for key, v in m.state_dict().items()},
        **{f"moment {number}": moment.cpu() for number, moment in enumerate(moments)},
    }
