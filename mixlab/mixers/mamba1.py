"""Mamba-1: a short convolution along each scan, then a selective scan. Vim, Mamba-Reg and LocalVim."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import wrap

from mixlab.errors import InputError
from mixlab.mixers.mixer import Grid, MixerConfig
from mixlab.mixers.scan_orders import SEQUENCE, check_scans, count_reverse, scan_orders
from mixlab.mixers.selective import ChannelGate, Selection, SelectiveMixer, SelectiveMixing, rank_of
from mixlab.ops.gated_scans.op import gated_scans
from mixlab.ops.short_conv.op import two_way_short_conv
from mixlab.ops.short_conv.reference import short_conv

wrap("gated_scans")
wrap("scan_orders")
wrap("two_way_short_conv")
Combine = Literal["mean", "sum", "gated_sum"]


@dataclass(frozen=True, kw_only=True)
class Mamba1Config(MixerConfig):
    """`scans` are orders of `mixers/scan_orders.py`: the sequence itself, from one or both sides, or walks on the grid.

    `combine`: the mean of all scans (Vim), their sum, or the sum of each under a gate per channel (LocalVim).
    """

    kind: ClassVar[str] = "mamba1"
    expand: int = 2
    state: int = 16
    conv: int = 4
    scans: tuple[str, ...] = SEQUENCE
    combine: Combine = "mean"

    def __post_init__(self) -> None:
        check_scans(self.scans)
        if self.combine not in get_args(Combine):
            raise InputError(f"unknown combine {self.combine!r}; choose one of {', '.join(get_args(Combine))}")

    @property
    def is_causal(self) -> bool:
        return set(self.scans) == {"forward"}

    def build(self, dim: int, depth: int) -> "Mamba1":
        return Mamba1(self, dim, depth)

    def mixing_macs(self, num_tokens: int, dim: int) -> int:
        return 2 * num_tokens * self.state * self.expand * dim * len(self.scans)


class Mamba1(SelectiveMixer):
    """One input projection for all scans; each has its own convolution, selection, decay and skip."""

    stacked = ("conv_bias",)

    def __init__(self, config: Mamba1Config, dim: int, depth: int) -> None:
        super().__init__()
        inner = config.expand * dim
        self.config = config
        self.num_scans = num_scans = len(config.scans)
        self.in_proj = nn.Linear(dim, 2 * inner, bias=False)
        self.conv_weight = nn.Parameter(torch.empty(num_scans, inner, config.conv))
        self.conv_bias = nn.Parameter(torch.empty(num_scans, inner))
        self.selection = Selection(num_scans, inner, config.state, rank_of(dim))
        self.channel_gate = ChannelGate(inner) if config.combine == "gated_sum" else None
        self.out_proj = nn.Linear(inner, dim, bias=False)
        self.reset_parameters(depth)

    @torch.no_grad()
    def reset_parameters(self, depth: int) -> None:
        bound = self.config.conv**-0.5
        self.conv_weight.uniform_(-bound, bound)
        self.conv_bias.uniform_(-bound, bound)
        nn.init.kaiming_uniform_(self.out_proj.weight, a=math.sqrt(5))
        self.out_proj.weight /= math.sqrt(depth)

    def prepare(self, x: Tensor, grid: Grid) -> tuple[SelectiveMixing, Tensor]:
        x, gate = self.in_proj(x).chunk(2, dim=-1)
        orders = scan_orders(self.config.scans, grid, x.shape[1], x.device, flips=False)
        if self.config.scans in (SEQUENCE, SEQUENCE[:1]):
            v = two_way_short_conv(x, self.conv_weight, self.conv_bias)
        else:
            v = self.convolved(orders.arrange(x, self.num_scans))
        return self.selection(v, orders, self.config.scans, grid), gate

    def convolved(self, places: Tensor) -> Tensor:
        """(B, T, S, E): each scan under its own filter, which looks back along it."""
        num_forward = self.num_scans - count_reverse(self.config.scans, flips=False)
        scans = [
            short_conv(places[:, :, scan], self.conv_weight[scan], self.conv_bias[scan], reverse=scan >= num_forward)
            for scan in range(self.num_scans)
        ]
        return torch.stack(scans, dim=2)

    def merge_scans(self, scans: Tensor, bypass: Tensor | None) -> Tensor:
        assert bypass is not None
        y = scans[:, :, : bypass.shape[1]]
        if self.channel_gate is not None:
            return self.out_proj(self.channel_gate(y * F.silu(bypass).unsqueeze(1)).sum(1))
        return self.out_proj(gated_scans(y.transpose(1, 2), bypass, mean=self.config.combine == "mean"))
