"""The selective scan of Mamba-1 as a mixing: one head per channel of each scan, always seen in image order."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import wrap

from mixlab.mixers.mixer import ALL, Grid, Mixing, TokenMixer, overlap
from mixlab.mixers.scan_orders import ScanOrders
from mixlab.ops.selective_scan.op import selective_scan, softplus_steps
from mixlab.ops.selective_scan.reference import selective_scan_matrix, steps_between

wrap("selective_scan")
wrap("project_steps")  # one step to torch.fx, which knows no devices while it traces


@dataclass
class SelectiveMixing(Mixing):
    """Σ_n q_n k_nᵀ ∘ decay_n ∘ triangle, times dt, plus skip I: one head per channel, scan after scan.

    q, k (B, T, S, N), shared by the channels of a scan; v, dt (B, T, S, E); A (S, E, N); skip (S, E): all in the order
    of their scan. With `dt_bias` (S, E), dt is raw: steps are the softplus of both. Values and matrices are in image
    order; cells that pad the grid to whole windows come last.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    dt: Tensor
    A: Tensor
    skip: Tensor
    orders: ScanOrders
    scans: tuple[str, ...]  # the kind of each
    grid: Grid
    dt_bias: Tensor | None = None

    @property
    def steps(self) -> Tensor:
        return self.dt if self.dt_bias is None else softplus_steps(self.dt, self.dt_bias)

    @property
    def values(self) -> Tensor:  # type: ignore[override]
        return self._heads(self.v)

    @property
    def num_heads(self) -> int:
        return self.skip.numel()

    def apply(self) -> Tensor:
        return _as_heads(self.scanned())

    def scanned(self) -> Tensor:
        """The same as tokens of each scan (B, S, L, E)."""
        inputs = (self.q, self.k, self.v, self.dt, self.A, self.skip)
        y = selective_scan(*inputs, dt_bias=self.dt_bias, num_reverse=self.orders.num_reverse)
        return self.orders.restore(y)

    def matrix(self, heads: slice = ALL) -> Tensor:
        scan, channel = self._chosen(heads)
        q, k = (self._from_left(t[:, :, scan], scan) for t in (self.q, self.k))
        dt = self._from_left(self.steps[:, :, scan, channel], scan)
        matrix = selective_scan_matrix(q, k, dt, self.A[scan, channel], self.skip[scan, channel])
        return self._in_image_order(matrix, scan)

    def rows(self, tokens: Sequence[int]) -> Tensor:
        """Without the matrices: a row is what is left, at one place of each scan, of the places before it."""
        return torch.stack([self._heads(self._row(token)).squeeze(-1) for token in tokens], dim=2)

    def _row(self, token: int) -> Tensor:
        """What each place of each scan gives to one token (B, T, S, E)."""
        num_places, num_scans = self.v.shape[1:3]
        scans = []
        for scan in range(num_scans):
            reverse = scan >= num_scans - self.orders.num_reverse
            place = token if self.orders.tokens is None else int(self.orders.places[scan, token])
            place = num_places - 1 - place if reverse and place < num_places else place
            k, dt = (t[:, :, scan].flip(1) if reverse else t[:, :, scan] for t in (self.k, self.steps))
            q = (self.q[:, :, scan].flip(1) if reverse else self.q[:, :, scan])[:, place : place + 1]
            if place == num_places:  # a scan that skips it
                scans.append(torch.zeros_like(dt))
                continue
            k, dt = k[:, : place + 1], dt[:, : place + 1]
            passed = F.pad(dt[:, 1:].flip(1).cumsum(1).flip(1), (0, 0, 0, 1))  # steps after each place
            decay = (passed.unsqueeze(-1) * self.A[scan]).exp()  # (B, p, E, N)
            row = torch.einsum("bpen,bpn->bpe", decay, q * k) * dt
            row = torch.cat([row[:, :place], row[:, place:] + self.skip[scan]], dim=1)
            row = F.pad(row, (0, 0, 0, num_places - place - 1))
            scans.append(row.flip(1) if reverse else row)
        return torch.stack(scans, dim=2)

    def mask(self, state: int, heads: slice = ALL) -> Tensor:
        """The decay of one state with its triangle (B, h, L, L). Each is a product of a column and a row off the
        diagonal; a matrix sums N of them, each with weights of its own."""
        scan, channel = self._chosen(heads)
        dt = self._from_left(self.steps[:, :, scan, channel], scan)
        decay = (steps_between(dt) * self.A[scan, channel, state][:, None, None]).exp().tril()
        return self._in_image_order(decay, scan)

    @property
    def num_padding(self) -> int:
        return self.orders.num_padding

    def sides(self, head: int) -> tuple[bool, bool]:
        """Whether a head sees earlier and later tokens of the sequence: one side, if its scan walks straight on."""
        scan = head // self.v.shape[3]
        walk = torch.arange(self.v.shape[1]) if self.orders.tokens is None else self.orders.tokens[scan]
        steps = walk[walk < self.orders.num_tokens - self.num_padding].diff()
        reverse = scan >= self.skip.shape[0] - self.orders.num_reverse
        rising, falling = bool((steps > 0).all()), bool((steps < 0).all())
        return not (falling or (rising and reverse)), not rising or reverse

    def rank_bound(self, rows: range, columns: range) -> int:
        """N off the diagonal, where every scan walks straight on: else a triangle crosses the block."""
        size, first_of_scans = super().rank_bound(rows, columns), range(0, self.num_heads, self.v.shape[3])
        straight = not any(all(self.sides(head)) for head in first_of_scans)
        return min(size, self.q.shape[-1]) if straight and not overlap(rows, columns) else size

    def scan_of(self, head: int) -> str:
        """The kind of scan that a head belongs to."""
        return self.scans[head // self.v.shape[3]]

    def _chosen(self, heads: slice) -> tuple[Tensor, Tensor]:
        """The scan and the channel of each chosen head."""
        number = torch.tensor(range(self.num_heads)[heads], dtype=torch.long, device=self.v.device)
        return number // self.v.shape[3], number % self.v.shape[3]

    def _heads(self, places: Tensor) -> Tensor:
        """(B, T, S, E) -> (B, S E, L, 1)."""
        return _as_heads(self.orders.restore(places))

    def _is_reverse(self, scan: Tensor) -> Tensor:
        return scan >= self.skip.shape[0] - self.orders.num_reverse

    def _from_left(self, places: Tensor, scan: Tensor) -> Tensor:
        """(B, T, h, ...), the sequence turned round for heads that read from the right."""
        back = self._is_reverse(scan).view(-1, *[1] * (places.ndim - 3))
        return torch.where(back, places.flip(1), places)

    def _in_image_order(self, matrix: Tensor, scan: Tensor) -> Tensor:
        """(B, h, T, T), first place first, as (B, h, L, L); rows and columns of skipped tokens are zero."""
        matrix = torch.where(self._is_reverse(scan)[:, None, None], matrix.flip(-1, -2), matrix)
        if self.orders.tokens is None:
            return matrix
        places = self.orders.places.to(scan.device)[scan]  # (h, L)
        if matrix.shape[-1] < self.orders.num_tokens:
            matrix = F.pad(matrix, (0, 1, 0, 1))
        batch, length = matrix.shape[0], matrix.shape[-1]
        rows = places[None, :, :, None].expand(batch, -1, -1, length)
        columns = places[None, :, None, :].expand(batch, -1, places.shape[1], -1)
        return matrix.gather(2, rows).gather(3, columns)


def _as_heads(scans: Tensor) -> Tensor:
    """(B, S, L, E) -> (B, S E, L, 1)."""
    return scans.transpose(2, 3).flatten(1, 2).unsqueeze(-1)


class SelectiveMixer(TokenMixer):
    """A mixer around selective scans. It runs without their form as heads, whose gradient is a transposed copy."""

    num_scans: int

    @abstractmethod
    def prepare(self, x: Tensor, grid: Grid) -> tuple[SelectiveMixing, Tensor | None]: ...

    @abstractmethod
    def merge_scans(self, scans: Tensor, bypass: Tensor | None) -> Tensor:
        """Mixed values (B, S, L, E) back to tokens (B, L, D)."""

    def merge(self, mixed: Tensor, bypass: Tensor | None) -> Tensor:
        return self.merge_scans(mixed.squeeze(-1).unflatten(1, (self.num_scans, -1)).mT, bypass)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """The same as prepare, apply, merge."""
        mixing, bypass = self.prepare(x, grid)
        return self.merge_scans(mixing.scanned(), bypass)


class Selection(nn.Module):
    """What makes a scan selective: from the values of S scans to their steps, keys and queries, each with weights of
    its own; with their decays and skips."""

    stacked = ("dt_bias", "A_log", "skip")

    def __init__(self, num_scans: int, width: int, state: int, rank: int) -> None:
        super().__init__()
        self.state, self.rank = state, rank
        self.x_proj = nn.Parameter(torch.empty(num_scans, rank + 2 * state, width))
        self.dt_weight = nn.Parameter(torch.empty(num_scans, width, rank))
        self.dt_bias = nn.Parameter(torch.empty(num_scans, width))
        self.A_log = nn.Parameter(torch.arange(1, state + 1).float().log().expand(num_scans, width, -1).clone())
        self.skip = nn.Parameter(torch.ones(num_scans, width))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Released initialisation: dt log-uniform in [1e-3, 1e-1], A from -1 to -N, skip 1."""
        bound = self.x_proj.shape[-1] ** -0.5
        self.x_proj.uniform_(-bound, bound)
        self.dt_weight.uniform_(-(self.rank**-0.5), self.rank**-0.5)
        dt = torch.empty_like(self.dt_bias).uniform_(math.log(1e-3), math.log(1e-1)).exp()
        self.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # the inverse of softplus

    def forward(self, v: Tensor, orders: ScanOrders, scans: tuple[str, ...], grid: Grid) -> SelectiveMixing:
        """Values (B, T, S, E) in the order of each scan -> their mixing."""
        dt, k, q = project_steps(v, self.x_proj, self.dt_weight)
        return SelectiveMixing(q, k, v, dt, -self.A_log.exp(), self.skip, orders, scans, grid, self.dt_bias)


def project_steps(v: Tensor, x_proj: Tensor, dt_weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values (B, T, S, E) -> steps (B, T, S, E) before their bias, k and q (B, T, S, N)."""
    rank = dt_weight.shape[-1]
    state = (x_proj.shape[1] - rank) // 2
    padded = -(-rank // 8) * 8 if v.is_cuda else rank  # GPUs multiply rows of eight numbers faster
    inward, outward = _padded(x_proj, rank, padded), F.pad(dt_weight, (0, padded - rank))
    projected = torch.einsum("btse,sre->btsr", v, inward.to(v.dtype))
    low, k, q, _ = projected.split([padded, state, state, inward.shape[1] - padded - 2 * state], dim=-1)
    return torch.einsum("btsr,ser->btse", low, outward.to(low.dtype)), k, q


def _padded(x_proj: Tensor, rank: int, padded_rank: int) -> Tensor:
    """Weights (S, rank + 2N, E) with rows of zeros behind the first `rank`, and at the end to a multiple of eight."""
    if rank == padded_rank:
        return x_proj
    low, rest = x_proj.split([rank, x_proj.shape[1] - rank], dim=1)
    rows = padded_rank + rest.shape[1]
    return torch.cat([F.pad(low, (0, 0, 0, padded_rank - rank)), F.pad(rest, (0, 0, 0, -rows % 8))], dim=1)


class ChannelGate(nn.Module):
    """A gate per channel from the mean of all normalised tokens (called BiAttn in LocalMamba and EfficientVMamba)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.reduce = nn.Linear(dim, dim // 8)
        self.select = nn.Linear(dim // 8, dim)
        for linear in (self.reduce, self.select):
            nn.init.trunc_normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """(..., L, D), gated."""
        mean = self.norm(tokens).mean(-2, keepdim=True)
        return tokens * self.select(F.gelu(self.reduce(mean))).sigmoid()


def rank_of(dim: int) -> int:
    """The rank of the projection to the steps, in every released model: D / 16."""
    return math.ceil(dim / 16)
