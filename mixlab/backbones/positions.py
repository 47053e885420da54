"""Learned positions of a square grid, resized to any other."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import wrap

from mixlab.mixers import Grid

PositionResize = Literal["dino", "exact"]
CUBIC = -0.75  # the free constant of bicubic resizing, torch's


class PositionTable(nn.Module):
    """Learned positions of a square grid, after those of `num_extra` tokens; resized to any other grid."""

    def __init__(self, dim: int, side: int, num_extra: int, resize: PositionResize = "dino") -> None:
        super().__init__()
        self.side, self.resize_kind = side, resize
        self.num_extra = num_extra
        self.table = nn.Parameter(torch.empty(1, num_extra + side * side, dim))
        nn.init.trunc_normal_(self.table, std=0.02)

    def forward(self, grid: Grid) -> tuple[Tensor, Tensor]:
        """Positions of the extra tokens (1, E, D) and of the patches (1, h w, D)."""
        table = self.table if torch.is_grad_enabled() else self.table.detach()  # views of it would require a gradient
        extra, patches = table.tensor_split([self.num_extra], dim=1)
        return extra, resize_positions(patches, self.side, grid, self.resize_kind)

    @torch.no_grad()
    def resize(self, side: int) -> None:
        """Keep the positions of another square grid instead."""
        self.table = like(self.table, torch.cat(self((side, side)), dim=1))
        self.side = side


@wrap
def resize_positions(positions: Tensor, side: int, grid: Grid, kind: PositionResize = "dino") -> Tensor:
    """(1, side², D) -> (1, h w, D), bicubic. `dino`: by factors of (n + 0.1) / side, as DINO's weights were trained.

    Two matrix products: the gradient of `F.interpolate` adds atomically on a GPU, so its last bits differ between runs.
    In float64, which neither autocast nor TF32 rounds.
    """
    if any(isinstance(n, torch.SymInt) for n in grid):
        rows, columns = _bicubic_of_any(side, grid, kind, positions.device)
    elif grid == (side, side):
        return positions
    else:
        rows, columns = (_bicubic(side, n, kind, positions.device) for n in grid)
    table = positions.double().reshape(side, -1)  # (side, side D)
    resized = columns @ (rows @ table).view(grid[0], side, -1)  # (h, w, D)
    return resized.to(positions.dtype).flatten(0, 1).unsqueeze(0)


def _bicubic(side: int, size: int, kind: PositionResize, device: torch.device) -> Tensor:
    """The map (size, side) from points on a line of `side` to one of `size`."""
    points = torch.eye(side, device=device).view(1, side, side, 1)
    if kind == "exact":
        lines = F.interpolate(points, size=(size, 1), mode="bicubic")
    else:
        lines = F.interpolate(points, scale_factor=[(size + 0.1) / side, 1.0], mode="bicubic")
    return lines[0, :, :, 0].mT.double()


def _bicubic_of_any(side: int, grid: Grid, kind: PositionResize, device: torch.device) -> tuple[Tensor, Tensor]:
    """The same maps for a grid that is not known while it is traced: written out, since interpolation is not traced so.

    A grid of the table's own size has factors of 1, which keep every position.
    """
    sizes = [torch.scalar_tensor(n, dtype=torch.float64, device=device) for n in grid]
    same = (sizes[0] == side) & (sizes[1] == side)
    rows, columns = (
        _cubic_weights(
            side, n, torch.where(same, torch.ones_like(size), (size + (0.1 if kind == "dino" else 0.0)) / side)
        )
        for n, size in zip(grid, sizes, strict=True)
    )
    return rows, columns


def _cubic_weights(side: int, size: int, scale: Tensor) -> Tensor:
    """(size, side): each new point from its four neighbours; beyond the ends, the last point again."""
    at = (torch.arange(size, device=scale.device).double() + 0.5) / scale - 0.5
    left = at.floor()
    columns = torch.arange(side, device=scale.device)
    weights = torch.zeros(1, side, dtype=torch.float64, device=scale.device)
    for offset in (-1, 0, 1, 2):
        away = (at - left - offset).abs()
        near = ((CUBIC + 2) * away - (CUBIC + 3)) * away**2 + 1
        far = CUBIC * (((away - 5) * away + 8) * away - 4)
        neighbour = (left + offset).clamp(0, side - 1).long()
        weight = near if offset in (0, 1) else far
        weights = weights + weight[:, None] * (neighbour[:, None] == columns)
    return weights


def like(parameter: nn.Parameter, value: Tensor) -> nn.Parameter:
    return nn.Parameter(value.to(parameter), requires_grad=parameter.requires_grad)
