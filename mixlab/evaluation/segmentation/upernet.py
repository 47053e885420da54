"""UperNet (Xiao et al., 2018) on a pyramid of any backbone, and how it is run on images of any size.

Ours, because segmentation_models_pytorch builds its UperNet around its own encoders, without the auxiliary head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from mixlab.backbones.backbone import Backbone
from mixlab.choices import InferenceMode
from mixlab.data.dense_batches import fitted_size
from mixlab.errors import InputError
from mixlab.evaluation.dense_recipe import DenseNetwork
from mixlab.evaluation.pyramid import Pyramid
from mixlab.training.precision import Precise

POOLS = (1, 2, 3, 6)
AUXILIARY_LEVEL = 2  # stride 16
Norm = Literal["batch", "group"]


class UperNet(DenseNetwork):
    """Images (B, 3, H, W) -> logits (B, K, H / 4, W / 4); while training also those of the auxiliary head, H / 16."""

    def __init__(
        self,
        pyramid: Pyramid,
        *,
        num_classes: int,
        channels: int = 512,
        auxiliary_channels: int = 256,
        dropout: float = 0.1,
        norm: Norm = "batch",
    ) -> None:
        super().__init__()
        self.pyramid = pyramid
        self.head = UperHead(pyramid.channels, channels=channels, norm=norm)
        self.classify = _classifier(channels, num_classes, dropout)
        self.auxiliary = nn.Sequential(
            conv(pyramid.channels[AUXILIARY_LEVEL], auxiliary_channels, kernel=3, norm=norm),
            _classifier(auxiliary_channels, num_classes, dropout),
        )

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        levels = self.pyramid(images)
        logits = self.classify(self.head(levels))
        return (logits, self.auxiliary(levels[AUXILIARY_LEVEL])) if self.training else (logits,)


class UperHead(nn.Module):
    """Pyramid pooling on the coarsest level, a feature pyramid downwards, and all levels fused at the finest."""

    def __init__(self, widths: Sequence[int], *, channels: int, norm: Norm) -> None:
        super().__init__()
        self.pools = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(size), conv(widths[-1], channels, kernel=1, norm=norm)) for size in POOLS
        )
        self.pooled = conv(widths[-1] + len(POOLS) * channels, channels, kernel=3, norm=norm)
        self.lateral = nn.ModuleList(conv(width, channels, kernel=1, norm=norm) for width in widths[:-1])
        self.smooth = nn.ModuleList(conv(channels, channels, kernel=3, norm=norm) for _ in widths[:-1])
        self.fuse = conv(len(widths) * channels, channels, kernel=3, norm=norm)

    def forward(self, levels: Sequence[Tensor]) -> Tensor:
        """Maps from fine to coarse -> (B, channels, H / 4, W / 4)."""
        coarsest = levels[-1]
        context = [resize(pool(coarsest), coarsest.shape[-2:]) for pool in self.pools]
        merged = [self.pooled(torch.cat([coarsest, *context], dim=1))]
        for level, lateral in zip(reversed(levels[:-1]), reversed(self.lateral), strict=True):
            merged.insert(0, lateral(level) + resize(merged[0], level.shape[-2:]))
        smooth = [conv_of(level) for conv_of, level in zip(self.smooth, merged[:-1], strict=True)]
        fine = [resize(level, levels[0].shape[-2:]) for level in (*smooth, merged[-1])]
        return self.fuse(torch.cat(fine, dim=1))


def resize(maps: Tensor, size: Sequence[int]) -> Tensor:
    """(B, C, h, w) to another size, bilinear."""
    return maps if maps.shape[-2:] == tuple(size) else F.interpolate(maps, size=tuple(size), mode="bilinear")


def conv(width: int, channels: int, *, kernel: int, norm: Norm) -> nn.Sequential:
    """Convolution, norm, ReLU. A batch norm counts the batches of all devices."""
    step = nn.Conv2d(width, channels, kernel_size=kernel, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(step.weight, mode="fan_out", nonlinearity="relu")  # MMSegmentation, as in `_classifier`
    return nn.Sequential(step, _norm(channels, norm), nn.ReLU(inplace=True))


def _norm(channels: int, norm: Norm) -> nn.Module:
    if norm == "group":
        most = min(32, max(channels // 8, 1))  # a group of one channel on a map of one cell would always be 0
        groups = next(number for number in range(most, 0, -1) if channels % number == 0)
        return nn.GroupNorm(groups, channels)
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return nn.BatchNorm2d(channels)
    if not torch.cuda.is_available():
        raise InputError("batch norms are averaged over processes on GPUs only; set method.norm=group")
    return nn.SyncBatchNorm(channels)


def _classifier(width: int, num_classes: int, dropout: float) -> nn.Sequential:
    predict = nn.Conv2d(width, num_classes, kernel_size=1)
    nn.init.normal_(predict.weight, std=0.01)
    nn.init.zeros_(predict.bias)  # type: ignore[arg-type]
    return nn.Sequential(nn.Dropout2d(dropout), predict)


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
    def of(cls, mode: InferenceMode, *, short_side: int, long_side: int, crop: int) -> Inference:
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
