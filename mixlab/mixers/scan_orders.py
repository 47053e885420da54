"""Scan orders: which token stands at which place of a scan.

Tokens are numbered in image order: the sequence as the backbone holds it. Cells that pad the grid to whole windows are
numbered behind them, in raster order. An order is a table (T,) of those numbers, one for each place of the scan.

h, v            rows, columns
snake, snake_v  rows, columns, every second one backwards (PlainMamba)
w2, w7          windows of 2 x 2, 7 x 7 in raster order, and the cells inside each (LocalMamba)
skip0 .. skip3  every second cell in both directions: even rows and columns; odd rows, even columns, column by column;
                even rows, odd columns; odd rows and columns, column by column (EfficientVMamba)

`_flip` walks any of them from its end. `forward` and `backward` walk the sequence itself, extra tokens included.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import wrap

from mixlab.errors import InputError
from mixlab.mixers.mixer import Grid

SEQUENCE = ("forward", "backward")
WALKS = ("h", "v", "snake", "snake_v", "w2", "w7", "skip0", "skip1", "skip2", "skip3")
SCAN_KINDS = (*SEQUENCE, *(walk + end for walk in WALKS for end in ("", "_flip")))
CROSS = ("h", "v", "h_flip", "v_flip")  # VMamba
SERPENTINE = ("snake", "snake_flip", "snake_v", "snake_v_flip")  # PlainMamba
SKIPPING = ("skip0", "skip1", "skip2", "skip3")  # EfficientVMamba


_UNTURNED = {"backward": "forward"}


@dataclass(frozen=True)
class ScanOrders:
    """Several orders side by side. The last `num_reverse` scans read their places from the right."""

    tokens: Tensor | None  # (S, T): the token at each place; None where every scan is the sequence itself
    num_tokens: int  # of the sequence and of the padding
    num_reverse: int = 0
    num_padding: int = 0  # of `num_tokens`, those that pad the grid
    known_places: Tensor | None = None  # where orders are kept

    def arrange(self, x: Tensor, num_scans: int) -> Tensor:
        """Tokens (B, L, F) in the order of each scan (B, T, S, F); padding is zero."""
        if self.tokens is None:
            return x.unsqueeze(2).expand(-1, -1, num_scans, -1)
        padded = F.pad(x, (0, 0, 0, self.num_tokens - x.shape[1]))
        return _Arrange.apply(padded, self) if _differentiates(x) else self._taken(padded)

    def restore(self, y: Tensor) -> Tensor:
        """Places (B, T, S, F) back in image order (B, S, L, F), padding last; zero for tokens that a scan skips."""
        if self.tokens is None:
            return y.transpose(1, 2)
        return _Restore.apply(y, self) if _differentiates(y) else self._put_back(y)

    def _taken(self, padded: Tensor) -> Tensor:
        assert self.tokens is not None
        places = padded.index_select(1, self.tokens.flatten())
        return places.unflatten(1, tuple(self.tokens.shape)).transpose(1, 2)

    def _put_back(self, y: Tensor) -> Tensor:
        y, places = y.transpose(1, 2), self.places
        if y.shape[2] < self.num_tokens:
            y = F.pad(y, (0, 0, 0, 1))
        return _by_scan(y, places)

    @property
    def places(self) -> Tensor:
        """(S, L): the place of each token; T for a token that the scan skips."""
        assert self.tokens is not None
        if self.known_places is not None:
            return self.known_places
        num_scans, num_places = self.tokens.shape
        empty = torch.full((num_scans, self.num_tokens), num_places, device=self.tokens.device)
        numbers = torch.arange(num_places, device=self.tokens.device).expand(num_scans, -1)
        return empty.scatter(1, self.tokens, numbers)


def _by_scan(x: Tensor, numbers: Tensor) -> Tensor:
    """Rows of (B, S, L, F) by numbers (S, T), scan by scan: (B, S, T, F)."""
    offsets = torch.arange(numbers.shape[0], device=x.device)[:, None] * x.shape[2]
    return x.flatten(1, 2).index_select(1, (numbers + offsets).flatten()).unflatten(1, tuple(numbers.shape))


def _differentiates(x: Tensor) -> bool:
    """Whether a gradient will be asked for; a compiler makes its own."""
    return x.requires_grad and torch.is_grad_enabled() and not torch.compiler.is_compiling()


class _Arrange(torch.autograd.Function):
    """Torch would add gradients up in any order, and slowly: but every token has one place in a scan."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, orders: ScanOrders) -> Tensor:
        ctx.orders = orders
        return orders._taken(padded)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.orders.restore(gradients[0]).sum(1), None


class _Restore(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, orders: ScanOrders) -> Tensor:
        ctx.orders = orders
        return orders._put_back(y)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _by_scan(gradients[0], ctx.orders.tokens).transpose(1, 2), None


_kept: dict[tuple[object, ...], ScanOrders] = {}  # every layer of every pass asks for the same few


@wrap
def scan_orders(
    kinds: Sequence[str], grid: Grid, num_tokens: int, device: torch.device, *, flips: bool = True
) -> ScanOrders:
    """The orders of a sequence of `num_tokens` on a grid; a single extra token stands in the middle and stays there.

    With `flips`, flipped scans at the end read their places from the right; an extra token has another place then.
    """
    if torch.compiler.is_compiling():
        return _make_orders(kinds, grid, num_tokens, device, flips)
    key = (tuple(kinds), tuple(grid), num_tokens, device, flips)
    if key not in _kept:
        with torch.inference_mode(False):  # passes with gradients use them, too
            made = _make_orders(kinds, grid, num_tokens, device, flips)
            if type(made.tokens) is not Tensor:  # nothing to keep, or a tensor without numbers
                return made
            _kept[key] = replace(made, known_places=made.places)
    return _kept[key]


def _make_orders(kinds: Sequence[str], grid: Grid, num_tokens: int, device: torch.device, flips: bool) -> ScanOrders:
    """Scans that end together with fewer places than others are filled up with padding that comes last."""
    num_reverse = count_reverse(kinds, flips=flips)
    read_back = [index >= len(kinds) - num_reverse for index in range(len(kinds))]
    if all((kind == "backward") == back and kind in SEQUENCE for kind, back in zip(kinds, read_back, strict=True)):
        return ScanOrders(None, num_tokens, num_reverse)
    walks = [
        sequence_order(_UNTURNED.get(kind, kind.removesuffix("_flip")) if back else kind, grid, num_tokens, device)
        for kind, back in zip(kinds, read_back, strict=True)
    ]
    if all("skip" in kind for kind in kinds):
        padded = grid_cells(grid, 2, device).numel()
        return ScanOrders(torch.stack(walks), padded, num_reverse, padded - num_tokens)
    longest = walks[0].shape[0]
    for walk in walks[1:]:
        longest = torch.sym_max(longest, walk.shape[0])  # type: ignore[assignment]  # unknown while it is traced
    filled = []
    for walk, back in zip(walks, read_back, strict=True):
        filler = torch.arange(walk.shape[0], longest, device=device)
        filled.append(torch.cat([filler, walk] if back else [walk, filler]))
    return ScanOrders(torch.stack(filled), longest, num_reverse, longest - num_tokens)


def count_reverse(kinds: Sequence[str], *, flips: bool = True) -> int:
    """How many scans at the end walk backwards, and so can read an order from the right."""
    ends = [kind == "backward" or (flips and kind.endswith("_flip")) for kind in kinds]
    return ends[::-1].index(False) if False in ends else len(ends)


def sequence_order(kind: str, grid: Grid, num_tokens: int, device: torch.device) -> Tensor:
    """One order (T,) of a sequence of the grid's patches and at most one extra token in their middle."""
    num_patches = grid[0] * grid[1]
    if kind in SEQUENCE:
        order = torch.arange(num_tokens, device=device)
        return order.flip(0) if kind == "backward" else order
    order = grid_order(kind, grid, device)
    if num_tokens == num_patches:
        return order
    if num_tokens != num_patches + 1:
        raise InputError(
            f"scan {kind} walks a grid of {grid[0]} x {grid[1]} patches and one class token, got {num_tokens} tokens; "
            'use TokenLayout(place="middle", front_copy=False) or place="none"'
        )
    middle = num_patches // 2
    order = order + (order >= middle)
    return torch.cat([order[:middle], order.new_full((1,), middle), order[middle:]])


def grid_order(kind: str, grid: Grid, device: torch.device) -> Tensor:
    """One order (T,) of the cells of a grid, padded to whole windows where the kind needs it."""
    if kind.endswith("_flip"):
        return grid_order(kind.removesuffix("_flip"), grid, device).flip(0)
    if kind.startswith("w") and kind[1:].isdigit():
        side = int(kind[1:])
        cells = grid_cells(grid, side, device)
        windows = cells.unflatten(1, (-1, side)).unflatten(0, (-1, side))  # (h, side, w, side)
        return windows.transpose(1, 2).flatten()
    if kind in SKIPPING:
        row, column = {"skip0": (0, 0), "skip1": (1, 0), "skip2": (0, 1), "skip3": (1, 1)}[kind]
        cells = grid_cells(grid, 2, device)[row::2, column::2]
        return (cells.T if row else cells).flatten()
    cells = grid_cells(grid, 1, device)
    match kind:
        case "h":
            return cells.flatten()
        case "v":
            return cells.T.flatten()
        case "snake" | "snake_v":
            lines = cells.T if kind == "snake_v" else cells
            odd = torch.arange(lines.shape[0], device=device)[:, None] % 2 == 1
            return torch.where(odd, lines.flip(1), lines).flatten()
    raise InputError(f"unknown scan {kind!r}; choose from {', '.join(SCAN_KINDS)}")


def grid_cells(grid: Grid, side: int, device: torch.device) -> Tensor:
    """The numbers of the cells of a grid that is padded to multiples of `side`, padding cells behind all others."""
    (height, width), more_rows, more_columns = grid, -grid[0] % side, -grid[1] % side
    rows = torch.arange(height + more_rows, device=device)[:, None]
    columns = torch.arange(width + more_columns, device=device)
    right = height * width + rows * more_columns + columns - width
    below = height * width + height * more_columns + (rows - height) * (width + more_columns) + columns
    inside = torch.where(columns < width, rows * width + columns, right)
    return torch.where(rows < height, inside, below)


def check_scans(scans: Sequence[str]) -> None:
    for kind in scans:
        if kind not in SCAN_KINDS:
            raise InputError(f"unknown scan {kind!r}; choose from {', '.join(SCAN_KINDS)}")
    if not scans:
        raise InputError("scans is empty; name at least one, such as h")
    skipping = sorted(kind for kind in scans if kind in SKIPPING)
    if skipping and tuple(skipping) != SKIPPING:
        raise InputError(f"scans {', '.join(scans)}: {', '.join(SKIPPING)} divide the cells and go together")
