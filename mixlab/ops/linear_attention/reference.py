"""Linear attention: a matrix of rank at most N, never built."""

import torch
from torch import Tensor

from mixlab.ops.ssd.op import ssd


def linear_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """(q kᵀ) v, or its lower triangle, for mapped q, k (B, H, L, N) and v (B, H, L, P) -> (B, H, L, P)."""
    if not causal:
        return q @ (k.mT @ v)
    # The causal form is the scan that forgets nothing: dt = 1, A = 0, no skip, each head its own group.
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    zero = torch.zeros(v.shape[2], dtype=torch.promote_types(v.dtype, torch.float32), device=v.device)
    dt = torch.ones(v.shape[:3], dtype=zero.dtype, device=v.device)
    return ssd(q, k, v, dt, zero, zero).transpose(1, 2)


def linear_attention_matrix(q: Tensor, k: Tensor, *, causal: bool) -> Tensor:
    """q kᵀ or its lower triangle: (B, H, L, N) twice -> (B, H, L, L)."""
    matrix = q @ k.mT
    return matrix.tril() if causal else matrix


def softmax_linear_attention(qkv: Tensor, *, head_dim: int) -> Tensor:
    """Fully visible, q softmaxed over its features and k over the tokens: (B, L, 3 H P) -> (B, L, H P)."""
    q, k, v = qkv.unflatten(-1, (3, -1, head_dim)).permute(2, 0, 3, 1, 4)  # (B, H, L, P) each
    q, k = q.softmax(-1).to(v.dtype), k.softmax(-2).to(v.dtype)
    return linear_attention(q, k, v, causal=False).transpose(1, 2).flatten(2)
