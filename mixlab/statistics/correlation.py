"""Correlation of paired figures."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from mixlab.errors import InputError
from mixlab.statistics.intervals import student


@dataclass(frozen=True)
class Correlation:
    """Pearson's and Spearman's, the latter with its interval; None where one side does not vary."""

    pearson: float | None
    spearman: float | None
    low: float | None
    high: float | None
    n: int

    def to_json(self) -> dict[str, float | int | None]:
        return asdict(self)


def correlate(first: Sequence[float], second: Sequence[float]) -> Correlation:
    """The correlation of pairs; from 4 pairs on, Spearman's has an interval (Fisher's z)."""
    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if len(x) != len(y) or len(x) < 2:
        raise InputError(f"a correlation needs two or more pairs, got {len(x)} and {len(y)} values")
    spearman = _pearson(_mid_ranks(x), _mid_ranks(y))
    low = high = None
    if spearman is not None and len(x) > 3:
        z, half = np.arctanh(np.clip(spearman, -0.999999, 0.999999)), student(np.inf) / np.sqrt(len(x) - 3)
        low, high = float(np.tanh(z - half)), float(np.tanh(z + half))
    return Correlation(_pearson(x, y), spearman, low, high, len(x))


def _pearson(x: NDArray[np.float64], y: NDArray[np.float64]) -> float | None:
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale > 0 else None


def _mid_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks with ties at their mean rank."""
    return (values[:, None] > values).sum(1) + ((values[:, None] == values).sum(1) - 1) / 2.0
