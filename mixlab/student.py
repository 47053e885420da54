"""Means over a few repetitions, with Student's t for their intervals."""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


@lru_cache(maxsize=1024)
def student(freedom: float, level: float = 0.95) -> float:
    """How many standard errors an interval reaches to either side; degrees of freedom need not be whole, from 1 on."""
    low = NormalDist().inv_cdf((1 + level) / 2)
    if freedom > 1e7:
        return low
    high = low
    while _inside(high, freedom) < level:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, freedom) < level else (low, middle)
    return high


def _inside(t: float, freedom: float) -> float:
    """The share of Student's t within -t and t: with t = sqrt(freedom) tan(a), an integral of powers of cos(a)."""
    end = math.atan(t / math.sqrt(freedom))
    angles = end * (_NODES + 1) / 2
    integral = end / 2 * float(_WEIGHTS @ np.exp((freedom - 1) * np.log(np.cos(angles))))
    return 2 * integral * math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)


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
