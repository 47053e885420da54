"""Linear attention, wherever the tensors are: one kernel each way for CUDA tensors, plain torch for the rest.

The causal form is the scan that forgets nothing, and so runs on the kernels of the scan.
"""

import torch
from torch import Tensor

from mixlab.ops.linear_attention import reference
from mixlab.ops.linear_attention.reference import linear_attention, linear_attention_matrix
from mixlab.ops.operator import Operator
from mixlab.ops.ssd.tiling import kernels_take

__all__ = ["linear_attention", "linear_attention_matrix", "softmax_linear_attention"]

MAX_WIDTH = 64  # of a head: two square states of it must fit into the registers of one program


def softmax_linear_attention(qkv: Tensor, *, head_dim: int) -> Tensor:
    """Fully visible, q softmaxed over its features and k over the tokens: (B, L, 3 H P) -> (B, L, H P)."""
    if not runs_kernels(qkv, head_dim=head_dim):
        return reference.softmax_linear_attention(qkv, head_dim=head_dim)
    return _attention(qkv, head_dim)


def runs_kernels(qkv: Tensor, *, head_dim: int) -> bool:
    """The one dispatch: whether this attention runs on the kernels."""
    return head_dim <= MAX_WIDTH and kernels_take(qkv, head_dim=head_dim, state=head_dim)


def _forward(qkv: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    from mixlab.ops.linear_attention.triton_linear_attention import forward  # here: without a GPU perhaps no Triton

    return forward(qkv, head_dim=head_dim)


def _fake(qkv: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    batch, length, width = qkv.shape
    return qkv.new_empty(batch, length, width // 3), qkv.new_empty(batch, width // 3, dtype=torch.float32)


def _backward(dout: Tensor, qkv: Tensor, log_sums: Tensor, head_dim: int) -> list[Tensor]:
    from mixlab.ops.linear_attention.triton_linear_attention import backward

    return [backward(dout, qkv, log_sums, head_dim=head_dim)]


_attention = Operator(
    "linear_attention",
    forward=_forward,
    fake=_fake,
    backward=_backward,
    fake_backward=lambda dout, qkv, log_sums, head_dim: [qkv.new_empty(qkv.shape)],
    keep=lambda qkv, head_dim, out, log_sums: ((qkv, log_sums), (head_dim,)),
)
