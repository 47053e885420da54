"""From a loader's batches to steps: as many passes as a step accumulates, epoch after epoch."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from mixlab.data.loader import Batch, Loader
from mixlab.data.source import ImageSource
from mixlab.training.config import TrainConfig
from mixlab.training.distributed import World


def build_loader(source: ImageSource, config: TrainConfig, *, world: World) -> Loader:
    """This rank's share of the data."""
    if len(source) < config.batch:
        parts = world.size * config.accumulate
        possible = len(source) // parts * parts
        raise ValueError(
            f"{len(source)} images are fewer than one batch of {config.batch}; set batch={possible} or less"
        )
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    workers = config.data.workers if config.data.workers is not None else max(0, cores // world.ranks_here - 1)
    return Loader(
        source,
        batch_size=config.part_size(world.size),
        size=config.data.size,
        seed=config.seed,
        rank=world.rank,
        world_size=world.size,
        num_workers=workers,
        skip_limit=config.data.skip_limit,
        pin_memory=world.device.type == "cuda" and not config.data.resident,
        resident_on=world.device if config.data.resident else None,
    )


def steps(loader: Loader, accumulate: int) -> Iterator[list[Batch]]:
    """The passes of each step, from the loader's position on, without end. Passes too few for a step are left out."""
    while True:
        passes: list[Batch] = []
        for batch in loader:
            passes.append(batch)
            if len(passes) == accumulate:
                yield passes
                passes = []
