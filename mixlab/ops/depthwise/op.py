"""Depthwise convolution, wherever the tensors are: kernels on tokens as they lie for CUDA tensors, else plain torch."""

import torch
from torch import Tensor

from mixlab.ops.backend import kernels_run
from mixlab.ops.depthwise import reference
from mixlab.ops.operator import Operator

DTYPES = (torch.float32, torch.bfloat16)
MAX_TAPS = 49  # of a window: a thread holds all of them in registers
MAX_SIDE = 10  # of a map: of wider rows a thread holds too much, and its kernel compiles for half a minute


def depthwise_conv(tokens: Tensor, kernel: Tensor, grid: tuple[int, int]) -> Tensor:
    """(B, L, C) on the grid (h, w) under windows (C, kh, kw) with odd sides, zero outside -> (B, L, C)."""
    if not runs_kernels(tokens, kernel, grid):
        return reference.depthwise_conv(tokens, kernel, grid)
    return _conv(tokens, kernel, *grid)


def runs_kernels(tokens: Tensor, kernel: Tensor, grid: tuple[int, int]) -> bool:
    """The one dispatch: whether this convolution runs on the kernels. They read channels that lie side by side."""
    _, height, width = kernel.shape
    fits = height % 2 == width % 2 == 1 and height * width <= MAX_TAPS and max(grid) <= MAX_SIDE
    channels_last = tokens.stride(-1) == 1 and tokens.numel() > 0
    floating = tokens.dtype in DTYPES and kernel.is_floating_point()
    return fits and channels_last and floating and kernels_run(tokens)


def _forward(tokens: Tensor, kernel: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    from mixlab.ops.depthwise.triton_depthwise import depthwise_forward  # here: without a GPU there may be no Triton

    taps = torch.empty(kernel[0].numel(), len(kernel), dtype=torch.float32, device=kernel.device)
    taps.copy_(kernel.flatten(1).mT)
    return depthwise_forward(tokens, taps, height, width, (kernel.shape[1], kernel.shape[2])), taps


def _fake(tokens: Tensor, kernel: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    return tokens.new_empty(tokens.shape), kernel.new_empty(kernel[0].numel(), len(kernel), dtype=torch.float32)


def _backward(dout: Tensor, tokens: Tensor, kernel: Tensor, taps: Tensor, height: int, width: int) -> list[Tensor]:
    from mixlab.ops.depthwise.triton_depthwise import depthwise_backward

    window = (kernel.shape[1], kernel.shape[2])
    dtokens, dtaps = depthwise_backward(dout, tokens, taps, height, width, window)
    dkernel = torch.empty(kernel.shape, dtype=kernel.dtype, device=kernel.device)
    dkernel.flatten(1).copy_(dtaps.mT)
    return [dtokens, dkernel]


_conv = Operator(
    "depthwise_conv",
    forward=_forward,
    fake=_fake,
    backward=_backward,
    fake_backward=lambda dout, tokens, kernel, *rest: [t.new_empty(t.shape) for t in (tokens, kernel)],
    keep=lambda tokens, kernel, height, width, out, taps: ((tokens, kernel, taps), (height, width)),
)
