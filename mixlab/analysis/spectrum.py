"""What "rank" can mean: five figures of the same singular values, each under its own name."""

import torch
from torch import Tensor

from mixlab.errors import InputError

MEASURES = ("numerical", "practical", "effective", "stable", "energy")


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


def numerical_rank(matrix: Tensor, tolerance: float | None = None) -> int:
    """The numerical rank of one matrix (m, n), by a plain SVD.

    >>> numerical_rank(torch.ones(3, 5, dtype=torch.float64))
    1
    """
    shape = (matrix.shape[-2], matrix.shape[-1])
    return int(rank_measures(torch.linalg.svdvals(matrix), shape, tolerance=tolerance)["numerical"])


def _check_share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise InputError(f"{name} is {value}; it is a share of the largest value or of the energy: 0 <= {name} < 1")
