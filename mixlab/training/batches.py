"""From a loader's batches to steps: as many passes as a step accumulates, epoch after epoch."""

from collections.abc import Iterator
from typing import Any, TypeVar

from mixlab.data.crops import MultiCrop
from mixlab.data.loader import AnyBatch, BatchLoader, SampleReader
from mixlab.data.packed import PackedLoader, PackedReader
from mixlab.data.sample_order import SampleOrder
from mixlab.data.source import ImageSource
from mixlab.errors import InputError, counted
from mixlab.training.config import TrainConfig
from mixlab.training.distributed import World, num_workers

B = TypeVar("B", bound=AnyBatch)


def build_loader(
    source: ImageSource, config: TrainConfig, crops: MultiCrop, *, world: World, repeats: int = 1
) -> PackedLoader:
    """This rank's share of the images, from which these crops are cut."""
    check_enough(len(source), config, world)
    return PackedLoader(
        PackedReader(source, crops.reduction, config.data.size),
        shuffled_order(len(source), config, world, repeats=repeats),
        num_workers=num_workers(config.data.workers, world),
        skip_limit=config.data.skip_limit,
        pin_memory=world.device.type == "cuda" and not config.data.resident,
        resident_on=world.device if config.data.resident else None,
    )


def build_batches(
    reader: SampleReader[Any, B], config: TrainConfig, *, world: World, order: SampleOrder | None = None
) -> BatchLoader[B]:
    """This rank's share of samples of any kind; `order` where they do not simply come shuffled."""
    check_enough(len(reader), config, world)
    return BatchLoader(
        reader,
        order or shuffled_order(len(reader), config, world),
        num_workers=num_workers(config.data.workers, world),
        skip_limit=config.data.skip_limit,
        pin_memory=world.device.type == "cuda",
    )


def shuffled_order(num_images: int, config: TrainConfig, world: World, *, repeats: int = 1) -> SampleOrder:
    return SampleOrder(num_images, config.part_size(world.size), config.seed, world.rank, world.size, repeats=repeats)


def check_enough(num_images: int, config: TrainConfig, world: World) -> None:
    if num_images < config.batch:
        parts = world.size * config.accumulate
        possible = num_images // parts * parts
        way_out = f"write --set batch={possible}, or less" if possible else f"give at least {parts}, one for each pass"
        images = counted(num_images, "image is less", "images are fewer")
        raise InputError(f"{images} than one batch of {config.batch}; {way_out}")


def steps(loader: BatchLoader[B], accumulate: int) -> Iterator[list[B]]:
    """The passes of each step, from the loader's position on, without end. Passes too few for a step are left out."""
    while True:
        passes: list[B] = []
        for batch in loader:
            passes.append(batch)
            if len(passes) == accumulate:
                yield passes
                passes = []
