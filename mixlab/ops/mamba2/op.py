"""The inside of a Mamba-2 mixer, wherever the tensors are: fused kernels for CUDA tensors, plain torch for the rest."""

from typing import Any

import torch
from torch import Tensor

from mixlab.ops.mamba2 import reference
from mixlab.ops.ssd.tiling import kernels_take, tiling

CONV_WIDTH = 4  # of the convolution kernels
MAX_INNER = 8192  # E: a row must fit into the registers of one program of the norm


def mamba2_inner(
    projected: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor,
    dt_bias: Tensor,
    A_log: Tensor,
    skip: Tensor,
    norm_weight: Tensor,
    *,
    head_dim: int,
    eps: float,
) -> Tensor:
    """From the input projection (B, L, 2E + 2N + heads) to what the output projection reads (B, L, E): `reference.py`."""
    parameters = (conv_weight, conv_bias, dt_bias, A_log, skip, norm_weight)
    if not runs_kernels(projected, conv_weight, norm_weight, head_dim=head_dim):
        return reference.mamba2_inner(projected, *parameters, head_dim=head_dim, eps=eps)
    keep_states = torch.is_grad_enabled() and any(t.requires_grad for t in (projected, *parameters))
    return _inner(projected, *parameters, head_dim, eps, keep_states)[0]


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


@torch.library.custom_op("mixlab::mamba2", mutates_args=(), device_types="cuda")
def _inner(
    projected: Tensor, conv_weight: Tensor, conv_bias: Tensor, dt_bias: Tensor, A_log: Tensor, skip: Tensor,
    norm_weight: Tensor, head_dim: int, eps: float, keep_states: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    from mixlab.ops.mamba2.triton_mamba2 import mamba2_forward

    tensors = (projected, conv_weight, conv_bias, dt_bias, A_log, skip, norm_weight)
    return mamba2_forward(*tensors, head_dim=head_dim, eps=eps, keep_states=keep_states)


@_inner.register_fake
def _(
    projected: Tensor, conv_weight: Tensor, conv_bias: Tensor, dt_bias: Tensor, A_log: Tensor, skip: Tensor,
    norm_weight: Tensor, head_dim: int, eps: float, keep_states: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    batch, length, _ = projected.shape
    inner, num_heads = norm_weight.shape[1], A_log.numel()
    state = (conv_weight.shape[1] - inner) // 2
    num_states = tiling(length, projected.dtype).num_full if keep_states else 0
    return (
        projected.new_empty(batch, length, inner),
        projected.new_empty(batch, length, num_heads, head_dim),
        projected.new_empty(batch, num_heads, num_states, state, head_dim),
    )


@torch.library.custom_op("mixlab::mamba2_backward", mutates_args=(), device_types="cuda")
def _inner_backward(
    dout: Tensor, projected: Tensor, conv_weight: Tensor, conv_bias: Tensor, dt_bias: Tensor, A_log: Tensor, skip: Tensor,
    norm_weight: Tensor, y: Tensor, states: Tensor, head_dim: int, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from mixlab.ops.mamba2.triton_mamba2 import mamba2_backward

    tensors = (projected, conv_weight, conv_bias, dt_bias, A_log, skip, norm_weight, y, states)
    return mamba2_backward(dout, *tensors, head_dim=head_dim, eps=eps)


@_inner_backward.register_fake
def _(
    dout: Tensor, projected: Tensor, conv_weight: Tensor, conv_bias: Tensor, dt_bias: Tensor, A_log: Tensor, skip: Tensor,
    norm_weight: Tensor, y: Tensor, states: Tensor, head_dim: int, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    directions, channels, width = conv_weight.shape
    return (
        projected.new_empty(projected.shape),
        projected.new_empty(directions, channels, width + 1, dtype=torch.float32),
        projected.new_empty(3, *A_log.shape, dtype=torch.float32),
        projected.new_empty(norm_weight.shape, dtype=torch.float32),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, ctx.head_dim, ctx.eps, _ = inputs
    ctx.save_for_backward(*tensors, *output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, dout: Tensor | None, _y: None, _states: None) -> tuple[Tensor | None, ...]:
    if dout is None:
        return (None,) * 10
    dprojected, dconv, sums, dnorm = _inner_backward(dout, *ctx.saved_tensors, ctx.head_dim, ctx.eps)
    dA_log, dskip, ddt_bias = sums.unbind(0)
    parameters = ctx.saved_tensors[1:7]
    gradients = (dconv[..., :-1], dconv[..., -1], ddt_bias, dA_log, dskip, dnorm)
    return dprojected, *(g.to(p.dtype) for g, p in zip(gradients, parameters, strict=True)), None, None, None


_inner.register_autograd(_gradients, setup_context=_keep)
