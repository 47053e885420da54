"""Linear attention, wherever the tensors are: one kernel each way for CUDA tensors, plain torch for the rest.

The causal form is the scan that forgets nothing, and so runs on the kernels of the scan.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mixlab.ops.linear_attention import reference
from mixlab.ops.linear_attention.reference import linear_attention, linear_attention_matrix
from mixlab.ops.ssd.tiling import kernels_take

__all__ = ["linear_attention", "linear_attention_matrix", "softmax_linear_attention"]

MAX_WIDTH = 64  # of a head: two square states of it must fit into the registers of one program


def softmax_linear_attention(qkv: Tensor, *, head_dim: int) -> Tensor:
    """Fully visible, q softmaxed over its features and k over the tokens: (B, L, 3 H P) -> (B, L, H P)."""
    if not runs_kernels(qkv, head_dim=head_dim):
        return reference.softmax_linear_attention(qkv, head_dim=head_dim)
    if torch.compiler.is_compiling() or type(qkv) is not Tensor:
        return _attention(qkv, head_dim)[0]
    return _Eager.apply(qkv, head_dim)


def runs_kernels(qkv: Tensor, *, head_dim: int) -> bool:
    """The one dispatch: whether this attention runs on the kernels."""
    batch, length, _ = qkv.shape
    return qkv.is_cuda and head_dim <= MAX_WIDTH and kernels_take(batch, length, head_dim, head_dim, qkv.dtype)


def _forward(qkv: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    from mixlab.ops.linear_attention.triton_linear_attention import forward  # here: without a GPU perhaps no Triton

    return forward(qkv, head_dim=head_dim)


_attention = torch.library.custom_op("mixlab::linear_attention", _forward, mutates_args=(), device_types="cuda")


@_attention.register_fake
def _(qkv: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    batch, length, width = qkv.shape
    return qkv.new_empty(batch, length, width // 3), qkv.new_empty(batch, width // 3, dtype=torch.float32)


def _backward(dout: Tensor, qkv: Tensor, log_sums: Tensor, head_dim: int) -> Tensor:
    from mixlab.ops.linear_attention.triton_linear_attention import backward

    return backward(dout, qkv, log_sums, head_dim=head_dim)


_attention_backward = torch.library.custom_op(
    "mixlab::linear_attention_backward", _backward, mutates_args=(), device_types="cuda"
)


@_attention_backward.register_fake
def _(dout: Tensor, qkv: Tensor, log_sums: Tensor, head_dim: int) -> Tensor:
    return qkv.new_empty(qkv.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, ctx.head_dim = inputs
    ctx.save_for_backward(qkv, output[1])


def _gradients(
    ctx: Any, dout: Tensor, _: Tensor | None = None, backward: Callable[..., Tensor] = _attention_backward
) -> tuple[Tensor, None]:
    qkv, log_sums = ctx.saved_tensors
    return backward(dout, qkv, log_sums, ctx.head_dim), None


_attention.register_autograd(_gradients, setup_context=_keep)


class _Eager(torch.autograd.Function):
    """The same without the dispatcher, whose 0.1 ms per call is more than the kernel takes."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        output = _forward(*inputs)
        _keep(ctx, inputs, output)
        return output[0]

    backward = staticmethod(partial(_gradients, backward=_backward))
