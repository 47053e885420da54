"""The convolutional block of EfficientVMamba's late stages: widen, convolve each channel, gate channels, narrow."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import wrap

from mixlab.mixers.cross_scan import grid_conv
from mixlab.mixers.gated_conv import ConvMixing, check_fills_grid
from mixlab.mixers.mixer import Grid, MixerConfig, TokenMixer

wrap("check_fills_grid")


@dataclass(frozen=True, kw_only=True)
class InvertedResidualConfig(MixerConfig):
    kind: ClassVar[str] = "inverted_residual"
    has_own_norm: ClassVar[bool] = True
    expand: int = 4
    kernel: int = 3

    def build(self, dim: int, depth: int) -> "InvertedResidual":
        return InvertedResidual(self, dim)

    def mixing_macs(self, num_tokens: int, dim: int) -> int:
        return self.kernel**2 * num_tokens * self.expand * dim


class InvertedResidual(TokenMixer):
    def __init__(self, config: InvertedResidualConfig, dim: int) -> None:
        super().__init__()
        inner = config.expand * dim
        self.config = config
        self.up = nn.Linear(dim, inner, bias=False)
        self.up_norm = nn.BatchNorm1d(inner)
        self.conv = grid_conv(inner, config.kernel, bias=False)
        self.conv_norm = nn.BatchNorm1d(inner)
        self.reduce = nn.Linear(inner, max(1, inner // 8))
        self.select = nn.Linear(max(1, inner // 8), inner)
        self.down = nn.Linear(inner, dim, bias=False)
        self.down_norm = nn.BatchNorm1d(dim)

    def prepare(self, x: Tensor, grid: Grid) -> tuple[ConvMixing, None]:
        check_fills_grid(x.shape[1], grid)
        values = F.relu(per_channel(self.up_norm, self.up(x))).mT.unsqueeze(-1)  # (B, E, L, 1)
        return ConvMixing(values, self.conv.weight.squeeze(1), grid), None

    def merge(self, mixed: Tensor, bypass: Tensor | None) -> Tensor:
        y = F.relu(per_channel(self.conv_norm, mixed.squeeze(-1).mT))  # (B, L, E)
        y = y * self.select(F.relu(self.reduce(y.mean(1, keepdim=True)))).sigmoid()
        return per_channel(self.down_norm, self.down(y))


def per_channel(norm: nn.BatchNorm1d, tokens: Tensor) -> Tensor:
    """(B, L, D) normalised over images and tokens."""
    return norm(tokens.flatten(0, 1)).view_as(tokens)
