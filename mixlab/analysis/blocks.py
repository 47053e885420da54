"""The C x C grid over a mixing matrix: its blocks, and five definitions of their rank. `Mixing.rank_bound` is what
theory says of it.

Why every off-diagonal block of a Mamba-2 scan has rank at most N, and its mask exactly 1. The decay is one scalar a
step, exp(l_t) with l_t = dt_t A < 0, so the mask between a later token i and an earlier token j is
L[i, j] = exp(l_{j+1} + ... + l_i) = exp(S_i) exp(-S_j), with S the running sum of l. An off-diagonal block has all its
rows after all its columns: no entry is cut by the triangle, and the block is the outer product of the vectors exp(S_i)
and exp(-S_j), which are nowhere zero: rank 1. The scan's own block is the mask times q_i . k_j times dt_j, entry by
entry, that is diag(exp(S_i)) q kᵀ diag(dt_j exp(-S_j)): a product of factors N wide, of rank at most N. A scan from
the right is the same with the order of tokens turned round. A mask of higher rank needs a decay per state (Mamba-1).
"""

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from mixlab.errors import InputError
from mixlab.mixers import LinearMixing, Mixing, SSDMixing

MEASURES = ("numerical", "practical", "effective", "stable", "energy")


class Span(NamedTuple):
    """Tokens start, ..., stop - 1."""

    start: int
    stop: int

    @property
    def slice(self) -> slice:
        return slice(self.start, self.stop)

    @property
    def tokens(self) -> range:
        return range(self.start, self.stop)

    def __len__(self) -> int:
        return self.stop - self.start


def chunk_spans(length: int, chunk: int) -> list[Span]:
    """The chunks of a sequence; where `chunk` does not divide the length, the last one is shorter (ragged)."""
    if not 1 <= chunk <= length:
        raise InputError(f"a chunk of {chunk} does not fit {length} tokens; choose 1 to {length}")
    return [Span(start, min(start + chunk, length)) for start in range(0, length, chunk)]


def default_chunk(length: int) -> int:
    """256 as in the paper where the sequence has two such chunks, else half of it: ranks need at least two chunks."""
    return 256 if length >= 512 else max(length // 2, 1)


def in_float64(mixing: Mixing, device: torch.device | str = "cpu") -> Mixing:
    """The same mixing in float64: exact for the tensors that the model computed."""
    if not is_dataclass(mixing):
        raise TypeError(f"{type(mixing).__name__} is not a dataclass of tensors; give a mixing of mixlab.mixers")
    values = {field.name: getattr(mixing, field.name) for field in fields(mixing)}
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    if any(tensor.isnan().any() for tensor in tensors.values()):
        raise InputError("the mixing holds NaN, which has no rank; check the weights and images")
    return replace(mixing, **{name: tensor.detach().to(device, torch.float64) for name, tensor in tensors.items()})


def off_diagonal_pairs(num_spans: int, sides: tuple[bool, bool]) -> list[tuple[int, int]]:
    """(row, column) of the blocks off the diagonal on the visible sides; below the diagonal first."""
    below = [(row, column) for row in range(num_spans) for column in range(row)] if sides[0] else []
    above = [(row, column) for row in range(num_spans) for column in range(row + 1, num_spans)] if sides[1] else []
    return below + above


def rank_measures(
    singular_values: Tensor,
    shape: tuple[int, int],
    *,
    tolerance: float | None = None,
    practical: float = 1e-3,
    energy: float = 0.99,
) -> dict[str, Tensor]:
    """Ranks of matrices of one shape from their singular values (..., k), largest first: each is (...) of float64.

    numerical  how many exceed `tolerance` times the largest; by default eps max(m, n) of their dtype
    practical  how many exceed `practical` times the largest: what survives bf16-sized noise
    effective  exp of the entropy of s / sum(s) (Roy and Vetterli, 2007)
    stable     sum(s²) / max(s)²
    energy     how many of the largest hold the share `energy` of sum(s²)
    A zero matrix has rank 0 by all of them.

    >>> figures = rank_measures(torch.tensor([2.0, 2.0, 1e-5, 0.0], dtype=torch.float64), (4, 4))
    >>> {name: round(value.item(), 3) for name, value in figures.items()}
    {'numerical': 3.0, 'practical': 2.0, 'effective': 2.0, 'stable': 2.0, 'energy': 2.0}
    """
    s = singular_values
    if tolerance is None:
        tolerance = torch.finfo(s.dtype).eps * max(shape)
    _check_share("tolerance", tolerance)
    _check_share("practical", practical)
    _check_share("energy", energy)
    s = s.double()
    largest = s[..., :1]
    unit = torch.where(largest > 0, s / largest, 0)  # scale first: squares of tiny values underflow
    share = unit / unit.sum(-1, keepdim=True).clamp_min(1)
    squares = unit.square()
    entropy = -torch.xlogy(share, share).sum(-1)
    held = squares.cumsum(-1)
    exists = largest[..., 0] > 0
    return {
        "numerical": (unit > tolerance).sum(-1).double(),
        "practical": (unit > practical).sum(-1).double(),
        "effective": torch.where(exists, entropy.exp(), 0),
        "stable": squares.sum(-1),
        "energy": torch.where(exists, (held < energy * held[..., -1:]).sum(-1).double() + 1, 0),
    }


def energy_left(singular_values: Tensor, rank: int) -> Tensor:
    """The share of sum(s²), the squared Frobenius norm, that the best approximation of this rank leaves: (..., k) to
    (...). No matrix of the rank comes closer (Eckart and Young, 1936). Zero of a zero matrix.

    >>> energy_left(torch.tensor([3.0, 1.0, 0.0]), 1).item()
    0.1
    """
    s = singular_values.double()
    squares = torch.where(s[..., :1] > 0, s / s[..., :1], 0).square()  # scale first: squares of tiny values underflow
    return squares[..., rank:].sum(-1) / squares.sum(-1).clamp_min(torch.finfo(squares.dtype).tiny)


def numerical_rank(matrix: Tensor, tolerance: float | None = None) -> int:
    """The numerical rank of one matrix (m, n), by a plain SVD.

    >>> numerical_rank(torch.ones(3, 5, dtype=torch.float64))
    1
    """
    shape = (matrix.shape[-2], matrix.shape[-1])
    return int(rank_measures(torch.linalg.svdvals(matrix), shape, tolerance=tolerance)["numerical"])


@dataclass
class ThinBlocks:
    """Off-diagonal blocks as products: block (I, J) = exp(log_gap[I, J]) rows[I] @ columns[J]ᵀ, factors N wide."""

    rows: list[Tensor]  # (C, N) each
    columns: list[Tensor]  # (C, N) each
    log_gap: Tensor  # (chunks, chunks)

    def singular_values(self, pairs: list[tuple[int, int]]) -> list[Tensor]:
        """Of each block, through the triangular factors of its two sides: an SVD of N x N instead of C x C."""
        cores = [[_triangle(factor) for factor in side] for side in (self.rows, self.columns)]
        products = [cores[0][row] @ cores[1][column].mT for row, column in pairs]
        values: list[Tensor] = [torch.empty(0)] * len(pairs)
        for shape in {product.shape for product in products}:
            same = [index for index, product in enumerate(products) if product.shape == shape]
            for index, found in zip(same, torch.linalg.svdvals(torch.stack([products[i] for i in same])), strict=True):
                values[index] = found * self.log_gap[pairs[index]].exp()
        return values


def thin_blocks(mixing: Mixing, head: int, spans: list[Span]) -> ThinBlocks | None:
    """The thin factors of a head's off-diagonal blocks, for one image; None where there are none."""
    match mixing:
        case SSDMixing():
            decay = ScanDecay.of(mixing, head, spans)
            group = head * mixing.q.shape[2] // mixing.num_heads
            q, k, dt = mixing.q[0, :, group], mixing.k[0, :, group], mixing.dt[0, :, head]
            rows = [q[span.slice] * log.exp()[:, None] for span, log in zip(spans, decay.rows, strict=True)]
            columns = [
                k[span.slice] * (dt[span.slice] * log.exp())[:, None]
                for span, log in zip(spans, decay.columns, strict=True)
            ]
            return ThinBlocks(rows, columns, decay.gaps)
        case LinearMixing():
            q, k = mixing.q[0, head], mixing.k[0, head]
            no_gap = torch.zeros(len(spans), len(spans), dtype=q.dtype)
            return ThinBlocks([q[span.slice] for span in spans], [k[span.slice] for span in spans], no_gap)
        case _:
            return None


@dataclass
class ScanDecay:
    """The log decay between chunks, summed step by step in three parts: inside the column's chunk, between the chunks,
    and inside the row's chunk. No part is positive, so that nothing overflows however strong the decay.
    """

    rows: list[Tensor]  # (C,) each: from the edge of the chunk to token i
    columns: list[Tensor]  # (C,) each: from token j to the edge of its chunk
    gaps: Tensor  # (chunks, chunks): across the chunks between

    @classmethod
    def of(cls, mixing: SSDMixing, head: int, spans: list[Span]) -> "ScanDecay":
        steps = [mixing.dt[0, span.slice, head] * mixing.A[head] for span in spans]
        if head >= mixing.num_heads - mixing.num_reverse:
            rows = [_sums_from_right(part) for part in steps]
            columns = [part.cumsum(0) - part for part in steps]
        else:
            rows = [part.cumsum(0) for part in steps]
            columns = [_sums_from_right(part) - part for part in steps]
        totals = [part.sum() for part in steps]
        gaps = torch.zeros(len(spans), len(spans), dtype=mixing.dt.dtype)
        for row in range(len(spans)):
            for column in range(row):
                gaps[row, column] = gaps[column, row] = sum(totals[column + 1 : row], start=torch.zeros(()))
        return cls(rows, columns, gaps)

    def mask_block(self, row: int, column: int) -> Tensor:
        """One off-diagonal block of the mask, entry by entry, without the factor that the gap gives all of them."""
        return (self.rows[row][:, None] + self.columns[column]).exp()

    def largest_log(self, row: int, column: int) -> float:
        """The log of the largest entry of the block of the mask."""
        return float(self.gaps[row, column] + self.rows[row].max() + self.columns[column].max())


def rank_after_deflation(block: Tensor, tolerance: float | None = None) -> int:
    """The numerical rank of a block (m, n), cheaply if it is 1.

    Take away the outer product through the largest entry. The second singular value is at most the norm of what is
    left (no rank-1 approximation beats the best one), so a small rest proves rank 1. If it is not small: a full SVD.
    """
    index = int(block.abs().argmax())
    row, column = divmod(index, block.shape[1])
    pivot = block[row, column]
    if pivot == 0:
        return 0
    if tolerance is None:
        tolerance = torch.finfo(block.dtype).eps * max(block.shape)
    rest = torch.addmm(block, block[:, column, None], block[None, row] / pivot, alpha=-1)
    if torch.linalg.vector_norm(rest) <= tolerance * pivot.abs():
        return 1
    values = torch.linalg.svdvals(block)
    return int((values > tolerance * values[0]).sum())


def _triangle(factor: Tensor) -> Tensor:
    """R with RᵀR = factorᵀ factor, as (k, N) with k <= N: what singular values need of a factor (C, N)."""
    return torch.linalg.qr(factor, mode="r").R if factor.shape[0] > factor.shape[1] else factor


def _sums_from_right(steps: Tensor) -> Tensor:
    return steps.flip(0).cumsum(0).flip(0)


def _check_share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise InputError(f"{name} is {value}; it is a share of the largest value or of the energy: 0 <= {name} < 1")
