"""Depthwise convolution with zero padding, in plain torch."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def depthwise_conv(tokens: Tensor, kernel: Tensor, grid: tuple[int, int]) -> Tensor:
    """(B, L, C) on the grid (h, w) under windows (C, kh, kw) with odd sides -> (B, L, C)."""
    maps = tokens.mT.unflatten(-1, grid)  # (B, C, h, w)
    return depthwise_conv_of_maps(maps, kernel.to(tokens.dtype)).flatten(2).mT


def depthwise_conv_of_maps(maps: Tensor, kernel: Tensor) -> Tensor:
    if maps.is_cuda and torch.is_grad_enabled() and not torch.compiler.is_compiling():
        return FlippedGradient.apply(maps, kernel)
    return _conv(maps, kernel)


class FlippedGradient(torch.autograd.Function):
    """cuDNN's own gradient of the maps takes twice as long as a convolution, and gives the same."""

    @staticmethod
    def forward(maps: Tensor, kernel: Tensor) -> Tensor:
        return _conv(maps, kernel)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        maps, kernel = ctx.saved_tensors
        maps_wanted, kernel_wanted = ctx.needs_input_grad
        dmaps = depthwise_conv_of_maps(dy, kernel.flip(-2, -1)) if maps_wanted else None
        if not kernel_wanted:
            return dmaps, None
        padding = [side // 2 for side in kernel.shape[1:]]
        weight = kernel.unsqueeze(1)
        _, dweight, _ = torch.ops.aten.convolution_backward(
            dy, maps, weight, None, [1, 1], padding, [1, 1], False, [0, 0], len(kernel), [False, True, False]
        )
        return dmaps, dweight.squeeze(1)


def _conv(maps: Tensor, kernel: Tensor) -> Tensor:
    return F.conv2d(maps, kernel.unsqueeze(1), padding="same", groups=len(kernel))
