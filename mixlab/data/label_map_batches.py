"""Label maps in batches: random crops to train on, whole images to evaluate on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from .batch_loader import SampleReader
from .crops import IMAGENET_MEAN
from .decode import to_pil
from .mask_values import IGNORE
from .masks import MaskedImage, MaskSource

MEAN_COLOUR = tuple(round(255 * mean) for mean in IMAGENET_MEAN)
_TRIES = 10  # to find a crop that one class does not fill


@dataclass(frozen=True, kw_only=True)
class CropRule:
    """MMSegmentation's pipeline for ADE20K, which both papers use."""

    crop: int
    short_side: int  # images are brought to this, unless the long side would grow beyond `long_side`
    long_side: int
    scale: tuple[float, float]  # then by a random factor
    most_of_one_class: float  # a crop with more than this share of one class is drawn anew


def fitted_size(size: tuple[int, int], *, short_side: float, long_side: float) -> tuple[int, int]:
    """(height, width) scaled, in its shape, as large as both limits allow.

    >>> fitted_size((480, 640), short_side=512, long_side=2048)
    (512, 683)
    """
    factor = min(short_side / min(size), long_side / max(size))
    return max(round(size[0] * factor), 1), max(round(size[1] * factor), 1)


def random_crop(pair: MaskedImage, rule: CropRule, random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Scale, crop and flip: the image uint8 (3, crop, crop), its mask uint8 (crop, crop). Beyond the image: nothing."""
    image, factor = to_pil(pair.image), random.uniform(*rule.scale)
    own = (image.height, image.width)
    height, width = fitted_size(own, short_side=rule.short_side * factor, long_side=rule.long_side * factor)
    mask = np.array(Image.fromarray(pair.mask.numpy()).resize((width, height), Image.Resampling.NEAREST))
    top, left = _corner(mask, rule, random)
    rows, columns = min(rule.crop, height), min(rule.crop, width)
    box = (
        left * own[1] / width,
        top * own[0] / height,
        (left + columns) * own[1] / width,
        (top + rows) * own[0] / height,
    )
    pixels = np.asarray(image.resize((columns, rows), Image.Resampling.BILINEAR, box=box))
    cut = mask[top : top + rows, left : left + columns]
    if random.random() < 0.5:
        pixels, cut = pixels[:, ::-1], cut[:, ::-1]
    whole = np.empty((rule.crop, rule.crop, 3), dtype=np.uint8)
    whole[:] = MEAN_COLOUR
    whole[:rows, :columns] = pixels
    classes = np.full((rule.crop, rule.crop), IGNORE, dtype=np.uint8)
    classes[:rows, :columns] = cut
    return torch.from_numpy(whole).permute(2, 0, 1).contiguous(), torch.from_numpy(classes)


def _corner(mask: NDArray[np.uint8], rule: CropRule, random: np.random.Generator) -> tuple[int, int]:
    """The top left corner of a crop that no class fills, or of the last that was tried."""
    height, width = mask.shape
    for _ in range(_TRIES):
        top = int(random.integers(max(height - rule.crop, 0) + 1))
        left = int(random.integers(max(width - rule.crop, 0) + 1))
        counts = np.bincount(mask[top : top + rule.crop, left : left + rule.crop].ravel(), minlength=256)[:IGNORE]
        if np.count_nonzero(counts) > 1 and counts.max() < rule.most_of_one_class * counts.sum():
            break
    return top, left


class CropBatch(NamedTuple):
    images: Tensor  # uint8 (B, 3, S, S)
    masks: Tensor  # uint8 (B, S, S)
    indexes: Tensor  # int64 (B,)

    def to(self, device: torch.device | str) -> CropBatch:
        images, masks = (part.to(device, non_blocking=True) for part in (self.images, self.masks))
        return self._replace(images=images, masks=masks)


class CropReader(SampleReader[tuple[Tensor, Tensor, int], CropBatch]):
    """A random crop of every image, another one in every epoch."""

    def __init__(self, source: MaskSource, rule: CropRule, *, seed: int) -> None:
        self.source, self.rule, self.seed = source, rule, seed

    def read(self, index: int, epoch: int) -> tuple[Tensor, Tensor, int]:
        random = np.random.default_rng([self.seed, epoch, index])
        return *random_crop(self.source.load(index), self.rule, random), index

    def collate(self, samples: list[tuple[Tensor, Tensor, int]]) -> CropBatch:
        side = self.rule.crop
        images = [image for image, _, _ in samples] or [torch.empty(3, side, side, dtype=torch.uint8)]
        masks = [mask for _, mask, _ in samples] or [torch.empty(side, side, dtype=torch.uint8)]
        count = len(samples)
        indexes = torch.tensor([index for _, _, index in samples], dtype=torch.int64)
        return CropBatch(torch.stack(images)[:count], torch.stack(masks)[:count], indexes)


class WholeBatch(NamedTuple):
    """Images as they are, of any shapes."""

    pairs: list[MaskedImage]
    indexes: Tensor  # int64 (B,)

    def to(self, device: torch.device | str) -> WholeBatch:
        return self  # one at a time goes to the device, by whoever needs it


class WholeReader(SampleReader[tuple[MaskedImage, int], WholeBatch]):
    def __init__(self, source: MaskSource) -> None:
        self.source = source

    def read(self, index: int, epoch: int) -> tuple[MaskedImage, int]:
        return self.source.load(index), index

    def collate(self, samples: list[tuple[MaskedImage, int]]) -> WholeBatch:
        indexes = torch.tensor([index for _, index in samples], dtype=torch.int64)
        return WholeBatch([pair for pair, _ in samples], indexes)
