"""How far a mixing reaches: the weight of its matrix by distance, so that "long range" is a number."""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from mixlab.errors import InputError
from mixlab.mixers import Grid


class DistanceProfile(NamedTuple):
    """Shares of weight by distance, the mean over tokens of |M| with each row scaled to sum to one.

    Along the sequence: all tokens, by |i - j|. On the grid: patches to patches only, by Euclidean distance in patches,
    rounded; `far_share` is the weight farther than half the longer side of the grid, `self_share` the weight that a
    patch keeps for itself (a scan's skip is in it), and the distance to others leaves that out.
    """

    sequence: Tensor  # (L,)
    grid: Tensor  # (R,)
    mean_sequence_distance: float
    mean_grid_distance: float
    distance_to_others: float
    self_share: float
    far_share: float


def distance_profile(matrix: Tensor, grid: Grid, patch_columns: list[int]) -> DistanceProfile:
    """The profile of one matrix (L, L) over tokens of which `patch_columns` are the patches of the grid."""
    length = matrix.shape[-1]
    if len(patch_columns) != grid[0] * grid[1]:
        raise InputError(f"{len(patch_columns)} patches cannot fill a grid of {grid[0]} x {grid[1]}")
    weight = matrix.double().abs()
    device = str(matrix.device)
    sequence = _binned(_scaled_rows(weight), _sequence_distances(length, device), length)
    if patch_columns != list(range(length)):
        chosen = torch.tensor(patch_columns, device=matrix.device)
        weight = weight[chosen[:, None], chosen]
    rows, distances = _scaled_rows(weight), _grid_distances(grid, device)
    rounded = distances.round().long()
    others = _scaled_rows(weight.clone().fill_diagonal_(0))
    far = torch.where(distances > max(grid) / 2, rows, 0)
    return DistanceProfile(
        sequence=sequence.cpu(),
        grid=_binned(rows, rounded, int(rounded.max()) + 1).cpu(),
        mean_sequence_distance=float(sequence @ torch.arange(length, dtype=sequence.dtype, device=device)),
        mean_grid_distance=float((rows * distances).sum() / _num_live(rows)),
        distance_to_others=float((others * distances).sum() / _num_live(others)),
        self_share=float(rows.diagonal().sum() / _num_live(rows)),
        far_share=float(far.sum() / _num_live(rows)),
    )


@lru_cache(maxsize=8)
def uniform_reach(length: int, grid: Grid, patch_columns: tuple[int, ...]) -> tuple[float, float]:
    """Mean distance to others and far share of a matrix that weighs all tokens alike: the baseline of a profile."""
    profile = distance_profile(torch.ones(length, length, dtype=torch.float64), grid, list(patch_columns))
    return profile.distance_to_others, profile.far_share


def _scaled_rows(weight: Tensor) -> Tensor:
    """Each row over its sum; a row of zeros stays zero."""
    totals = weight.sum(-1, keepdim=True)
    return torch.where(totals > 0, weight / totals, 0)


def _num_live(rows: Tensor) -> Tensor:
    """Rows that hold any weight."""
    return (rows.amax(-1) > 0).sum().clamp_min(1)


def _binned(rows: Tensor, distances: Tensor, num_bins: int) -> Tensor:
    return torch.bincount(distances.flatten(), weights=rows.flatten(), minlength=num_bins) / _num_live(rows)


@lru_cache(maxsize=2)
def _sequence_distances(length: int, device: str) -> Tensor:
    tokens = torch.arange(length, device=device)
    return (tokens[:, None] - tokens).abs()


@lru_cache(maxsize=2)
def _grid_distances(grid: Grid, device: str) -> Tensor:
    rows, columns = torch.meshgrid(*(torch.arange(side, device=device) for side in grid), indexing="ij")
    places = torch.stack([rows.flatten(), columns.flatten()], dim=-1).double()
    return torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")  # (h w, h w)
