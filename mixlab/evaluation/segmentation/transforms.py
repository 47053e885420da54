"""What an image and its mask go through before training: scale, crop and flip together; colours on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from mixlab.data.colour import change_saturation, shift_hue
from mixlab.data.crops import IMAGENET_MEAN
from mixlab.data.decode import to_pil
from mixlab.data.masks import MaskedImage
from mixlab.evaluation.segmentation.data import IGNORE

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
    top, left = _place(mask, rule, random)
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


def _place(mask: NDArray[np.uint8], rule: CropRule, random: np.random.Generator) -> tuple[int, int]:
    """The top left corner of a crop that no class fills, or of the last that was tried."""
    height, width = mask.shape
    for _ in range(_TRIES):
        top = int(random.integers(max(height - rule.crop, 0) + 1))
        left = int(random.integers(max(width - rule.crop, 0) + 1))
        counts = np.bincount(mask[top : top + rule.crop, left : left + rule.crop].ravel(), minlength=256)[:IGNORE]
        if np.count_nonzero(counts) > 1 and counts.max() < rule.most_of_one_class * counts.sum():
            break
    return top, left


def draw_colours(num: int, generator: torch.Generator) -> Tensor:
    """Strengths (num, 4) of brightness, contrast, saturation and hue; each changes half of the images.

    Ranges: +-32 of 255, 0.5 to 1.5 twice, and +-18 of OpenCV's 180 degrees.
    """
    low, high = torch.tensor([[-32 / 255, 0.5, 0.5, -0.1], [32 / 255, 1.5, 1.5, 0.1]])
    drawn = low + (high - low) * torch.rand(num, 4, generator=generator)
    changed = torch.rand(num, 4, generator=generator) < 0.5
    return torch.where(changed, drawn, torch.tensor([0.0, 1.0, 1.0, 0.0]))


def change_colours(images: Tensor, strengths: Tensor) -> Tensor:
    """Images (B, 3, H, W) in [0, 1], changed in place by `draw_colours`' strengths (B, 4)."""
    brightness, contrast, saturation, hue = strengths[:, :, None, None, None].unbind(1)  # (B, 1, 1, 1) each
    images.add_(brightness).clamp_(0, 1).mul_(contrast).clamp_(0, 1)
    return shift_hue(change_saturation(images, saturation), hue)
