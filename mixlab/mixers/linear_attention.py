"""Linear attention: softmax replaced by a feature map on each side, so that the matrix is a product of thin factors."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import wrap

from mixlab.errors import InputError
from mixlab.mixers.attention import QKVMixer
from mixlab.mixers.mixer import ALL, Grid, MixerConfig, Mixing, overlap
from mixlab.ops.linear_attention.op import linear_attention, linear_attention_matrix, softmax_linear_attention

wrap("linear_attention")
wrap("softmax_linear_attention")
FeatureMap = Literal["softmax", "softmax_features", "elu"]


@dataclass
class LinearMixing(Mixing):
    """ψ(q) ψ(k)ᵀ over already mapped q, k (B, H, L, N) and values (B, H, L, P), or its lower triangle."""

    q: Tensor
    k: Tensor
    values: Tensor
    causal: bool = False

    @classmethod
    def from_features(cls, q: Tensor, k: Tensor, v: Tensor, *, feature_map: FeatureMap, causal: bool) -> "LinearMixing":
        """Map raw queries and keys so that the rows of the matrix sum to one, whatever the map and the length."""
        tiny = torch.finfo(torch.float32).tiny
        dtype = v.dtype
        if feature_map == "softmax" and not causal:
            # Over features for q and over tokens for k: each key feature becomes a distribution over the image.
            q, k = q.softmax(-1), k.softmax(-2)
        elif feature_map == "softmax":
            k = (k - k.amax(-2, keepdim=True).detach()).exp()  # a constant per feature, cancelled by the running sum
            q = q.softmax(-1) / k.cumsum(-2).clamp_min(tiny)
        else:
            q, k = _positive_features(q, k, feature_map)
            total = k.cumsum(-2) if causal else k.sum(-2, keepdim=True)
            q = q / (q * total).sum(-1, keepdim=True).clamp_min(tiny)
        return cls(q.to(dtype), k.to(dtype), v, causal)

    def matrix(self, heads: slice = ALL) -> Tensor:
        return linear_attention_matrix(self.q[:, heads], self.k[:, heads], causal=self.causal)

    def apply(self) -> Tensor:
        return linear_attention(self.q, self.k, self.values, causal=self.causal)

    def sides(self, head: int) -> tuple[bool, bool]:
        return True, not self.causal

    def rank_bound(self, rows: range, columns: range) -> int:
        """The width N of the factors, but for a triangle on the diagonal."""
        size = super().rank_bound(rows, columns)
        return size if self.causal and overlap(rows, columns) else min(size, self.q.shape[-1])


def _positive_features(q: Tensor, k: Tensor, feature_map: FeatureMap) -> tuple[Tensor, Tensor]:
    match feature_map:
        case "softmax_features":
            return q.softmax(-1), k.softmax(-1)
        case "elu":
            return F.elu(q) + 1, F.elu(k) + 1
        case _:
            raise InputError(f"unknown feature map {feature_map!r}; choose one of {', '.join(get_args(FeatureMap))}")


@dataclass(frozen=True, kw_only=True)
class LinearAttentionConfig(MixerConfig):
    """`softmax`: over features for q, over tokens for k; the default, since its matrix needs no further normaliser.

    The first paper says only that ψ is a softmax. `softmax_features` takes it over features on both sides, `elu` is
    elu + 1; both divide each row by its sum.
    """

    kind: ClassVar[str] = "linear_attention"
    head_dim: int = 64
    feature_map: FeatureMap = "softmax"
    causal: bool = False

    @property
    def is_causal(self) -> bool:
        return self.causal

    def build(self, dim: int, depth: int) -> "LinearAttention":
        return LinearAttention(self, dim)

    def mixing_macs(self, num_tokens: int, dim: int) -> int:
        return 2 * num_tokens * self.head_dim * dim


class LinearAttention(QKVMixer):
    def __init__(self, config: LinearAttentionConfig, dim: int) -> None:
        super().__init__(dim, config.head_dim)
        self.feature_map: FeatureMap = config.feature_map
        self.causal = config.causal

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Prepare, apply, merge; the default map in one fused operation between the projections."""
        if self.feature_map != "softmax" or self.causal:
            return super().forward(x, grid)
        return self.out_proj(softmax_linear_attention(self.qkv(x), head_dim=self.head_dim))

    def mixing(self, q: Tensor, k: Tensor, v: Tensor) -> LinearMixing:
        return LinearMixing.from_features(q, k, v, feature_map=self.feature_map, causal=self.causal)
