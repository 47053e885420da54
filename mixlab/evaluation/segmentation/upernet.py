"""UperNet (Xiao et al., 2018) on a pyramid of any backbone.

Ours, because segmentation_models_pytorch builds its UperNet around its own encoders, without the auxiliary head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from mixlab.errors import InputError
from mixlab.evaluation.dense.pyramid import Pyramid
from mixlab.evaluation.dense.recipe import DenseNetwork

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
    return nn.Sequential(
        nn.Conv2d(width, channels, kernel_size=kernel, padding=kernel // 2, bias=False),
        _norm(channels, norm),
        nn.ReLU(inplace=True),
    )


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
    return nn.Sequential(nn.Dropout2d(dropout), nn.Conv2d(width, num_classes, kernel_size=1))
