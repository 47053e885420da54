"""Softmax attention, wherever the tensors are: one kernel each way for few tokens on a GPU, torch's for the rest."""

import torch
from torch import Tensor

from mixlab.ops.attention import reference
from mixlab.ops.backend import kernels_run
from mixlab.ops.operator import Operator
from mixlab.ops.ssd.tiling import MAX_BATCH

MAX_LENGTH = 128  # tokens: one program has all scores of a head in its registers
WIDTHS = (16, 32, 64)  # of a head


def softmax_attention(qkv: Tensor, *, head_dim: int, causal: bool = False) -> Tensor:
    """softmax(q kᵀ / √P) v, each head by itself: (B, L, 3 H P) -> (B, L, H P)."""
    if not runs_kernels(qkv, head_dim=head_dim):
        return reference.softmax_attention(qkv, head_dim=head_dim, causal=causal)
    return _attention(qkv, head_dim, causal)


def runs_kernels(qkv: Tensor, *, head_dim: int) -> bool:
    """The one dispatch: whether this attention runs on the kernels."""
    fits = 1 <= qkv.shape[0] <= MAX_BATCH and 1 <= qkv.shape[1] <= MAX_LENGTH
    return fits and head_dim in WIDTHS and qkv.dtype == torch.bfloat16 and kernels_run(qkv)


def _forward(qkv: Tensor, head_dim: int, causal: bool) -> Tensor:
    from mixlab.ops.attention.triton_attention import forward  # here: without a GPU there may be no Triton

    return forward(qkv, head_dim=head_dim, causal=causal)


def _backward(dout: Tensor, qkv: Tensor, head_dim: int, causal: bool) -> list[Tensor]:
    from mixlab.ops.attention.triton_attention import backward

    return [backward(dout, qkv, head_dim=head_dim, causal=causal)]


_attention = Operator(
    "attention",
    forward=_forward,
    fake=lambda qkv, head_dim, causal: qkv.new_empty(*qkv.shape[:2], qkv.shape[2] // 3),
    backward=_backward,
    fake_backward=lambda dout, qkv, head_dim, causal: [qkv.new_empty(qkv.shape)],
    keep=lambda qkv, head_dim, causal, out: ((qkv,), (head_dim, causal)),
)
