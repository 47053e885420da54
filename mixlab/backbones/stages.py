"""The parts of a backbone in stages: stems, what halves the grid between stages, and blocks of tokens on a grid."""

import torch
import torch.nn.functional as F
from timm.layers import DropPath
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mixlab.backbones.block import MLP
from mixlab.backbones.positions import PositionTable
from mixlab.backbones.tokens import pad_to_multiple
from mixlab.mixers import Grid, MixerConfig, Mixing
from mixlab.mixers.cross_scan import from_maps, to_maps
from mixlab.ops.linear import PatchConv


class PatchStem(nn.Module):
    """Patches, projected and normalised."""

    def __init__(self, channels: int, dim: int, eps: float, patch: int) -> None:
        super().__init__()
        self.project = PatchConv(channels, dim, kernel_size=patch, stride=patch)
        self.norm = nn.LayerNorm(dim, eps)

    def forward(self, images: Tensor) -> tuple[Tensor, Grid]:
        """Images (B, C, H, W) -> tokens (B, L, D) and their grid."""
        maps = self.project(images)
        return self.norm(from_maps(maps)), (maps.shape[2], maps.shape[3])


class PositionStem(nn.Module):
    """Patches, projected, with learned positions; an image that they do not fill is padded with zeros (Mamba-2D)."""

    def __init__(self, channels: int, dim: int, patch: int, side: int) -> None:
        super().__init__()
        self.project = PatchConv(channels, dim, kernel_size=patch, stride=patch)
        self.positions = PositionTable(dim, side, 0, "exact")

    def forward(self, images: Tensor) -> tuple[Tensor, Grid]:
        maps = self.project(pad_to_multiple(images, self.project.stride[0]))
        grid = (maps.shape[2], maps.shape[3])
        return from_maps(maps) + self.positions(grid)[1], grid


class OverlapStem(nn.Module):
    """Two convolutions that halve the image, each with a norm."""

    def __init__(self, channels: int, dim: int, eps: float) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, dim // 2, kernel_size=3, stride=2, padding=1)
        self.first_norm = nn.LayerNorm(dim // 2, eps)
        self.project = nn.Conv2d(dim // 2, dim, kernel_size=3, stride=2, padding=1)
        self.norm = nn.LayerNorm(dim, eps)

    def forward(self, images: Tensor) -> tuple[Tensor, Grid]:
        maps = self.first_norm(self.first(images).permute(0, 2, 3, 1))
        maps = self.project(F.gelu(maps).permute(0, 3, 1, 2))
        return self.norm(from_maps(maps)), (maps.shape[2], maps.shape[3])


class ConvDown(nn.Module):
    """A convolution that halves the grid, then a norm."""

    def __init__(self, dim: int, dim_out: int, eps: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, dim_out, kernel_size=3, stride=2, padding=1)
        self.norm = nn.LayerNorm(dim_out, eps)

    def forward(self, tokens: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        maps = self.conv(to_maps(tokens, grid))
        return self.norm(from_maps(maps)), (maps.shape[2], maps.shape[3])


class PatchMerge(nn.Module):
    """Cells of 2 x 2 side by side, normalised and projected; an odd grid is padded with zeros."""

    def __init__(self, dim: int, dim_out: int, eps: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim, eps)
        self.project = nn.Linear(4 * dim, dim_out, bias=False)
        nn.init.trunc_normal_(self.project.weight, std=0.02)

    def forward(self, tokens: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        maps = F.pad(tokens.unflatten(1, grid), (0, 0, 0, grid[1] % 2, 0, grid[0] % 2))
        cells = [maps[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]  # down first, then right
        merged = torch.cat(cells, dim=-1)
        return self.project(self.norm(merged.flatten(1, 2))), (merged.shape[1], merged.shape[2])


class Block(nn.Module):
    """x + mixer(norm(x)); then, with an MLP, x + mlp(norm(x)). Tokens (B, L, D) on a grid.

    With `normed_stream`, the mixer's output is added to norm(x).
    """

    def __init__(
        self,
        *,
        dim: int,
        depth: int,
        mixer: MixerConfig,
        eps: float,
        mlp_ratio: float,
        drop_path: float,
        normed_stream: bool = False,
    ) -> None:
        super().__init__()
        self.normed_stream = normed_stream
        self.norm: nn.Module = nn.Identity() if mixer.has_own_norm else nn.LayerNorm(dim, eps)
        self.mixer = mixer.build(dim, depth)
        self.mlp_norm = nn.LayerNorm(dim, eps) if mlp_ratio else None
        self.mlp = MLP(dim, round(dim * mlp_ratio)) if mlp_ratio else None
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()
        self.grad_checkpointing = False

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        if self.grad_checkpointing:
            return checkpoint(self.step, x, grid, use_reentrant=False)
        return self.step(x, grid)

    def step(self, x: Tensor, grid: Grid) -> Tensor:
        branch, x = self.mix(x, grid)
        return self.feed(x + branch)

    def mix(self, x: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
        """The mixer's output, and what it is added to."""
        normed = self.norm(x)
        return self.drop_path(self.mixer(normed, grid)), normed if self.normed_stream else x

    def feed(self, x: Tensor) -> Tensor:
        if self.mlp is None or self.mlp_norm is None:
            return x
        return x + self.drop_path(self.mlp(self.mlp_norm(x)))

    def mixing(self, x: Tensor, grid: Grid) -> Mixing:
        """The mixing that this block makes from its input."""
        return self.mixer.prepare(self.norm(x), grid)[0]


class Stage(nn.Module):
    """What halves the grid, none before the first stage, and blocks."""

    def __init__(self, down: nn.Module | None, blocks: list[Block]) -> None:
        super().__init__()
        self.down = down
        self.blocks = nn.ModuleList(blocks)

    def enter(self, x: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        return (x, grid) if self.down is None else self.down(x, grid)

    def forward(self, x: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        x, grid = self.enter(x, grid)
        for block in self.blocks:
            x = block(x, grid)
        return x, grid
