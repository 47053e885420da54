"""Regions of interest: cut out of the level of the pyramid that suits their size, and of masks.

torchvision's MultiScaleRoIAlign samples half a cell off (`aligned=False`), which costs high-IoU precision on small
images; this uses the corrected operation that it is built on.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision.ops import roi_align

SAMPLES = 2  # points along each side of an output cell (Mask R-CNN)


def pool_regions(
    maps: Sequence[Tensor], strides: Sequence[int], finest: float, boxes: Sequence[Tensor], size: int
) -> Tensor:
    """Cut boxes, one (R_i, 4) per image, out of maps (B, C, h, w): (R, C, size, size) over all images in order.

    Boxes below twice `finest` pixels come from the first map; each doubling moves one level up (FPN, equation 1).
    """
    regions = with_image_number(boxes)  # (R, 5)
    side = (regions[:, 3:] - regions[:, 1:3]).clamp(min=0).prod(dim=1).sqrt()
    level = torch.floor(torch.log2(side / finest + 1e-6)).clamp(0, len(maps) - 1)
    pooled = maps[0].new_zeros(len(regions), maps[0].shape[1], size, size)
    for number, (features, stride) in enumerate(zip(maps, strides, strict=True)):
        chosen = (level == number).nonzero()[:, 0]
        cut = roi_align(
            features, regions[chosen].to(features.dtype), size, 1 / stride, sampling_ratio=SAMPLES, aligned=True
        )
        pooled = pooled.index_copy(0, chosen, cut.to(pooled.dtype))
    return pooled


def cut_masks(masks: Tensor, owner: Tensor, boxes: Tensor, *, size: int) -> Tensor:
    """What each box (R, 4) covers of its owner's mask, one of bool (N, H, W): 0 or 1, float (R, size, size)."""
    regions = torch.cat([owner[:, None].to(boxes.dtype), boxes], dim=1)
    cut = roi_align(masks[:, None].to(boxes.dtype), regions, size, 1.0, aligned=True)
    return (cut[:, 0] >= 0.5).to(boxes.dtype)


def with_image_number(boxes: Sequence[Tensor]) -> Tensor:
    """Boxes of several images as one table (R, 5) whose first column is the image's number."""
    return torch.cat(
        [torch.cat([torch.full_like(part[:, :1], number), part], dim=1) for number, part in enumerate(boxes)]
    )
