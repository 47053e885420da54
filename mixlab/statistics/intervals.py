"""Intervals of means (Student's t) and of shares (Wilson)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mixlab.errors import InputError

LEVEL = 0.95
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


class Quantity(Protocol):
    """What can be compared: a value with its interval over n images. A `Measurement` is one, an `Estimate` another."""

    @property
    def value(self) -> float: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...
    @property
    def n(self) -> int: ...


@dataclass(frozen=True)
class Estimate:
    """A value with its interval; low and high are None where too little is known for one."""

    value: float
    low: float | None
    high: float | None
    n: int
    num_dropped: int = 0  # undefined (NaN) values, left out
    by_image: NDArray[np.float64] | None = field(default=None, compare=False, repr=False)  # what it is the mean of


def with_interval(value: float, low: float | None, high: float | None, *, form: str = ".3f", unit: float = 1.0) -> str:
    """As text: a value times `unit`, and its interval in brackets where it has one.

    >>> with_interval(0.9, 0.826, 0.945, form=".1f", unit=100)
    '90.0 [82.6, 94.5]'
    """
    ends = "" if low is None or high is None else f" [{unit * low:{form}}, {unit * high:{form}}]"
    return f"{unit * value:{form}}{ends}"


@lru_cache(maxsize=1024)
def student(freedom: float, level: float = LEVEL) -> float:
    """The half-width of an interval in standard errors (Student's t); degrees of freedom from 1, not only integers."""
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


def mean_interval(
    values: Sequence[float], *, level: float = LEVEL, low: float = -math.inf, high: float = math.inf
) -> Estimate:
    """The mean of a few values, such as those of seeds, by Student's t; one value has no interval. No end lies beyond
    `low` and `high`, between which the values must be.
    """
    mean = sum(values) / len(values)
    std = math.sqrt(variance(values)) if len(values) > 1 else None
    found = interval_from_std(mean, std, len(values), level=level)
    if found.low is None or found.high is None:
        return found
    return Estimate(mean, max(low, found.low), min(high, found.high), len(values))


def interval_from_std(mean: float, std: float | None, n: int, *, level: float = LEVEL) -> Estimate:
    """The same from the standard deviation (unbiased) of n values; no interval where that is None."""
    if std is None or n < 2:
        return Estimate(mean, None, None, n)
    half = student(n - 1, level) * std / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n)


def wilson_interval(correct: int, n: int) -> Estimate:
    """`correct` of n images, with Wilson's interval: it has a width for shares of 0 and 1 too, and stays between them.

    >>> found = wilson_interval(90, 100)
    >>> found.value, round(found.low, 3), round(found.high, 3)
    (0.9, 0.826, 0.945)
    """
    if n < 1 or not 0 <= correct <= n:
        raise InputError(f"{correct} of {n} images cannot be right; give a count from 0 to {n} of at least one image")
    share, z = correct / n, student(math.inf)
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    low = 0.0 if correct == 0 else centre - half
    high = 1.0 if correct == n else centre + half
    return Estimate(share, low, high, n)


def share_interval(share: float, error: float, *, freedom: float) -> tuple[float, float]:
    """The interval of a share from its standard error, by Student's t on the scale of log(share / (1 - share)): both
    ends lie between 0 and 1, and the one nearer to a half is further away.

    >>> low, high = share_interval(0.9, 0.03, freedom=99)
    >>> round(low, 3), round(high, 3)
    (0.823, 0.946)
    """
    if not 0 < share < 1 or error == 0:
        return share, share
    factor = math.exp(min(student(freedom) * error / (share * (1 - share)), 700.0))  # of the odds; 700: exp is finite
    return share / (share + (1 - share) * factor), share / (share + (1 - share) / factor)


def accuracy_interval(correct: ArrayLike) -> Estimate:
    """Wilson's interval of answers (n,), True if correct. It keeps them: two networks are compared image by image."""
    answers = np.asarray(correct, dtype=bool)
    return replace(wilson_interval(int(answers.sum()), len(answers)), by_image=answers.astype(np.float64))


def median_interval(values: Sequence[float]) -> Estimate:
    """The median of repeated timings and the nearest order statistics around it that cover it at least 95 % of the time
    (the binomial distribution of how many fall below it); fewer than six values do not: then their range."""
    ordered, n, edge = sorted(values), len(values), 0
    while 2 * sum(math.comb(n, below) for below in range(edge + 2)) <= (1 - LEVEL) * 2**n:
        edge += 1
    return Estimate(float(np.median(ordered)), ordered[edge], ordered[-1 - edge], n)
