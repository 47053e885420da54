"""Depthwise convolution with zero padding. On a GPU its gradient is another one, with flipped windows."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def depthwise_conv(maps: Tensor, kernel: Tensor) -> Tensor:
    """Maps (B, C, h, w) under windows (C, kh, kw)."""
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
        dmaps = depthwise_conv(dy, kernel.flip(-2, -1)) if maps_wanted else None
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
