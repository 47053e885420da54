"""Selective scans over the grid behind a 3 x 3 convolution: VMamba, LocalVMamba and EfficientVMamba."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import wrap

from mixlab.errors import InputError
from mixlab.mixers.gated_conv import check_fills_grid
from mixlab.mixers.mixer import Grid, MixerConfig, TokenMixer
from mixlab.mixers.scan_orders import CROSS, SKIPPING, check_scans, scan_orders
from mixlab.mixers.selective import ChannelGate, Selection, SelectiveMixer, SelectiveMixing, rank_of

wrap("check_fills_grid")
wrap("scan_orders")


@dataclass(frozen=True, kw_only=True)
class CrossScanConfig(MixerConfig):
    """The defaults are VMamba's current form: width and state 1, no gate. Its first form has `expand` 2, `state` 16, a
    gate and a bias; LocalVMamba also has windows among its scans, and `channel_gate` on each of them.
    """

    kind: ClassVar[str] = "cross_scan"
    family: ClassVar[str] = "mamba1"
    expand: int = 1
    state: int = 1
    kernel: int = 3
    conv_bias: bool = False
    gate: bool = False
    channel_gate: bool = False
    scans: tuple[str, ...] = CROSS

    def __post_init__(self) -> None:
        check_scans(self.scans)
        if not self.gate and any(kind.startswith(("w", "skip")) for kind in self.scans):
            raise InputError(f"scans {', '.join(self.scans)} pad the grid, which needs gate=True")

    def build(self, dim: int, depth: int) -> TokenMixer:
        return CrossScan(self, dim)

    def mixing_macs(self, num_tokens: int, dim: int) -> int:
        visits = num_tokens if set(self.scans) == set(SKIPPING) else num_tokens * len(self.scans)
        return 2 * visits * self.state * self.expand * dim


class CrossScan(SelectiveMixer):
    """Project, convolve on the grid, scan in several orders with weights of their own, sum, normalise, project back."""

    def __init__(self, config: CrossScanConfig, dim: int) -> None:
        super().__init__()
        inner = config.expand * dim
        self.config, self.num_scans = config, len(config.scans)
        self.in_proj = nn.Linear(dim, inner * (1 + config.gate), bias=False)
        self.conv = grid_conv(inner, config.kernel, bias=config.conv_bias)
        self.selection = Selection(self.num_scans, inner, config.state, rank_of(dim))
        self.channel_gate = ChannelGate(inner) if config.channel_gate else None
        self.out_norm = nn.LayerNorm(inner)
        self.out_proj = nn.Linear(inner, dim, bias=False)
        for linear in (self.in_proj, self.out_proj):
            nn.init.trunc_normal_(linear.weight, std=0.02)

    def prepare(self, x: Tensor, grid: Grid) -> tuple[SelectiveMixing, Tensor | None]:
        check_fills_grid(x.shape[1], grid)
        projected, gate = self.in_proj(x), None
        if self.config.gate:
            projected, gate = projected.chunk(2, dim=-1)
        v = from_maps(F.silu(self.conv(to_maps(projected, grid))))
        orders = scan_orders(self.config.scans, grid, x.shape[1], x.device)
        places = orders.arrange(v, self.num_scans)
        return self.selection(places, orders, self.config.scans, grid), gate

    def merge_scans(self, scans: Tensor, bypass: Tensor | None) -> Tensor:
        y = scans
        if bypass is not None:
            y = y[:, :, : bypass.shape[1]]  # without the cells that pad the grid to whole windows
        if self.channel_gate is not None:
            y = self.channel_gate(y)
        y = self.out_norm(y.sum(1))
        return self.out_proj(y if bypass is None else y * F.silu(bypass))


@dataclass(frozen=True, kw_only=True)
class SkipScanConfig(CrossScanConfig):
    """EfficientVMamba: every cell in one of four scans that skip every second row and column, beside a convolution."""

    kind: ClassVar[str] = "skip_scan"
    expand: int = 2
    state: int = 16
    conv_bias: bool = True
    gate: bool = True
    scans: tuple[str, ...] = SKIPPING

    def build(self, dim: int, depth: int) -> TokenMixer:
        return SkipScan(self, dim)


class SkipScan(SelectiveMixer):
    """The sum of a scan and a convolution, each under the same gate per channel."""

    def __init__(self, config: SkipScanConfig, dim: int) -> None:
        super().__init__()
        self.config, self.num_scans = config, len(config.scans)
        self.scan = CrossScan(config, dim)
        self.local = nn.Sequential(grid_conv(dim, 3, bias=True), nn.BatchNorm2d(dim), nn.GELU(), nn.Conv2d(dim, dim, 1))
        self.channel_gate = ChannelGate(dim)

    def prepare(self, x: Tensor, grid: Grid) -> tuple[SelectiveMixing, Tensor]:
        mixing, gate = self.scan.prepare(x, grid)
        assert gate is not None
        return mixing, torch.cat([gate, from_maps(self.local(to_maps(x, grid)))], dim=-1)

    def merge_scans(self, scans: Tensor, bypass: Tensor | None) -> Tensor:
        assert bypass is not None
        width = self.scan.in_proj.in_features
        gate, local = bypass.split([self.scan.out_proj.in_features, width], dim=-1)
        scanned = self.scan.merge_scans(scans, gate)
        return self.channel_gate(scanned) + self.channel_gate(local)


def grid_conv(dim: int, kernel: int, *, bias: bool) -> nn.Conv2d:
    """A depthwise convolution that keeps the grid."""
    return nn.Conv2d(dim, dim, kernel_size=kernel, padding=kernel // 2, groups=dim, bias=bias)


def to_maps(tokens: Tensor, grid: Grid) -> Tensor:
    """(B, L, D) -> (B, D, h, w)."""
    return tokens.mT.unflatten(-1, grid)


def from_maps(maps: Tensor) -> Tensor:
    """(B, D, h, w) -> (B, L, D)."""
    return maps.flatten(2).mT
