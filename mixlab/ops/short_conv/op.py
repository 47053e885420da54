"""The short convolution in front of a scan, from one side or both: kernels for CUDA tensors, else plain torch."""

import torch
from torch import Tensor

from mixlab.ops.backend import kernels_run
from mixlab.ops.operator import Operator
from mixlab.ops.short_conv.reference import short_conv

KERNEL_WIDTH = 4  # taps that the kernels know


def two_way_short_conv(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x (B, L, C), weight (R, C, W), bias (R, C) -> (B, L, R, C): the first direction from the left, a second from the
    right, each with its own filter, bias and SiLU."""
    if runs_kernels(x, weight):
        return _conv(x, weight, bias)
    ways = [
        short_conv(x, taps, shift, reverse=way == 1) for way, (taps, shift) in enumerate(zip(weight, bias, strict=True))
    ]
    return torch.stack(ways, dim=2)


def runs_kernels(x: Tensor, weight: Tensor) -> bool:
    """The one dispatch: whether this convolution runs on the kernels."""
    directions, channels, width = weight.shape
    fits = width == KERNEL_WIDTH and directions <= 2 and channels % 16 == 0
    return fits and x.dtype in (torch.bfloat16, torch.float32) and kernels_run(x)


def _forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    from mixlab.ops.add_norm.triton_add_norm import in_rows  # here: without a GPU there may be no Triton
    from mixlab.ops.short_conv.triton_short_conv import short_conv_forward

    values, _, _ = short_conv_forward(in_rows(x), weight, bias, 0)
    return values.unflatten(2, weight.shape[:2])


def _backward(dout: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
    from mixlab.ops.add_norm.triton_add_norm import in_rows
    from mixlab.ops.short_conv.triton_short_conv import short_conv_backward

    x = in_rows(x)
    dx = torch.empty(*x.shape[:2], x.stride(1), dtype=x.dtype, device=x.device)[..., : x.shape[2]]  # strided as x is
    nothing = dout.new_empty(2, *x.shape[:2], 0)
    dweight, dbias = short_conv_backward(dout.contiguous().flatten(2), nothing, x, weight, bias, dx)
    return [dx, dweight.to(weight.dtype), dbias.to(bias.dtype)]


_conv = Operator(
    "short_conv",
    forward=_forward,
    fake=lambda x, weight, bias: x.new_empty(*x.shape[:2], *weight.shape[:2]),
    backward=_backward,
    fake_backward=lambda dout, *kept: [t.new_empty(t.shape) for t in kept],
    keep=lambda x, weight, bias, out: ((x, weight, bias), ()),
)
