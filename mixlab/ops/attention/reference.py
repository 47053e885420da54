"""Softmax attention by torch's own."""

import torch.nn.functional as F
from torch import Tensor


def softmax_attention(qkv: Tensor, *, head_dim: int, causal: bool) -> Tensor:
    """softmax(q kᵀ / √P) v, each head by itself: (B, L, 3 H P) -> (B, L, H P)."""
    q, k, v = qkv.unflatten(-1, (3, -1, head_dim)).permute(2, 0, 3, 1, 4)  # (B, H, L, P) each
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2)
