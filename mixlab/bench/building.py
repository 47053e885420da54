"""The memory that a rank takes to build a network in shards and to train it for a step: real processes on the CPU.
Beside it the same network built whole on every rank, and in one process; the bits of the weights must be the same.
"""

import multiprocessing
import os
import re
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mixlab.bench.timing import Row, measured
from mixlab.console import console
from mixlab.recipes import find_recipe
from mixlab.training.building import build_recipe
from mixlab.training.config import ModelConfig
from mixlab.training.distributed import World, from_all, join_world
from mixlab.training.optim import build_optimizer, parameter_groups, set_rates
from mixlab.training.recipe import Recipe
from mixlab.training.sharded import local

DEPTH = 20
WAYS = {  # bytes for each parameter over all ranks, with room for what is gathered
    "in pieces": lambda ranks: 5,
    "in pieces, then a step of AdamW": lambda ranks: 20,
    "whole on every rank": lambda ranks: 5 * ranks,
    "one process": lambda ranks: 5,
}


def status(field: str) -> int:
    """Bytes of this process, by a name of /proc/self/status."""
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def checksum(recipe: Recipe) -> int:
    """The sum of the bits of all parameters, as whole numbers, over all ranks."""
    return sum(from_all(sum(int(local(p).detach().view(torch.int32).sum()) for p in recipe.network.parameters())))


def _build(way: str, dim: int, world: World) -> Row:
    model = ModelConfig(name="vit_base", fields={"dim": dim, "depth": DEPTH, "image": 32})
    config = replace(find_recipe("supervised_vit_tiny64"), model=model, sharding="fsdp")
    sizes: dict[str, Any] = {"num_classes": 1000, "total_steps": 10, "steps_per_epoch": 10}
    build_recipe(replace(config, model=replace(model, fields={"dim": 64, "depth": 1})), world=world, **sizes)  # imports
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before, start = status("VmRSS"), time.perf_counter()
    recipe, _ = build_recipe(config, world=world, in_pieces=way != "whole on every rank", **sizes)
    seconds = time.perf_counter() - start
    if "step" in way:
        optimizer = build_optimizer(parameter_groups(recipe.network, recipe.no_weight_decay()), config.optim)
        set_rates(optimizer, lr=1e-3, weight_decay=0.05)
        logits: Tensor = recipe.run(torch.zeros(1, 3, 32, 32))
        logits.logsumexp(-1).sum().backward()
        optimizer.step()
    peak, kept = status("VmHWM") - before, status("VmRSS") - before
    num = sum(parameter.numel() for parameter in recipe.network.parameters())
    return {"parameters": num, "build_s": seconds, "peak": peak, "kept": kept, "bits": checksum(recipe)}


def _rank(way: str, dim: int, rank: int, num_ranks: int, port: int, answer: Any) -> None:
    torch.set_num_threads(1)
    if num_ranks == 1:
        answer.send(_build(way, dim, World(torch.device("cpu"))))
        return
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks}
    os.environ |= {name: str(value) for name, value in {**names, "MASTER_PORT": port}.items()}
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    with join_world("cpu") as world:
        answer.send(_build(way, dim, world))
        from_all(None)


def on_ranks(way: str, dim: int, num_ranks: int) -> list[Row]:
    """What each rank found, in processes of their own."""
    context = multiprocessing.get_context("fork")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    pipes = [context.Pipe(duplex=False) for _ in range(num_ranks)]
    processes = [
        context.Process(target=_rank, args=(way, dim, rank, num_ranks, port, pipe[1]))
        for rank, pipe in enumerate(pipes)
    ]
    for process, (_, theirs) in zip(processes, pipes, strict=True):
        process.start()
        theirs.close()
    try:
        return [ours.recv() for ours, _ in pipes]
    finally:
        for process in processes:
            process.join()


def measure_building(millions: int, num_ranks: int) -> list[Row]:
    """A ViT of about so many million parameters. What would take more than half of the memory that is free is left
    out."""
    dim = max(64, round((millions * 1e6 / 12 / DEPTH) ** 0.5 / 64) * 64)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    rows = []
    for way, bytes_each in WAYS.items():
        needed = bytes_each(num_ranks) * 12 * DEPTH * dim**2
        if needed > free / 2:
            console.print(f"{way} is left out: it needs {needed / 1e9:.1f} GB, and {free / 1e9:.1f} are free")
            continue
        found = on_ranks(way, dim, 1 if way == "one process" else num_ranks)
        rows.append(
            measured(
                {
                    "what": way,
                    "ranks": len(found),
                    "parameters_m": found[0]["parameters"] / 1e6,
                    "network_mb": found[0]["parameters"] * 4 / 1e6,
                    "peak_mb_per_rank": max(row["peak"] for row in found) / 1e6,
                    "kept_mb_per_rank": max(row["kept"] for row in found) / 1e6,
                    "build_s": max(row["build_s"] for row in found),
                    "bits": found[0]["bits"],
                }
            )
        )
    return rows
