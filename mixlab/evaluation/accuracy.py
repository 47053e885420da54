"""How sure an accuracy can be: bootstrap over images, drawn at once.

Scores are 0 or 1, so resampling n images with replacement makes the number of right ones binomial: exactly the usual
bootstrap, without touching the images again.
"""

from typing import NamedTuple

import numpy as np
from torch import Tensor

from mixlab.errors import InputError

NUM_RESAMPLES = 2000
TAILS = (0.025, 0.975)  # a 95 % interval


class Accuracy(NamedTuple):
    """A share of right answers with its 95 % interval; all three are None without images."""

    value: float | None
    low: float | None
    high: float | None
    correct: int
    n: int

    def as_json(self) -> dict[str, float | int | None]:
        return {"top1": self.value, "low": self.low, "high": self.high, "correct": self.correct, "n": self.n}


class Gap(NamedTuple):
    """The accuracy of one classifier less that of another on the same images, with its 95 % interval."""

    value: float
    low: float
    high: float
    n: int

    def as_json(self) -> dict[str, float | int]:
        return {"difference": self.value, "low": self.low, "high": self.high, "n": self.n}


def accuracy(correct: int, n: int, *, seed: int = 0) -> Accuracy:
    """`correct` of `n` images are right; the same seed, the same interval.

    >>> found = accuracy(90, 100)
    >>> found.value, round(found.low, 2), round(found.high, 2)
    (0.9, 0.84, 0.96)
    """
    if not 0 <= correct <= n:
        raise InputError(f"{correct} of {n} images cannot be right; give a count from 0 to {n}")
    if n == 0:
        return Accuracy(None, None, None, 0, 0)
    share = correct / n
    low, high = np.quantile(np.random.default_rng(seed).binomial(n, share, NUM_RESAMPLES) / n, TAILS)
    return Accuracy(share, float(low), float(high), correct, n)


def paired_gap(first: Tensor, second: Tensor, *, seed: int = 0) -> Gap:
    """How much better the first is: two boolean (n,) of right answers on the same images, resampled in pairs."""
    if first.shape != second.shape or first.ndim != 1 or len(first) == 0:
        raise InputError(
            f"answers {tuple(first.shape)} and {tuple(second.shape)} do not pair up; give two (n,) of the same images"
        )
    n = len(first)
    gained, lost = int((first & ~second).sum()), int((second & ~first).sum())
    shares = [gained / n, lost / n, (n - gained - lost) / n]
    draws = np.random.default_rng(seed).multinomial(n, shares, NUM_RESAMPLES)
    low, high = np.quantile((draws[:, 0] - draws[:, 1]) / n, TAILS)
    return Gap((gained - lost) / n, float(low), float(high), n)
