"""Add and normalise, wherever the tensors are: one kernel for CUDA tensors, plain torch for the rest."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mixlab.ops.add_norm import reference
from mixlab.ops.backend import HAS_TRITON

DTYPES = (torch.float32, torch.bfloat16)
MAX_WIDTH = 8192  # a row must fit into the registers of one program


def add_norm(
    branch: Tensor, stream: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float
) -> tuple[Tensor, Tensor]:
    """(B, L, D) twice and (D,) -> the new stream, in the stream's dtype, and its norm in the dtype of the branch.

    LayerNorm where there is a bias, RMSNorm where there is none.
    """
    if not runs_kernels(branch, stream):
        return reference.add_norm(branch, stream, weight, bias, eps=eps)
    run = _add_norm if torch.compiler.is_compiling() or type(branch) is not Tensor else _Eager.apply
    return run(branch, stream, weight, bias, eps)


def runs_kernels(branch: Tensor, stream: Tensor) -> bool:
    """The one dispatch: whether this sum runs on the kernel, whose stream is float32."""
    same = branch.shape == stream.shape and branch.numel() > 0 and branch.shape[-1] <= MAX_WIDTH
    return branch.is_cuda and HAS_TRITON and same and branch.dtype in DTYPES and stream.dtype == torch.float32


def _forward(branch: Tensor, stream: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    from mixlab.ops.add_norm.triton_add_norm import add_norm_forward  # here: without a GPU there may be no Triton

    return add_norm_forward(branch, stream, weight, bias, eps=eps)


_add_norm = torch.library.custom_op("mixlab::add_norm", _forward, mutates_args=(), device_types="cuda")


@_add_norm.register_fake
def _(branch: Tensor, stream: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    return branch.new_empty(branch.shape, dtype=torch.float32), branch.new_empty(branch.shape)


def _backward(
    dout: Tensor | None,
    dnormed: Tensor | None,
    out: Tensor,
    weight: Tensor,
    branch_dtype: torch.dtype,
    centred: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    from mixlab.ops.add_norm.triton_add_norm import add_norm_backward

    return add_norm_backward(dout, dnormed, out, weight, branch_dtype, centred=centred, eps=eps)


_add_norm_backward = torch.library.custom_op(
    "mixlab::add_norm_backward", _backward, mutates_args=(), device_types="cuda"
)


@_add_norm_backward.register_fake
def _(
    dout: Tensor | None,
    dnormed: Tensor | None,
    out: Tensor,
    weight: Tensor,
    branch_dtype: torch.dtype,
    centred: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    dbranch = out.new_empty(out.shape, dtype=branch_dtype)
    dvectors = weight.new_empty((1 + centred, *weight.shape), dtype=torch.float32)
    return dbranch, out.new_empty(out.shape), dvectors


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    branch, _, weight, bias, ctx.eps = inputs
    ctx.save_for_backward(output[0], weight)
    ctx.branch_dtype, ctx.centred = branch.dtype, bias is not None
    ctx.set_materialize_grads(False)


def _gradients(
    ctx: Any, dout: Tensor | None, dnormed: Tensor | None, backward: Callable[..., Any] = _add_norm_backward
) -> tuple[Tensor | None, ...]:
    if dout is None and dnormed is None:
        return None, None, None, None, None
    out, weight = ctx.saved_tensors
    dbranch, dstream, dvectors = backward(dout, dnormed, out, weight, ctx.branch_dtype, ctx.centred, ctx.eps)
    dweight, *dbias = dvectors.to(weight.dtype)
    return dbranch, dstream, dweight, dbias[0] if dbias else None, None


_add_norm.register_autograd(_gradients, setup_context=_keep)


class _Eager(torch.autograd.Function):
    """The same without the dispatcher, whose 0.1 ms per call is more than the kernel takes."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        output = _forward(*inputs)
        _keep(ctx, inputs, output)
        return output

    backward = staticmethod(partial(_gradients, backward=_backward))
