"""Mixup, cutmix and erasing: regularisers that work on a whole batch, on the device."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

ERASED_AREA = (0.02, 1 / 3)  # Zhong et al. 2020, as in timm
ERASED_ASPECT = (0.3, 1 / 0.3)
Box = tuple[int, int, int, int]  # top, left, height, width


@dataclass(frozen=True)
class Blend:
    """Each image with the one at the mirrored place in the batch: `keep` of the first; in a box, or everywhere."""

    keep: float
    box: Box | None = None

    def images(self, images: Tensor) -> Tensor:
        others = images.flip(0)
        if self.box is None:
            return torch.lerp(others, images, self.keep)
        top, left, height, width = self.box
        mixed = images.clone()
        mixed[:, :, top : top + height, left : left + width] = others[:, :, top : top + height, left : left + width]
        return mixed

    def targets(self, targets: Tensor) -> Tensor:
        return torch.lerp(targets.flip(0), targets, self.keep)


def draw_blend(generator: torch.Generator, *, side: int, mixup: float, cutmix: float, switch: float) -> Blend:
    """Mixup (Zhang et al. 2018) or, with probability `switch`, cutmix (Yun et al. 2019); 0 turns one off."""
    u = torch.rand(3, generator=generator, dtype=torch.float64)
    use_cut = cutmix > 0 and (mixup <= 0 or float(u[0]) < switch)
    alpha = cutmix if use_cut else mixup
    if alpha <= 0:
        return Blend(1.0)
    keep = draw_beta(alpha, generator)
    if not use_cut:
        return Blend(keep)
    cut = side * math.sqrt(1 - keep)
    top, bottom = _span(float(u[1]) * side, cut, side)
    left, right = _span(float(u[2]) * side, cut, side)
    share = (bottom - top) * (right - left) / side**2  # after the border cut some of it off
    return Blend(1 - share, (top, left, bottom - top, right - left))


def draw_beta(alpha: float, generator: torch.Generator) -> float:
    """Beta(alpha, alpha) from two gamma variates."""
    first, second = torch._standard_gamma(torch.full((2,), alpha, dtype=torch.float64), generator=generator).tolist()
    return float(first / (first + second)) if first + second else 0.5


def soft_targets(labels: Tensor, *, num_classes: int, smoothing: float) -> Tensor:
    """Labels (B,) as distributions (B, K): `smoothing` is shared out evenly over all classes."""
    return F.one_hot(labels, num_classes).float() * (1 - smoothing) + smoothing / num_classes


def draw_erasures(num_images: int, generator: torch.Generator, *, side: int, probability: float) -> list[Box | None]:
    """A box to erase for each image, or none."""
    u = torch.rand(num_images, 5, generator=generator, dtype=torch.float64).tolist()
    low, high = (math.log(aspect) for aspect in ERASED_ASPECT)
    boxes: list[Box | None] = []
    for chance, area, aspect, top, left in u:
        pixels = (ERASED_AREA[0] + (ERASED_AREA[1] - ERASED_AREA[0]) * area) * side * side
        shape = math.exp(low + (high - low) * aspect)
        height, width = round(math.sqrt(pixels * shape)), round(math.sqrt(pixels / shape))
        fits = 0 < height < side and 0 < width < side
        place = (int(top * (side - height + 1)), int(left * (side - width + 1)), height, width)
        boxes.append(place if chance < probability and fits else None)
    return boxes


def erase(images: Tensor, boxes: list[Box | None]) -> Tensor:
    """Normal noise in the boxes of normalised images (B, 3, S, S)."""
    rows = [row for row, box in enumerate(boxes) if box is not None]
    if not rows:
        return images
    edges = torch.tensor([box for box in boxes if box is not None]).to(images.device, non_blocking=True)
    top, left, height, width = edges.T[:, :, None]  # (n, 1) each
    line = torch.arange(images.shape[-1], device=images.device)
    inside = ((line >= top) & (line < top + height))[:, :, None] & ((line >= left) & (line < left + width))[:, None]
    there = torch.tensor(rows).to(images.device, non_blocking=True)
    chosen = images.index_select(0, there)
    return images.index_copy(0, there, torch.where(inside[:, None], torch.randn_like(chosen), chosen))


def _span(middle: float, length: float, side: int) -> tuple[int, int]:
    low, high = middle - length / 2, middle + length / 2
    return max(0, min(side, int(low))), max(0, min(side, int(high)))
