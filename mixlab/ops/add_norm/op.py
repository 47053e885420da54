"""Add and normalise, wherever the tensors are: one kernel for CUDA tensors, plain torch for the rest."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from mixlab.ops.add_norm import reference
from mixlab.ops.backend import kernels_run
from mixlab.ops.operator import Operator

DTYPES = (torch.float32, torch.bfloat16)
MAX_WIDTH = 8192  # a row must fit into the registers of one program


class Scaled(NamedTuple):
    """A branch (B, L, D) and its factor for each image (B,), to be multiplied by whoever adds it: stochastic depth."""

    branch: Tensor
    factors: Tensor


Branch = Tensor | Scaled


def whole(branch: Branch) -> Tensor:
    """The branch, multiplied."""
    if isinstance(branch, Scaled):
        return branch.branch * branch.factors[:, None, None].to(branch.branch.dtype)
    return branch


def add_norm(
    branch: Branch, stream: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float
) -> tuple[Tensor, Tensor]:
    """(B, L, D) twice and (D,) -> the new stream, in the stream's dtype, and its norm in the dtype of the branch.

    LayerNorm where there is a bias, RMSNorm where there is none.
    """
    factors = None
    if isinstance(branch, Scaled):
        branch, factors = branch
    if not runs_kernels(branch, stream):
        return reference.add_norm(branch, stream, weight, bias, factors, eps=eps)
    return _add_norm(branch, stream, weight, bias, factors, eps)


def runs_kernels(branch: Tensor, stream: Tensor) -> bool:
    """The one dispatch: whether this sum runs on the kernel, whose stream is float32."""
    return branch.shape == stream.shape and stream.dtype == torch.float32 and adds_in_kernel(branch)


def adds_in_kernel(branch: Tensor) -> bool:
    """Whether a branch can be added to a stream in float32 by the kernel."""
    fits = branch.numel() > 0 and branch.shape[-1] <= MAX_WIDTH
    return fits and branch.dtype in DTYPES and kernels_run(branch)


def _forward(
    branch: Tensor, stream: Tensor, weight: Tensor, bias: Tensor | None, factors: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    from mixlab.ops.add_norm.triton_add_norm import add_norm_forward  # here: without a GPU there may be no Triton

    return add_norm_forward(branch, stream, weight, bias, factors, eps=eps)


def _fake(branch: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return branch.new_empty(branch.shape, dtype=torch.float32), branch.new_empty(branch.shape)


def _backward(
    dout: Tensor | None,
    dnormed: Tensor | None,
    out: Tensor,
    weight: Tensor,
    factors: Tensor | None,
    branch_dtype: torch.dtype,
    centred: bool,
    eps: float,
) -> list[Tensor]:
    from mixlab.ops.add_norm.triton_add_norm import add_norm_backward

    return add_norm_backward(dout, dnormed, out, weight, factors, branch_dtype, centred=centred, eps=eps)


def _fake_backward(
    dout: Tensor | None,
    dnormed: Tensor | None,
    out: Tensor,
    weight: Tensor,
    factors: Tensor | None,
    dtype: torch.dtype,
    centred: bool,
    _: float,
) -> list[Tensor]:
    vectors = [weight.new_empty(weight.shape) for _ in range(1 + centred)]
    return [out.new_empty(out.shape, dtype=dtype), out.new_empty(out.shape), *vectors]


_add_norm = Operator(
    "add_norm",
    forward=_forward,
    fake=_fake,
    backward=_backward,
    fake_backward=_fake_backward,
    keep=lambda branch, stream, weight, bias, factors, eps, out, _: (
        (out, weight, factors),
        (branch.dtype, bias is not None, eps),
    ),
    num_results=2,
    constant=(4,),  # factors, which are drawn
)
