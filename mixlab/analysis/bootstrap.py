"""Bootstrap intervals over images: how sure a mean score, or the difference of two, can be."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mixlab.errors import InputError

_DRAWS_AT_ONCE = 1 << 22


class Interval(NamedTuple):
    """A mean with its percentile bootstrap interval, and the images it rests on."""

    mean: float
    low: float
    high: float
    num_used: int
    num_dropped: int  # undefined (NaN) images, left out


def bootstrap_mean(scores: Tensor, *, level: float = 0.95, num_resamples: int = 2000, seed: int = 0) -> Interval:
    """The mean of per-image scores (B,) with an interval from resampling images; the same seed, the same interval.

    NaN scores are left out and counted. One image has a mean but no interval, none has neither: those are NaN.

    >>> interval = bootstrap_mean(torch.tensor([0.5, 0.7, 0.9, float("nan")]))
    >>> round(interval.mean, 3), round(interval.low, 3), round(interval.high, 3), interval.num_dropped
    (0.7, 0.5, 0.9, 1)
    """
    if scores.ndim != 1:
        raise InputError(f"scores have shape {tuple(scores.shape)}; they must be (B,), one score per image")
    if not 0 < level < 1:
        raise InputError(f"level is {level}; an interval covers a share between 0 and 1: try 0.95")
    if num_resamples < 100:
        raise InputError(f"num_resamples is {num_resamples}; percentiles of fewer than 100 means are noise: try 2000")
    if scores.isinf().any():
        raise InputError("scores hold infinity; they must be finite, or NaN where undefined")
    kept = scores.detach().to("cpu", torch.float64)  # resampled on the CPU: a seed means the same on every device
    kept = kept[~kept.isnan()]
    num_dropped = len(scores) - len(kept)
    mean = kept.mean().item()
    if len(kept) < 2:
        return Interval(mean, math.nan, math.nan, len(kept), num_dropped)
    generator = torch.Generator().manual_seed(seed)
    means = []
    for resamples in torch.arange(num_resamples).split(max(1, _DRAWS_AT_ONCE // len(kept))):
        draws = torch.randint(len(kept), (len(resamples), len(kept)), generator=generator)
        means.append(kept[draws].mean(dim=1))
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = torch.cat(means).quantile(tails).tolist()
    return Interval(mean, low, high, len(kept), num_dropped)


def bootstrap_difference(
    scores: Tensor, others: Tensor, *, level: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> Interval:
    """The mean of scores - others on the same images, both (B,), with an interval: images are resampled in pairs.

    A pair with a NaN on either side is left out and counted.

    >>> model, prior = torch.tensor([0.9, 0.8, 0.7, 0.9]), torch.tensor([0.8, 0.7, 0.7, float("nan")])
    >>> interval = bootstrap_difference(model, prior)
    >>> round(interval.mean, 3), interval.num_used, interval.num_dropped
    (0.067, 3, 1)
    """
    if scores.shape != others.shape:
        raise InputError(
            f"scores {tuple(scores.shape)} and others {tuple(others.shape)} do not pair up; "
            "both must be (B,) over the same images in the same order"
        )
    difference = scores.to("cpu", torch.float64) - others.to("cpu", torch.float64)
    return bootstrap_mean(difference, level=level, num_resamples=num_resamples, seed=seed)
