"""Mamba-2's selective scan, from the left or from both sides."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.fx import wrap

from mixlab.errors import InputError
from mixlab.mixers.mixer import ALL, Grid, MixerConfig, Mixing, TokenMixer, num_heads_of, overlap
from mixlab.ops.gated_norm.reference import gated_norm
from mixlab.ops.mamba2.op import mamba2_mixer
from mixlab.ops.mamba2.reference import scan_inputs, split_projected
from mixlab.ops.ssd.op import ssd
from mixlab.ops.ssd.reference import decay_matrix, per_head, ssd_matrix

wrap("mamba2_mixer")


@dataclass
class SSDMixing(Mixing):
    """(q kᵀ ∘ decay ∘ triangle) dt + skip I, per head. Two directions are twice the heads: the last `num_reverse` read
    from the right and see only themselves and later tokens.

    q, k (B, L, G, N), shared by the heads of a group; v (B, L, H, P); dt (B, L, H); A, skip (H,).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    dt: Tensor
    A: Tensor
    skip: Tensor
    num_reverse: int = 0

    @property
    def values(self) -> Tensor:  # type: ignore[override]
        return self.v.transpose(1, 2)

    def matrix(self, heads: slice = ALL) -> Tensor:
        q, k = (per_head(t, self.num_heads)[:, :, heads] for t in (self.q, self.k))
        return ssd_matrix(
            q, k, self.dt[..., heads], self.A[heads], self.skip[heads], num_reverse=self.num_reverse_in(heads)
        )

    def mask(self, heads: slice = ALL) -> Tensor:
        """The decay with its triangle alone (B, h, L, L): the matrix without q, k, dt and skip."""
        return decay_matrix(self.dt[..., heads], self.A[heads], num_reverse=self.num_reverse_in(heads))

    def num_reverse_in(self, heads: slice) -> int:
        chosen = range(self.num_heads)[heads]
        if chosen.step < 0:
            raise InputError(f"heads {heads} run backwards; give them in rising order")
        return sum(head >= self.num_heads - self.num_reverse for head in chosen)

    def apply(self) -> Tensor:
        y = ssd(self.q, self.k, self.v, self.dt, self.A, self.skip, num_reverse=self.num_reverse)
        return y.transpose(1, 2)

    def sides(self, head: int) -> tuple[bool, bool]:
        reverse = head >= self.num_heads - self.num_reverse
        return not reverse, reverse

    def rank_bound(self, rows: range, columns: range) -> int:
        """N off the diagonal, where a block is a product of factors N wide (`analysis/blocks.py` shows why)."""
        size = super().rank_bound(rows, columns)
        return size if overlap(rows, columns) else min(size, self.q.shape[-1])


@dataclass(frozen=True, kw_only=True)
class Mamba2Config(MixerConfig):
    kind: ClassVar[str] = "mamba2"
    expand: int = 2
    head_dim: int = 64
    state: int = 64
    conv: int = 4
    two_way: bool = True

    @property
    def is_causal(self) -> bool:
        return not self.two_way

    @property
    def num_directions(self) -> int:
        return 2 if self.two_way else 1

    def build(self, dim: int, depth: int) -> "Mamba2":
        return Mamba2(self, dim, depth)

    def mixing_macs(self, num_tokens: int, dim: int) -> int:
        # Linear in tokens and state (Dino-Mamba, claim 19): one update and one read-out of the state per token.
        return 2 * num_tokens * self.state * self.expand * dim * self.num_directions


class Mamba2(TokenMixer):
    """One input projection for all directions; each direction has its own convolution, decay, skip and norm."""

    norm_eps = 1e-5
    stacked = ("conv_bias", "dt_bias", "A_log", "skip", "norm_weight")

    def __init__(self, config: Mamba2Config, dim: int, depth: int) -> None:
        super().__init__()
        inner = config.expand * dim
        num_heads = num_heads_of(inner, config.head_dim)
        channels = inner + 2 * config.state
        directions = config.num_directions
        self.config = config
        self.keep_scan = False
        self.in_proj = nn.Linear(dim, inner + channels + num_heads, bias=False)
        self.conv_weight = nn.Parameter(torch.empty(directions, channels, config.conv))
        self.conv_bias = nn.Parameter(torch.empty(directions, channels))
        self.dt_bias = nn.Parameter(torch.empty(directions, num_heads))
        self.A_log = nn.Parameter(torch.empty(directions, num_heads))
        self.skip = nn.Parameter(torch.ones(directions, num_heads))
        self.norm_weight = nn.Parameter(torch.ones(directions, inner))
        self.out_proj = nn.Linear(inner, dim, bias=False)
        self.reset_parameters(depth)

    @torch.no_grad()
    def reset_parameters(self, depth: int) -> None:
        """Released initialisation: dt log-uniform in [1e-3, 1e-1], A uniform in [1, 16], output scaled by 1/√depth."""
        bound = self.config.conv**-0.5
        self.conv_weight.uniform_(-bound, bound)
        self.conv_bias.uniform_(-bound, bound)
        dt = torch.empty_like(self.dt_bias).uniform_(math.log(1e-3), math.log(1e-1)).exp()
        self.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # the inverse of softplus
        self.A_log.uniform_(1, 16).log_()
        nn.init.kaiming_uniform_(self.out_proj.weight, a=math.sqrt(5))
        self.out_proj.weight /= math.sqrt(depth)

    def prepare(self, x: Tensor, grid: Grid) -> tuple[SSDMixing, Tensor]:
        gate, xkq, dt = split_projected(self.in_proj(x), self.conv_weight, self.dt_bias, self.norm_weight)
        directions = zip(self.conv_weight, self.conv_bias, self.dt_bias, strict=True)
        scans = [
            scan_inputs(xkq, dt, *parameters, head_dim=self.config.head_dim, reverse=r == 1)
            for r, parameters in enumerate(directions)
        ]
        q, k, v, dt = (torch.cat(parts, dim=2) for parts in zip(*scans, strict=True))
        A = -self.A_log.exp().flatten()
        return SSDMixing(q, k, v, dt, A, self.skip.flatten(), num_reverse=self.A_log[1:].numel()), gate

    def merge(self, mixed: Tensor, bypass: Tensor | None) -> Tensor:
        assert bypass is not None
        directions = mixed.transpose(1, 2).flatten(2).chunk(self.config.num_directions, dim=-1)  # (B, L, E) each
        normed = [
            gated_norm(y, bypass, w, eps=self.norm_eps) for y, w in zip(directions, self.norm_weight, strict=True)
        ]
        return self.out_proj(torch.stack(normed).mean(0))

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """The same as prepare, apply, merge, in one fused operation."""
        return mamba2_mixer(
            x,
            self.in_proj.weight,
            self.conv_weight,
            self.conv_bias,
            self.dt_bias,
            self.A_log,
            self.skip,
            self.norm_weight,
            self.out_proj.weight,
            head_dim=self.config.head_dim,
            eps=self.norm_eps,
            keep_scan=self.keep_scan,
        )

    def scan_bytes(self, x: Tensor) -> int:
        """What `keep_scan` keeps of tokens x (B, L, D), about."""
        kind = x.device.type
        autocast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
        number = torch.get_autocast_dtype(kind).itemsize if autocast else x.element_size()
        (directions, num_heads), inner = self.A_log.shape, self.norm_weight.shape[1]
        steps = 5 * 4 * num_heads  # their planes, in float32
        return x.shape[:2].numel() * directions * (2 * (inner + self.config.state) * number + steps)
