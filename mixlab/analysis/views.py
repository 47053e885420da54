"""What is seen of an image: the middle square, a crop of it, all of it squashed, or all of it in its own shape."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from mixlab.backbones.backbone import Backbone
from mixlab.backbones.room import check_room
from mixlab.choices import Fit
from mixlab.data.decode import Box, cut_middle, fit_box, load_size, to_tensor
from mixlab.data.whole import whole_shape
from mixlab.errors import InputError, is_out_of_memory
from mixlab.evaluation.machine import CROP_SHARE
from mixlab.evaluation.target import Target

FINE = 4  # patches on the side of a square: with fewer, other shapes are hardly other shapes


@dataclass(frozen=True)
class View:
    """`size` is the side of a square; "whole" has about as many pixels in all, each side a multiple of `multiple`."""

    size: int
    fit: Fit = "crop"
    multiple: int | None = None  # of "whole" alone

    def __post_init__(self) -> None:
        load_size(self.size, self.crop_share)  # which checks it
        if self.fit == "whole" and not self.multiple:
            raise InputError("fit 'whole' needs the side of a patch, or the largest stride: give it as in multiple=16")

    @property
    def crop_share(self) -> float:
        return CROP_SHARE if self.fit == "crop" else 1.0

    def of_image(self, image: Image.Image) -> Tensor:
        """Uint8 (3, h, w)."""
        shape, box = self._resizing(image.size)
        return self._cut(to_tensor(image.resize(shape, Image.Resampling.BICUBIC, box=box)))

    def of_mask(self, mask: NDArray[np.uint8]) -> Tensor:
        """The same part of a mask (H, W): uint8 (h, w)."""
        image = Image.fromarray(mask)
        shape, box = self._resizing(image.size)
        return self._cut(torch.from_numpy(np.array(image.resize(shape, Image.Resampling.NEAREST, box=box))))

    def part_of(self, image: tuple[int, int]) -> Box:
        """Which part of an image of (width, height) is seen: left, top, right and bottom as shares of its sides."""
        shape, (left, top, right, bottom) = self._resizing(image)
        first, last = 0.0, 1.0
        if self.fit != "whole":
            cut = (shape[0] - self.size) // 2  # as `cut_middle`
            first, last = cut / shape[0], (cut + self.size) / shape[0]
        width, height = image
        across, down = right - left, bottom - top
        return (
            (left + first * across) / width,
            (top + first * down) / height,
            (left + last * across) / width,
            (top + last * down) / height,
        )

    def _resizing(self, image: tuple[int, int]) -> tuple[tuple[int, int], Box]:
        """To which (width, height) an image is resized, and which part of it."""
        if self.fit == "whole":
            assert self.multiple is not None
            return whole_shape(image, self.size, self.multiple), (0.0, 0.0, float(image[0]), float(image[1]))
        side = load_size(self.size, self.crop_share)
        return (side, side), fit_box(image, self.fit, side)

    def _cut(self, pixels: Tensor) -> Tensor:
        return pixels if self.fit == "whole" else cut_middle(pixels, self.size)


def common_view(
    targets: Sequence[Target], size: int, fit: Fit | None, usual: Fit, *, pairs: Sequence[int] = ()
) -> dict[str, Any]:
    """The arguments `size`, `fit` and `multiple` of what all of these networks are shown: the same pixels.

    Where no fit is chosen and "whole" is usual, but one of them takes squares only, it is the square, with a note. The
    size of "whole" is rounded to what patches cover, with a note: results record what was seen. What cannot fit
    into memory is refused, `pairs` as in `check_room`.
    """
    for target in targets:
        check_room(target.backbone, size, pairs=pairs)
    wanted = fit or usual
    if wanted != "whole":
        return {"size": size, "fit": wanted}
    multiple = math.lcm(*(side_multiple(target.backbone) for target in targets))
    refusal = why_squares(targets, size, multiple)
    if not refusal:
        if size % multiple:
            near = multiple * round(size / multiple)
            warnings.warn(f"{size}px is not a multiple of {multiple}px: shown at {near}px", stacklevel=2)
            size = near
        return {"size": size, "fit": wanted, "multiple": multiple}
    if fit is not None:
        raise InputError(f"{refusal}; choose --fit square")
    warnings.warn(f"{refusal}: shown with --fit square", stacklevel=2)
    return {"size": size, "fit": "square"}


def why_squares(targets: Sequence[Target], size: int, multiple: int) -> str:
    """Why these networks are shown squares alone; nothing where they take images in their own shape."""
    if size < FINE * multiple:
        names = " and ".join(target.label for target in targets)
        needed = f"at {size} px, {names} would need sides that are a multiple of {multiple} px"
        return f"{needed}, too coarse for other shapes than squares"
    # One shape is tried: networks with windows, or with tables for one size, refuse others each in its own way.
    low, high = (multiple * (size // multiple + step) for step in (-1, 1))
    refusing = [target.label for target in targets if not _takes_shape(target.backbone, low, high)]
    return f"{' and '.join(refusing)} {'take' if len(refusing) > 1 else 'takes'} squares only" if refusing else ""


def side_multiple(backbone: Backbone) -> int:
    """Pixels of which each side of an image should be a multiple: patches of all layers then cover it."""
    return math.lcm(*(shape.stride for shape in backbone.layer_shapes()))


@torch.no_grad()
def _takes_shape(backbone: Backbone, height: int, width: int) -> bool:
    parameter = next(backbone.parameters())
    blank = torch.zeros(1, backbone.channels, height, width, device=parameter.device, dtype=parameter.dtype)
    try:
        next(iter(backbone.features(blank)))
    except Exception as error:  # of as many kinds as there are networks
        if is_out_of_memory(error):
            raise
        return False
    return True
