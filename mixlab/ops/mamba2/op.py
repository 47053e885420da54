"""A Mamba-2 mixer behind its input projection: fused kernels for CUDA tensors, plain torch for the rest."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mixlab.ops.mamba2 import reference
from mixlab.ops.ssd.tiling import kernels_take

CONV_WIDTH = 4  # of the convolution kernels
MAX_INNER = 8192  # E: a row must fit into the registers of one program of the norm


def mamba2(
    projected: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor,
    dt_bias: Tensor,
    A_log: Tensor,
    skip: Tensor,
    norm_weight: Tensor,
    out_weight: Tensor,
    *,
    head_dim: int,
    eps: float,
) -> Tensor:
    """From the input projection (B, L, 2E + 2N + heads) to the mixer's output (B, L, D)."""
    parameters = (conv_weight, conv_bias, dt_bias, A_log, skip, norm_weight, out_weight)
    if not runs_kernels(projected, conv_weight, norm_weight, head_dim=head_dim):
        return reference.mamba2(projected, *parameters, head_dim=head_dim, eps=eps)
    run = _mixer if torch.compiler.is_compiling() or type(projected) is not Tensor else _Eager.apply
    return run(projected, *parameters, head_dim, eps)


def runs_kernels(projected: Tensor, conv_weight: Tensor, norm_weight: Tensor, *, head_dim: int) -> bool:
    """The one dispatch: whether this mixer runs on the kernels."""
    _, channels, width = conv_weight.shape
    inner = norm_weight.shape[1]
    batch, length, _ = projected.shape
    return (
        projected.is_cuda
        and width == CONV_WIDTH
        and inner <= MAX_INNER
        and kernels_take(batch, length, head_dim, (channels - inner) // 2, projected.dtype)
    )


def _forward(
    projected: Tensor, conv_weight: Tensor, conv_bias: Tensor, dt_bias: Tensor, A_log: Tensor, skip: Tensor,
    norm_weight: Tensor, out_weight: Tensor, head_dim: int, eps: float,
) -> Tensor:  # fmt: skip
    from mixlab.ops.mamba2.triton_mamba2 import mamba2_forward  # here: a machine without a GPU may have no Triton

    tensors = (projected, conv_weight, conv_bias, dt_bias, A_log, skip, norm_weight, out_weight)
    return mamba2_forward(*tensors, head_dim=head_dim, eps=eps)


_mixer = torch.library.custom_op("mixlab::mamba2", _forward, mutates_args=(), device_types="cuda")


@_mixer.register_fake
def _(
    projected: Tensor, conv_weight: Tensor, conv_bias: Tensor, dt_bias: Tensor, A_log: Tensor, skip: Tensor,
    norm_weight: Tensor, out_weight: Tensor, head_dim: int, eps: float,
) -> Tensor:  # fmt: skip
    return projected.new_empty(*projected.shape[:2], out_weight.shape[0])


def _backward(
    dout: Tensor, projected: Tensor, conv_weight: Tensor, conv_bias: Tensor, dt_bias: Tensor, A_log: Tensor,
    skip: Tensor, norm_weight: Tensor, out_weight: Tensor, head_dim: int, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from mixlab.ops.mamba2.triton_mamba2 import mamba2_backward

    tensors = (projected, conv_weight, conv_bias, dt_bias, A_log, skip, norm_weight, out_weight)
    return mamba2_backward(dout, *tensors, head_dim=head_dim, eps=eps)


_mixer_backward = torch.library.custom_op("mixlab::mamba2_backward", _backward, mutates_args=(), device_types="cuda")


@_mixer_backward.register_fake
def _(
    dout: Tensor, projected: Tensor, conv_weight: Tensor, conv_bias: Tensor, dt_bias: Tensor, A_log: Tensor,
    skip: Tensor, norm_weight: Tensor, out_weight: Tensor, head_dim: int, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    directions, channels, width = conv_weight.shape
    return (
        projected.new_empty(projected.shape),
        projected.new_empty(directions, channels, width + 1, dtype=torch.float32),
        projected.new_empty(3, *A_log.shape, dtype=torch.float32),
        projected.new_empty(norm_weight.shape, dtype=torch.float32),
        projected.new_empty(out_weight.shape),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.head_dim, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, dout: Tensor, backward: Callable[..., Any] = _mixer_backward) -> tuple[Tensor | None, ...]:
    dprojected, dconv, sums, dnorm, dout_weight = backward(dout, *ctx.saved_tensors, ctx.head_dim, ctx.eps)
    dA_log, dskip, ddt_bias = sums.unbind(0)
    gradients = (dconv[..., :-1], dconv[..., -1], ddt_bias, dA_log, dskip, dnorm, dout_weight)
    parameters = ctx.saved_tensors[1:]
    return dprojected, *(g.to(p.dtype) for g, p in zip(gradients, parameters, strict=True)), None, None


_mixer.register_autograd(_gradients, setup_context=_keep)


class _Eager(torch.autograd.Function):
    """The same without the dispatcher, whose 0.1 ms per call is more than some of the kernels take."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        output = _forward(*inputs)
        _keep(ctx, inputs, output)
        return output

    backward = staticmethod(partial(_gradients, backward=_backward))
