"""Add and normalise, wherever the tensors are: one kernel for CUDA tensors, plain torch for the rest."""

from typing import Any

import torch
from torch import Tensor

from mixlab.ops.add_norm import reference

DTYPES = (torch.float32, torch.bfloat16)
MAX_WIDTH = 8192  # a row must fit into the registers of one program


def add_rms_norm(branch: Tensor, stream: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """(B, L, D) twice and (D,) -> the new stream in float32 (float64 stays), and its RMSNorm in the dtype of the branch."""
    if not runs_kernels(branch, stream):
        return reference.add_rms_norm(branch, stream, weight, eps=eps)
    return _add_norm(branch, stream, weight, eps)


def runs_kernels(branch: Tensor, stream: Tensor) -> bool:
    """The one dispatch: whether this sum runs on the kernel."""
    same = branch.shape == stream.shape and branch.numel() > 0 and branch.shape[-1] <= MAX_WIDTH
    return branch.is_cuda and same and branch.dtype in DTYPES and stream.dtype in DTYPES


@torch.library.custom_op("mixlab::add_norm", mutates_args=(), device_types="cuda")
def _add_norm(branch: Tensor, stream: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    from mixlab.ops.add_norm.triton_add_norm import add_norm_forward

    return add_norm_forward(branch, stream, weight, eps=eps)


@_add_norm.register_fake
def _(branch: Tensor, stream: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return branch.new_empty(branch.shape, dtype=torch.float32), branch.new_empty(branch.shape)


@torch.library.custom_op("mixlab::add_norm_backward", mutates_args=(), device_types="cuda")
def _add_norm_backward(
    dout: Tensor | None, dnormed: Tensor | None, out: Tensor, weight: Tensor, branch_dtype: torch.dtype, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    from mixlab.ops.add_norm.triton_add_norm import add_norm_backward

    return add_norm_backward(dout, dnormed, out, weight, branch_dtype, eps=eps)


@_add_norm_backward.register_fake
def _(
    dout: Tensor | None, dnormed: Tensor | None, out: Tensor, weight: Tensor, branch_dtype: torch.dtype, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dbranch = out.new_empty(out.shape, dtype=branch_dtype)
    return dbranch, out.new_empty(out.shape), weight.new_empty(weight.shape, dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    branch, stream, weight, ctx.eps = inputs
    ctx.save_for_backward(output[0], weight)
    ctx.dtypes = branch.dtype, stream.dtype
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, dout: Tensor | None, dnormed: Tensor | None) -> tuple[Tensor | None, ...]:
    if dout is None and dnormed is None:
        return None, None, None, None
    out, weight = ctx.saved_tensors
    branch_dtype, stream_dtype = ctx.dtypes
    dbranch, dstream, dweight = _add_norm_backward(dout, dnormed, out, weight, branch_dtype, ctx.eps)
    return dbranch, dstream.to(stream_dtype), dweight.to(weight.dtype), None


_add_norm.register_autograd(_gradients, setup_context=_keep)
