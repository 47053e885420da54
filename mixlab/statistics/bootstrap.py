"""Intervals over images for a mean score or the difference of two: a bootstrap, of very few images Student's t."""

import math
from collections.abc import Callable
from dataclasses import replace
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mixlab.errors import InputError
from mixlab.statistics.intervals import LEVEL, Estimate, mean_interval, student, wilson_interval

NUM_RESAMPLES = 2000
PARTS = 200  # of a jackknife, at most
FEWEST = 8  # a bootstrap needs: means of resamples never leave the scores, and of 2 images they cover 50 %, of 5 92 %
FEW = 50  # from here on the percentiles cover what they say, within a point or two
_DRAWS_AT_ONCE = 1 << 22


def bootstrap_mean(
    scores: ArrayLike,
    *,
    level: float = LEVEL,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
    low: float = -math.inf,
    high: float = math.inf,
) -> Estimate:
    """The mean of per-image scores (B,) with an interval from resampling images; the same seed, the same interval.

    Of fewer than `FEWEST` images it is Student's t, cut at `low` and `high`, between which scores must be. NaN scores
    are left out and counted. One image has a mean but no interval; of none, the mean is NaN.

    >>> found = bootstrap_mean([0.5, 0.7, 0.9, float("nan")], low=0.0, high=1.0)
    >>> round(found.value, 3), round(found.low, 3), round(found.high, 3), found.num_dropped
    (0.7, 0.203, 1.0, 1)
    """
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim != 1:
        raise InputError(f"scores have shape {scores.shape}; they must be (B,), one score per image")
    if not 0 < level < 1:
        raise InputError(f"level is {level}; an interval covers a share between 0 and 1: try 0.95")
    if num_resamples < 100:
        raise InputError(f"num_resamples is {num_resamples}; percentiles of fewer than 100 means are noise: try 2000")
    if np.isinf(scores).any():
        raise InputError("scores hold infinity; they must be finite, or NaN where undefined")
    kept = scores[~np.isnan(scores)]
    n, num_dropped = len(kept), int(np.isnan(scores).sum())
    if n < 2:
        return Estimate(float(kept[0]) if n else math.nan, None, None, n, num_dropped, scores)
    if n < FEWEST:
        found = mean_interval(kept.tolist(), level=level, low=low, high=high)
        return replace(found, num_dropped=num_dropped, by_image=scores)
    random = np.random.RandomState(seed)  # its stream never changes between versions: published intervals rest on it
    means = []
    for start in range(0, num_resamples, rows := max(1, _DRAWS_AT_ONCE // n)):
        size = (min(rows, num_resamples - start), n)
        draws = random.randint(0, 1 << 32, size, dtype=np.uint32) % n
        means.append(kept[draws].mean(axis=1))
    return Estimate(float(kept.mean()), *_ends(np.concatenate(means), n, level), n, num_dropped, scores)


def bootstrap_difference(
    scores: ArrayLike,
    others: ArrayLike,
    *,
    level: float = LEVEL,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
    low: float = -math.inf,
    high: float = math.inf,
) -> Estimate:
    """The mean of scores - others on the same images, both (B,), with the interval of `bootstrap_mean`: images are
    resampled in pairs. `low` and `high` are the limits of a difference.

    A pair with a NaN on either side is left out and counted.

    >>> found = bootstrap_difference([0.9, 0.8, 0.7, 0.9], [0.8, 0.7, 0.7, float("nan")])
    >>> round(found.value, 3), found.n, found.num_dropped
    (0.067, 3, 1)
    """
    scores, others = np.asarray(scores, dtype=np.float64), np.asarray(others, dtype=np.float64)
    if scores.shape != others.shape:
        raise InputError(
            f"scores {scores.shape} and others {others.shape} do not pair up; both must be (B,) over the same images "
            "in the same order"
        )
    gaps = scores - others
    return bootstrap_mean(gaps, level=level, num_resamples=num_resamples, seed=seed, low=low, high=high)


def jackknife(
    num_images: int, statistic: Callable[[NDArray[np.int64]], NDArray[np.float64]]
) -> tuple[float, float] | None:
    """The interval, within 0 to 1, of a share that is no mean over images, by Student's t; None of fewer than two.

    `statistic` gets how often each image counts in each of R sets (R, images), and returns the sets' values (R,). It is
    computed without each image in turn, or without each of `PARTS` groups of them. Drawing images with replacement says
    too little here: whatever is right in an image is right in its copies, and what only one image has never varies.
    """
    if num_images < 2:
        return None
    parts = min(num_images, PARTS)
    left_out = np.arange(num_images) % parts == np.arange(parts)[:, None]
    value = float(statistic(np.ones((1, num_images), dtype=np.int64))[0])
    without = statistic((~left_out).astype(np.int64))
    without = without[~np.isnan(without)]
    if len(without) < 2:
        return None
    half = student(len(without) - 1) * math.sqrt((len(without) - 1) * without.var())
    return max(value - half, 0.0), min(value + half, 1.0)


def _ends(values: NDArray[np.float64], n: int, level: float = LEVEL) -> tuple[float, float]:
    """The interval from the values of resamples of n images, from `FEWEST` on. Of few images it is wider, by Student's
    t and because resamples spread less than new images would (Hesterberg 2015): plain percentiles of 8 images cover
    89 %, not 95 %.
    """
    if n < FEW:
        level = 2 * NormalDist().cdf(student(n - 1, level) * math.sqrt(n / (n - 1))) - 1
    low, high = np.quantile(values, ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)


def paired_accuracy_difference(first: ArrayLike, second: ArrayLike, *, seed: int = 0) -> Estimate:
    """The difference of two accuracies on the same images, resampled in pairs; both are boolean (n,), True if correct.

    Each image is won, lost or drawn, so the counts of a resample are multinomial. Of fewer than `FEWEST` images the
    interval is Student's t. Where all images are won, lost or drawn, other images would differ now and then: Wilson's
    bound says how often.
    """
    first, second = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    if first.shape != second.shape or first.ndim != 1 or len(first) == 0:
        raise InputError(f"answers {first.shape} and {second.shape} do not pair up; give two (n,) of the same images")
    n = len(first)
    won, lost = int((first & ~second).sum()), int((second & ~first).sum())
    value, reach = (won - lost) / n, wilson_interval(0, n).high or 0.0
    if won == lost == 0:
        return Estimate(0.0, -reach, reach, n)
    if n in (won, lost):
        return Estimate(value, max(value - 2 * reach, -1.0), min(value + 2 * reach, 1.0), n)
    if n < FEWEST:
        return mean_interval((first.astype(int) - second).tolist(), low=-1.0, high=1.0)
    draws = np.random.default_rng(seed).multinomial(n, [won / n, lost / n, (n - won - lost) / n], NUM_RESAMPLES)
    return Estimate(value, *_ends((draws[:, 0] - draws[:, 1]) / n, n), n)
