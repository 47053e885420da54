"""Softmax attention."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import wrap

from mixlab.mixers.mixer import (
    ALL,
    Grid,
    MixerConfig,
    Mixing,
    TokenMixer,
    causal_mask,
    join_heads,
    num_heads_of,
    split_heads,
)
from mixlab.ops.attention.op import softmax_attention
from mixlab.ops.linear import Linear

wrap("softmax_attention")


@dataclass
class SoftmaxMixing(Mixing):
    """softmax(q kᵀ / √P + bias) over q, k, values (B, H, L, P); causal: each token sees itself and those before."""

    q: Tensor
    k: Tensor
    values: Tensor
    causal: bool = False
    bias: Tensor | None = None  # (B or 1, H or 1, L, L): relative positions

    def matrix(self, heads: slice = ALL) -> Tensor:
        q, k = self.q[:, heads], self.k[:, heads]
        scores = q @ k.mT * q.shape[-1] ** -0.5  # (B, h, L, L)
        if self.bias is not None:
            scores = scores + (self.bias[:, heads] if self.bias.shape[1] > 1 else self.bias)
        if self.causal:
            scores = scores.masked_fill(~causal_mask(scores.shape[-1], scores.device), -torch.inf)
        return scores.softmax(-1)

    def apply(self) -> Tensor:
        return F.scaled_dot_product_attention(self.q, self.k, self.values, self.bias, is_causal=self.causal)

    def sides(self, head: int) -> tuple[bool, bool]:
        return True, not self.causal


class QKVMixer(TokenMixer):
    """Queries, keys and values from one projection with biases, as in ViT; subclasses say how they are mixed."""

    def __init__(self, dim: int, head_dim: int) -> None:
        super().__init__()
        num_heads_of(dim, head_dim)
        self.head_dim = head_dim
        self.qkv = Linear(dim, 3 * dim)
        self.out_proj = Linear(dim, dim)
        for linear in (self.qkv, self.out_proj):
            nn.init.trunc_normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)

    @abstractmethod
    def mixing(self, q: Tensor, k: Tensor, v: Tensor) -> Mixing:
        """The mixing of q, k, v (B, H, L, P)."""

    def prepare(self, x: Tensor, grid: Grid) -> tuple[Mixing, None]:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return self.mixing(*(split_heads(part, self.head_dim) for part in (q, k, v))), None

    def merge(self, mixed: Tensor, bypass: Tensor | None) -> Tensor:
        return self.out_proj(join_heads(mixed))


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(MixerConfig):
    kind: ClassVar[str] = "attention"
    head_dim: int = 64
    causal: bool = False

    @property
    def is_causal(self) -> bool:
        return self.causal

    def build(self, dim: int, depth: int) -> "Attention":
        return Attention(self, dim)

    def mixing_macs(self, num_tokens: int, dim: int) -> int:
        return 2 * num_tokens**2 * dim


class Attention(QKVMixer):
    def __init__(self, config: AttentionConfig, dim: int) -> None:
        super().__init__(dim, config.head_dim)
        self.causal = config.causal

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Prepare, apply, merge, in one operation between the projections."""
        return self.out_proj(softmax_attention(self.qkv(x), head_dim=self.head_dim, causal=self.causal))

    def mixing(self, q: Tensor, k: Tensor, v: Tensor) -> SoftmaxMixing:
        return SoftmaxMixing(q, k, v, self.causal)
