"""A Mamba block without its SSM: the gated convolution of MambaOut, on the grid of patches or along the sequence."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import wrap

from mixlab.errors import InputError
from mixlab.mixers.mixer import ALL, Grid, MixerConfig, Mixing, TokenMixer, overlap
from mixlab.ops.depthwise.op import depthwise_conv
from mixlab.ops.silu_gate.op import silu_gate

wrap("depthwise_conv")
wrap("silu_gate")


@dataclass
class ConvMixing(Mixing):
    """A depthwise convolution with zero padding on the grid (h, w): a Toeplitz matrix, one head per channel.

    values (B, C, L, 1) with L = h w; kernel (C, kh, kw) with odd sides, its centre on the reading token; if its dtype
    is finer than that of the values, it is rounded where it has to be.
    """

    values: Tensor
    kernel: Tensor
    grid: Grid

    def matrix(self, heads: slice = ALL) -> Tensor:
        kernel, (height, width) = self.kernel[heads].to(self.values.dtype), self.grid
        half_height, half_width = kernel.shape[1] // 2, kernel.shape[2] // 2
        rows, columns = (
            index.flatten()
            for index in torch.meshgrid(
                torch.arange(height, device=kernel.device), torch.arange(width, device=kernel.device), indexing="ij"
            )
        )
        down, right = rows - rows[:, None], columns - columns[:, None]  # (L, L): from the reader i to the source j
        inside = (down.abs() <= half_height) & (right.abs() <= half_width)
        taps = kernel[
            :, down.clamp(-half_height, half_height) + half_height, right.clamp(-half_width, half_width) + half_width
        ]  # (C, L, L)
        return torch.where(inside, taps, 0).expand(self.values.shape[0], -1, -1, -1)

    def apply(self) -> Tensor:
        tokens = self.values.squeeze(-1).mT  # (B, L, C), of mixers as they lie in memory
        return depthwise_conv(tokens, self.kernel, self.grid).mT.unsqueeze(-1)

    def sides(self, head: int) -> tuple[bool, bool]:
        taps = self.kernel[head].flatten()  # an odd number, the centre on the reading token
        return bool(taps[: len(taps) // 2].any()), bool(taps[len(taps) // 2 + 1 :].any())

    def rank_bound(self, rows: range, columns: range) -> int:
        """Off the diagonal, the number of rows within the reach of the window."""
        size = super().rank_bound(rows, columns)
        height, width = (side // 2 for side in self.kernel.shape[-2:])
        reach = height * self.grid[1] + width  # the farthest tap, in tokens along the flattened grid
        gap = max(rows.start - columns.stop, columns.start - rows.stop)
        return size if overlap(rows, columns) else min(size, max(reach - gap, 0))


@dataclass(frozen=True, kw_only=True)
class GatedConvConfig(MixerConfig):
    """A `kernel` x `kernel` window on the grid, as in MambaOut; or, with `sequence`, `kernel` tokens along the
    sequence, as in a Mamba block, from both sides if `two_way`.
    """

    kind: ClassVar[str] = "gated_conv"
    expand: int = 2
    kernel: int = 7
    sequence: bool = False
    two_way: bool = True

    @property
    def is_causal(self) -> bool:
        return self.sequence and not self.two_way

    def build(self, dim: int, depth: int) -> "GatedConv":
        return GatedConv(self, dim, depth)

    def mixing_macs(self, num_tokens: int, dim: int) -> int:
        taps = self.kernel * (1 + self.two_way) if self.sequence else self.kernel**2
        return taps * num_tokens * self.expand * dim


class GatedConv(TokenMixer):
    """Project to [gate, x], convolve x, SiLU, multiply by silu(gate), project back: a Mamba block with the scan out."""

    stacked = ("conv_bias",)

    def __init__(self, config: GatedConvConfig, dim: int, depth: int) -> None:
        super().__init__()
        if not config.sequence and config.kernel % 2 == 0:
            raise InputError(f"a grid kernel needs a centre: kernel {config.kernel} is even; try {config.kernel + 1}")
        inner = config.expand * dim
        self.config = config
        self.num_directions = 1 + config.two_way if config.sequence else 1
        window = (config.kernel,) if config.sequence else (config.kernel, config.kernel)
        self.in_proj = nn.Linear(dim, 2 * inner, bias=False)
        self.conv_weight = nn.Parameter(torch.empty(self.num_directions, inner, *window))
        self.conv_bias = nn.Parameter(torch.empty(self.num_directions, inner))
        self.out_proj = nn.Linear(inner, dim, bias=False)
        bound = math.prod(window) ** -0.5
        nn.init.uniform_(self.conv_weight, -bound, bound)
        nn.init.uniform_(self.conv_bias, -bound, bound)
        nn.init.kaiming_uniform_(self.out_proj.weight, a=math.sqrt(5))
        with torch.no_grad():
            self.out_proj.weight /= math.sqrt(depth)

    def prepare(self, x: Tensor, grid: Grid) -> tuple[Mixing, Tensor]:
        gate, x = self.in_proj(x).chunk(2, dim=-1)
        length = x.shape[1]
        if self.config.sequence:
            values = x.mT.repeat(1, self.num_directions, 1).unsqueeze(-1)  # (B, R E, L, 1)
            return ConvMixing(values, one_sided(self.conv_weight).unsqueeze(1), (1, length)), gate
        check_fills_grid(length, grid)
        return ConvMixing(x.mT.unsqueeze(-1), self.conv_weight.squeeze(0), grid), gate

    def merge(self, mixed: Tensor, bypass: Tensor | None) -> Tensor:
        assert bypass is not None
        y = mixed.squeeze(-1).mT  # (B, L, R E)
        if self.num_directions == 1:
            return self.out_proj(silu_gate(y, bypass, self.conv_bias.squeeze(0)))
        y = y.unflatten(-1, (self.num_directions, -1))
        return self.out_proj(F.silu(y + self.conv_bias.to(y.dtype)).mean(2) * F.silu(bypass))


@wrap  # sizes are unknown while torch.fx traces
def check_fills_grid(length: int, grid: Grid) -> None:
    if length != grid[0] * grid[1]:
        raise InputError(
            f"{length - grid[0] * grid[1]} tokens have no place on the {grid[0]} x {grid[1]} grid of a window; "
            'use TokenLayout(place="none") or GatedConvConfig(sequence=True)'
        )


@wrap
def one_sided(weight: Tensor) -> Tensor:
    """Causal filters (R, C, W) as centred ones (R C, 2W - 1): direction 0 looks back, direction 1 looks ahead."""
    width = weight.shape[-1]
    sides = [F.pad(weight[0], (0, width - 1)), *(F.pad(w.flip(-1), (width - 1, 0)) for w in weight[1:])]
    return torch.cat(sides)
