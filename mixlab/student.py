"""Means over a few repetitions, with Student's t for their intervals."""

import math
from collections.abc import Sequence

# 97.5 % for 1 to 30 degrees of freedom; beyond, the normal 1.96 is within 4 %.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def student(freedom: float) -> float:
    """How many standard errors a 95 % interval reaches to either side."""
    index = int(freedom) - 1
    return _T[max(index, 0)] if index < len(_T) else 1.96


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
