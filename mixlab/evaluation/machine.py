"""How an evaluation runs: processes, precision, and the centre crop of each image."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from mixlab.backbones.room import check_pixels
from mixlab.choices import PrecisionChoice
from mixlab.data.decode import cut_middle, load_size
from mixlab.data.loader import Batch, BatchLoader, ImageReader
from mixlab.data.sample_order import SampleOrder
from mixlab.data.source import ImageSource
from mixlab.training.distributed import World, from_all
from mixlab.training.precision import Precise, autocast

PrecisionInUse = Literal["bf16", "fp32"]
Bar = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]  # description and total -> a step function
Say = Callable[[str], None]
T = TypeVar("T")


@contextmanager
def no_bar(description: str, total: int) -> Iterator[Callable[[int], None]]:
    yield lambda count: None


@dataclass(frozen=True)
class Machine:
    """Processes, precision, data loading and feature cache of an evaluation."""

    world: World
    workers: int = 0  # processes that read images, per rank
    batch: int = 256  # images through the network at a time
    features: Path | None = None  # where extracted features are kept for later calls; None: nowhere
    bar: Bar = no_bar
    say: Say = lambda text: None

    def share(self) -> tuple[int, int]:
        """This rank's number, and how many there are."""
        return self.world.rank, self.world.size

    def gather(self, value: T) -> list[T]:
        """What each rank holds, in the order of ranks."""
        return from_all(value) if self.world.size > 1 else [value]

    @classmethod
    def of(cls, network: nn.Module) -> Machine:
        """This process alone, on the network's device."""
        return cls(World(next(network.parameters()).device))


def precision_in_use(asked: PrecisionChoice, device: torch.device) -> PrecisionInUse:
    """The precision in which networks run; `auto` is bf16 on a GPU and fp32 elsewhere."""
    if asked == "auto":
        return "bf16" if device.type == "cuda" else "fp32"
    return asked


def run_precision(precision: PrecisionChoice, device: torch.device) -> Precise:
    """Networks run inside of what this gives."""
    return autocast(precision_in_use(precision, device), device)


CROP_SHARE = 0.875  # 224 of 256: resize the shorter side to 256, cut the middle 224; `Backbone.crop_share` of ours


@dataclass(frozen=True)
class CentreView:
    """The middle square of an image, of which `crop_share` of each side is kept, at `size` pixels."""

    size: int
    crop_share: float = CROP_SHARE
    fit: str = "crop"  # or squash: the whole image, aspect ratio not kept

    def __post_init__(self) -> None:
        load_size(self.size, self.crop_share)  # which checks both

    @property
    def load_size(self) -> int:
        """The size to which images are resized before the centre crop."""
        return load_size(self.size, self.crop_share)

    def crop(self, images: Tensor) -> Tensor:
        """The middle (B, 3, size, size) of images (B, 3, S, S) at the load size."""
        return cut_middle(images, self.size)

    def loader(
        self, source: ImageSource, *, batch: int, workers: int = 0, pin_memory: bool = False
    ) -> BatchLoader[Batch]:
        """Every image once, in order; those that cannot be read are left out, counted and named."""
        check_pixels(self.load_size, images=min(batch, len(source)))
        return BatchLoader(
            ImageReader(source, self.load_size, self.fit),
            SampleOrder.in_turn(len(source), batch),
            num_workers=workers,
            unreadable="drop",
            skip_limit=1.0,
            pin_memory=pin_memory,
        )
