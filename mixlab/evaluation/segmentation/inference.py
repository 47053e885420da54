"""From an image of any size to its label map: once, at many scales and flipped, or by a sliding window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mixlab.backbones.backbone import Backbone
from mixlab.data.dense_batches import fitted_size
from mixlab.evaluation.segmentation.upernet import UperNet, resize
from mixlab.training.precision import Precise

Mode = Literal["single", "multi", "slide"]
SCALES = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)  # the usual multi-scale test


@dataclass(frozen=True, kw_only=True)
class Inference:
    """How a network is run on an image, brought to `short_side` unless its long side would pass `long_side`."""

    short_side: int
    long_side: int
    scales: tuple[float, ...] = (1.0,)
    flip: bool = False
    window: int | None = None  # pixels a side; None: the whole image at once
    stride: int | None = None  # of the window; None: two thirds of it

    @classmethod
    def of(cls, mode: Mode, *, short_side: int, long_side: int, crop: int) -> Inference:
        """By name: one pass, six scales with their mirror images, or windows of the training's size."""
        if mode == "multi":
            return cls(short_side=short_side, long_side=long_side, scales=SCALES, flip=True)
        return cls(short_side=short_side, long_side=long_side, window=crop if mode == "slide" else None)


class Predictor:
    """A network, and how it is run on images."""

    def __init__(self, network: UperNet, inference: Inference, *, precise: Precise) -> None:
        self.network, self.inference, self.precise = network, inference, precise
        self.backbone: Backbone = network.pyramid.backbone

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Images uint8 (B, 3, H, W) of one size -> classes uint8 (B, H, W) on the network's device."""
        size, rule = (images.shape[-2], images.shape[-1]), self.inference
        pixels = self.backbone.preprocess(images)
        total: Tensor | None = None
        for scale in rule.scales:
            inner = fitted_size(size, short_side=rule.short_side * scale, long_side=rule.long_side * scale)
            scaled = pixels
            if inner != size:
                scaled = F.interpolate(pixels, size=inner, mode="bilinear", antialias=True)
            for view, undo in self._views(scaled):
                found = undo(self._logits(view))
                found = resize(found, size)
                if len(rule.scales) > 1 or rule.flip:
                    found = found.softmax(dim=1)  # views vote with probabilities
                total = found if total is None else total.add_(found)
        assert total is not None
        return total.argmax(dim=1).to(torch.uint8)

    def _views(self, images: Tensor) -> Iterator[tuple[Tensor, Callable[[Tensor], Tensor]]]:
        yield images, lambda maps: maps
        if self.inference.flip:
            yield images.flip(-1), lambda maps: maps.flip(-1)

    def _logits(self, images: Tensor) -> Tensor:
        """Logits (B, K, H, W) at the images' size."""
        window = self.inference.window
        if window is None or max(images.shape[-2:]) <= window:
            return self._run(images)
        stride = self.inference.stride or max(window * 2 // 3, 1)
        total: Tensor | None = None
        seen = images.new_zeros(1, 1, *images.shape[-2:])
        for top in _starts(images.shape[-2], window, stride):
            for left in _starts(images.shape[-1], window, stride):
                rows, columns = slice(top, top + window), slice(left, left + window)
                found = self._run(images[..., rows, columns])
                if total is None:
                    total = found.new_zeros(*found.shape[:2], *images.shape[-2:])
                total[..., rows, columns] += found
                seen[..., rows, columns] += 1
        assert total is not None
        return total.div_(seen)

    def _run(self, images: Tensor) -> Tensor:
        with self.precise():
            (logits,) = self.network(images)
        return resize(logits if logits.dtype == torch.float64 else logits.float(), images.shape[-2:])


def _starts(length: int, window: int, stride: int) -> list[int]:
    """Where windows begin so that they cover `length`; the last one ends with it."""
    last = max(length - window, 0)
    return sorted({*range(0, last, stride), last})
