"""PlainMamba: four serpentine scans that share every weight, and are told the direction of each step."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import wrap

from mixlab.mixers.cross_scan import from_maps, grid_conv, to_maps
from mixlab.mixers.gated_conv import check_fills_grid
from mixlab.mixers.mixer import Grid, MixerConfig
from mixlab.mixers.scan_orders import SERPENTINE, ScanOrders, grid_order
from mixlab.mixers.selective import SelectiveMixer, SelectiveMixing, rank_of
from mixlab.ops.gated_scans.op import gated_scans

wrap("check_fills_grid")
wrap("gated_scans")
START, RIGHT, LEFT, UP, DOWN = range(5)


@dataclass(frozen=True, kw_only=True)
class PlainMambaConfig(MixerConfig):
    kind: ClassVar[str] = "plain_mamba"
    family: ClassVar[str] = "mamba1"
    expand: int = 2
    state: int = 16
    kernel: int = 7

    def build(self, dim: int, depth: int) -> "PlainMamba":
        return PlainMamba(self, dim)

    def mixing_macs(self, num_tokens: int, dim: int) -> int:
        return 2 * num_tokens * self.state * self.expand * dim * len(SERPENTINE)


class PlainMamba(SelectiveMixer):
    """As released, two things are odd. Values are put in the order of a scan; steps, keys and queries are not: place t
    takes those of patch t in raster order. And the bias of the steps enters twice."""

    stacked = ("A_log",)
    num_scans = len(SERPENTINE)

    def __init__(self, config: PlainMambaConfig, dim: int) -> None:
        super().__init__()
        inner = config.expand * dim
        self.config = config
        self.in_proj = nn.Linear(dim, 2 * inner)
        self.conv = grid_conv(inner, config.kernel, bias=True)
        self.x_proj = nn.Linear(inner, rank_of(dim) + 2 * config.state, bias=False)
        self.dt_proj = nn.Linear(rank_of(dim), inner)
        self.A_log = nn.Parameter(torch.arange(1, config.state + 1).float().log().expand(inner, -1).clone())
        self.skip = nn.Parameter(torch.ones(inner))
        self.moves = nn.Parameter(torch.empty(5, config.state))
        self.out_proj = nn.Linear(inner, dim)
        nn.init.trunc_normal_(self.moves, std=0.02)
        for linear in (self.in_proj, self.x_proj, self.dt_proj, self.out_proj):
            nn.init.trunc_normal_(linear.weight, std=0.02)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def prepare(self, x: Tensor, grid: Grid) -> tuple[SelectiveMixing, Tensor]:
        check_fills_grid(x.shape[1], grid)
        x, gate = self.in_proj(x).chunk(2, dim=-1)
        x = from_maps(F.silu(self.conv(to_maps(x, grid))))
        low, k, q = self.x_proj(x).split([self.dt_proj.in_features, *[self.config.state] * 2], dim=-1)
        dt = self.dt_proj(low)
        dt = F.softplus(dt.to(self.dt_proj.bias.dtype) + self.dt_proj.bias)  # its bias is in dt already
        orders, moves = serpentine(grid, x.device)
        mixing = SelectiveMixing(
            q.unsqueeze(2).expand(-1, -1, self.num_scans, -1),
            k.unsqueeze(2) + self.moves.to(k.dtype)[moves],
            orders.arrange(x, self.num_scans),
            dt.unsqueeze(2).expand(-1, -1, self.num_scans, -1),
            -self.A_log.exp().expand(self.num_scans, -1, -1),
            self.skip.expand(self.num_scans, -1),
            orders,
            SERPENTINE,
            grid,
        )
        return mixing, gate

    def merge_scans(self, scans: Tensor, bypass: Tensor | None) -> Tensor:
        assert bypass is not None
        return self.out_proj(gated_scans(scans.transpose(1, 2), bypass, mean=False))


@wrap
def serpentine(grid: Grid, device: torch.device) -> tuple[ScanOrders, Tensor]:
    """The four orders, and the move that led to each place of each (L, S)."""
    tokens = torch.stack([grid_order(kind, grid, device) for kind in SERPENTINE])
    rows = tokens // grid[1]
    columns = tokens - rows * grid[1]
    down, right = rows.diff(dim=1), columns.diff(dim=1)
    vertical = torch.where(down > 0, DOWN, UP)
    moves = torch.where(down != 0, vertical, torch.where(right > 0, RIGHT, LEFT))
    return ScanOrders(tokens, grid[0] * grid[1]), F.pad(moves, (1, 0), value=START).mT
