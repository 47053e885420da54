"""Images as networks see them: the middle of an image for evaluation, random crops for training a probe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mixlab.backbones.backbone import Backbone
from mixlab.data.crop_parameters import CropKind
from mixlab.data.crops import MultiCrop
from mixlab.data.loader import Batch, Loader
from mixlab.data.source import ImageSource
from mixlab.errors import InputError
from mixlab.training.distributed import World
from mixlab.training.precision import Precise, autocast
from mixlab.training.recipe import BatchPart, to_pixels_of

Precision = Literal["auto", "bf16", "fp32"]
PrecisionInUse = Literal["bf16", "fp32"]
CROP_SHARE = 0.875  # 224 of 256: resize the shorter side to 256, cut the middle 224 (DINO's evaluation, and timm's)
PROBE_SCALE = (0.08, 1.0)  # torchvision's RandomResizedCrop, which DINO's probe uses as it comes


@dataclass(frozen=True)
class CentreView:
    """The middle square of an image, of which `crop_share` of each side is kept, at `size` pixels."""

    size: int
    crop_share: float = CROP_SHARE
    fit: str = "crop"  # or squash: the whole image, out of shape

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 < self.crop_share <= 1:
            raise InputError(
                f"a view of {self.size} px that keeps {self.crop_share} of each side: give at least 1 px and a share "
                f"above 0 and up to 1, such as {CROP_SHARE}"
            )

    @property
    def load_size(self) -> int:
        """The side at which images are read, before the middle is cut out."""
        return max(self.size, round(self.size / self.crop_share))

    def __call__(self, images: Tensor, *, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
        """uint8 (B, 3, S, S) at the load size -> the middle with mean and deviation taken out, (B, 3, size, size)."""
        first = (images.shape[-1] - self.size) // 2
        middle = images[..., first : first + self.size, first : first + self.size].float() / 255
        scale = (torch.tensor(part).to(images.device, non_blocking=True)[:, None, None] for part in (mean, std))
        return (middle - next(scale)) / next(scale)

    def loader(self, source: ImageSource, *, batch: int, workers: int = 0, pin_memory: bool = False) -> Loader:
        """Every image once, in order; those that cannot be read are left out, counted and named."""
        return Loader(
            source,
            batch_size=min(batch, len(source)),
            size=self.load_size,
            fit=self.fit,
            shuffle=False,
            drop_last=False,
            num_workers=workers,
            unreadable="drop",
            skip_limit=1.0,
            pin_memory=pin_memory,
        )


class ProbeCrops:
    """Random resized crops and flips, the paper's augmentation for probes; choices depend on seed and step alone."""

    def __init__(self, size: int, *, seed: int) -> None:
        self.size, self.seed = size, seed
        self.crops = MultiCrop([CropKind(size=size, scale=PROBE_SCALE)])

    def __call__(self, batch: Batch, backbone: Backbone, *, step: int, world: World) -> Tensor:
        """This rank's part of a global batch -> what the backbone takes, (B, 3, size, size)."""
        part = BatchPart(step=step, epoch=0, index=world.rank, num_parts=world.size, seed=self.seed)
        drawn = self.crops.draw(batch.sizes, part.generator(), rank=world.rank, world_size=world.size)
        return to_pixels_of(backbone, self.crops(batch.images, drawn)[0][0])


def precision_in_use(asked: Precision, device: torch.device) -> PrecisionInUse:
    """The precision in which backbones run; `auto` is bf16 on a GPU and fp32 elsewhere."""
    if asked == "auto":
        return "bf16" if device.type == "cuda" else "fp32"
    return asked


def run_precision(precision: Precision, device: torch.device) -> Precise:
    """Backbones run inside of what this gives."""
    return autocast(precision_in_use(precision, device), device)
