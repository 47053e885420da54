"""Means over a few repetitions, with Student's t for their intervals."""

import math
from collections.abc import Sequence

from scipy.special import stdtrit


def student(freedom: float, level: float = 0.95) -> float:
    """How many standard errors an interval reaches to either side; degrees of freedom need not be whole."""
    return float(stdtrit(min(freedom, 1e9), (1 + level) / 2))


def variance(values: Sequence[float]) -> float:
    """Of two or more values, unbiased."""
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


def mean_interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """The mean and its 95 % interval; none for one value."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, None, None
    half = student(len(values) - 1) * math.sqrt(variance(values) / len(values))
    return mean, mean - half, mean + half
