"""Four maps at strides 4, 8, 16 and 32 from any backbone, plain or in stages, at any input size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from timm.layers import LayerNorm2d
from torch import Tensor, nn

from mixlab.backbones.backbone import Backbone
from mixlab.errors import InputError

STRIDES = (4, 8, 16, 32)
NUM_TAPS = len(STRIDES)


class Tap(NamedTuple):
    """What one level is made from."""

    layer: int
    width: int
    stride: int  # in pixels
    staged: bool  # one of several stages; the backbone's final norm is for the last alone


class Pyramid(nn.Module):
    """Images (B, 3, H, W) -> four maps (B, C, ceil(H / s), ceil(W / s)) for the strides s = 4, 8, 16, 32.

    A plain backbone is tapped at four layers, evenly over its depth unless `taps` says otherwise; the taps, normalised
    by its final norm, are brought to the four strides by de-convolution and pooling (as BEiT and ViTDet do). A backbone
    in stages gives its own last map of each stride, or of the nearest that it has, under a norm of its own. `channels`
    gives all levels one width. Images are padded with the mean colour to whole patches of every level. `frozen` keeps
    the backbone as it is, in evaluation mode.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        taps: tuple[int, int, int, int] | None = None,
        channels: int | None = None,
        frozen: bool = False,
    ) -> None:
        super().__init__()
        self.backbone, self.frozen = backbone, frozen
        self.taps = choose_taps(backbone, taps)
        self.channels = [channels or tap.width for tap in self.taps]
        self.strides = list(STRIDES)
        self.levels = nn.ModuleList(
            Level(tap, width, stride) for tap, width, stride in zip(self.taps, self.channels, STRIDES, strict=True)
        )
        if frozen:
            backbone.requires_grad_(False)
        else:
            for block in backbone.layer_modules[self.taps[-1].layer + 1 :]:
                block.requires_grad_(False)  # never run
        self.train(self.training)

    def forward(self, images: Tensor) -> list[Tensor]:
        size = images.shape[-2:]
        whole = [side + -side % STRIDES[-1] for side in size]
        maps = self.tapped(images, whole)
        levels = [level(maps[tap.layer], whole) for tap, level in zip(self.taps, self.levels, strict=True)]
        return [
            level[..., : math.ceil(size[0] / stride), : math.ceil(size[1] / stride)]
            for level, stride in zip(levels, STRIDES, strict=True)
        ]

    def tapped(self, images: Tensor, whole: Sequence[int]) -> dict[int, Tensor]:
        """The tapped layers' maps (B, D, h, w), which cover at least `whole` pixels."""
        patch = max(tap.stride for tap in self.taps)
        height, width = (side + -side % patch for side in whole)
        images = F.pad(images, (0, width - images.shape[-1], 0, height - images.shape[-2]))
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            layers = sorted({tap.layer for tap in self.taps})
            found = self.backbone.features(images, layers=layers)
            return {layer: features.patches.permute(0, 3, 1, 2) for layer, features in found}

    def train(self, mode: bool = True) -> Pyramid:
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self


class Level(nn.Module):
    """From a tap's stride to the level's: de-convolutions up, pooling down, and interpolation to a power of two."""

    def __init__(self, tap: Tap, channels: int, stride: int) -> None:
        super().__init__()
        near = 2 ** round(math.log2(tap.stride))  # 14 px patches count as 16
        self.scale, self.stride = tap.stride / near, stride
        factor = near / stride
        self.resize: nn.Module = nn.Identity()
        if factor > 1:
            self.resize = _grow(tap.width, channels, round(math.log2(factor)))
        elif factor < 1:
            self.resize = nn.MaxPool2d(round(1 / factor))
        self.norm: nn.Module = LayerNorm2d(tap.width) if tap.staged else nn.Identity()
        self.project: nn.Module = nn.Identity()
        if factor <= 1 and channels != tap.width:
            self.project = nn.Conv2d(tap.width, channels, kernel_size=1)

    def forward(self, maps: Tensor, whole: Sequence[int]) -> Tensor:
        """(B, D, h, w) -> (B, C, H / stride, W / stride) for `whole` = (H, W)."""
        if self.scale != 1:
            maps = F.interpolate(maps, scale_factor=self.scale, mode="bilinear")
        maps = self.project(self.resize(self.norm(maps)))
        return maps[..., : whole[0] // self.stride, : whole[1] // self.stride]


def _grow(width: int, channels: int, doublings: int) -> nn.Sequential:
    """De-convolutions that double the grid, with a norm and a GELU between."""
    steps: list[nn.Module] = [nn.ConvTranspose2d(width, channels, kernel_size=2, stride=2)]
    for _ in range(doublings - 1):
        steps += [nn.GroupNorm(1, channels), nn.GELU()]
        steps += [nn.ConvTranspose2d(channels, channels, kernel_size=2, stride=2)]
    return nn.Sequential(*steps)


def choose_taps(backbone: Backbone, taps: Sequence[int] | None = None) -> list[Tap]:
    """The four layers that feed the pyramid."""
    shapes = backbone.layer_shapes()
    strides = [shape.stride for shape in shapes]
    depth, staged = backbone.num_layers, len(set(strides)) > 1
    if taps is None and staged:
        nearest = [min(strides, key=lambda own: abs(math.log2(own / stride))) for stride in STRIDES]
        taps = [max(layer for layer, own in enumerate(strides) if own == stride) for stride in nearest]
    elif taps is None:
        taps = [math.ceil(depth * number / NUM_TAPS) - 1 for number in range(1, NUM_TAPS + 1)]
    if len(taps) != NUM_TAPS or list(taps) != sorted(taps) or taps[0] < 0 or taps[-1] >= depth:
        raise InputError(f"taps {taps} of {backbone.name}: give four layers from 0 to {depth - 1} in rising order")
    return [Tap(layer, shapes[layer].width, shapes[layer].stride, staged) for layer in taps]
