"""Differences between groups of measurements, over seeds and over images together.

A group holds one measurement per seed. The spread of seeds says how much another training would change, the intervals
that measurements carry how much other images would. Where all measurements of both groups keep the score of every
image, and of as many images, the images are paired: what makes an image hard for both networks cancels. Without these
scores the two are taken as if scored on different images, which is cautious.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mixlab.statistics.intervals import LEVEL, Quantity, student, variance, wilson_interval

Group = Sequence[Quantity]


class Significance(StrEnum):
    """What a difference says at 95 %."""

    MORE = "significantly more"
    LESS = "significantly less"
    NONE = "not significant"
    UNKNOWN = "no interval"


@dataclass(frozen=True)
class Difference:
    """How much one group of measurements exceeds another, with its standard error. It has an interval of its own, so
    it is a `Quantity` as well."""

    value: float
    error: float  # infinite where nothing is known of it
    freedom: float = math.inf
    n: int = 0  # images
    limit: float = math.inf  # no interval reaches beyond
    skew: float = 0.0  # of a bootstrap: how far its middle lies above the value, in half widths

    def interval(self, together: int = 1) -> tuple[float, float]:
        """The 95 % interval; for several comparisons, widened so that all hold at once (Bonferroni)."""
        if not math.isfinite(self.error):
            return -math.inf, math.inf
        half = student(self.freedom, 1 - (1 - LEVEL) / together) * self.error
        low, high = self.value - half * (1 - self.skew), self.value + half * (1 + self.skew)
        return max(low, -self.limit), min(high, self.limit)

    @property
    def low(self) -> float | None:
        return self.interval()[0] if math.isfinite(self.error) else None

    @property
    def high(self) -> float | None:
        return self.interval()[1] if math.isfinite(self.error) else None

    @property
    def significance(self) -> Significance:
        return significance(self)


def difference(first: Group, second: Group) -> Difference:
    """First minus second. If only one side has several seeds, their spread is used for the other side too."""
    fewer, more = sorted((first, second), key=len)
    repeated = len(more) > 1
    shares, n = _images_of_both(first, second, unknown=0.0 if repeated else math.inf)
    if len(fewer) > 1:
        shares += [_over_seeds(group) for group in (first, second)]
    elif repeated:
        shares.append(_Share(variance(_values(more)) * (1 + 1 / len(more)), len(more) - 1))
    return Difference(_mean(first) - _mean(second), *_error(shares), n)


def repeated_difference(first: Group, second: Group) -> Difference:
    """First minus second where both are of the same networks, seed by seed: seeds are paired, as images are."""
    gaps = [a.value - b.value for a, b in zip(first, second, strict=True)]
    shares, n = _images_of_both(first, second, unknown=0.0 if len(gaps) > 1 else math.inf)
    if len(gaps) > 1:
        shares.append(_Share(variance(gaps) / len(gaps), len(gaps) - 1))
    return Difference(sum(gaps) / len(gaps), *_error(shares), n)


def mean_over_seeds(group: Group, *, limit: float = math.inf) -> Difference:
    """The mean of measurements that are differences themselves (paired over images), or correlations (limit 1)."""
    shares = [_over_images(group, unknown=0.0 if len(group) > 1 else math.inf)]
    if len(group) > 1:
        shares.append(_over_seeds(group))
    return Difference(_mean(group), *_error(shares), max(m.n for m in group), limit, _skew(group))


def mean_over_images(group: Group) -> Difference:
    """The same for these networks only: the error over images, without that over seeds."""
    error = _error([_over_images(group, unknown=math.inf)])
    return Difference(_mean(group), *error, max(m.n for m in group), skew=_skew(group))


def significance(gap: Quantity) -> Significance:
    """The significance of a difference from its interval."""
    if gap.low is None or gap.high is None:
        return Significance.UNKNOWN
    return Significance.MORE if gap.low > 0 else Significance.LESS if gap.high < 0 else Significance.NONE


def has_learnt(gains: Iterable[Quantity]) -> bool | None:
    """Whether a network learnt anything: some measure is significantly more than that of its untrained twin. `gains`
    are these differences, one per measure; None where nothing was measured of both."""
    found = [significance(gain) is Significance.MORE for gain in gains]
    return any(found) if found else None


class _Share(NamedTuple):
    """A part of the variance of a mean, and how well it is known."""

    variance: float
    freedom: float


def _over_seeds(group: Group) -> _Share:
    return _Share(variance(_values(group)) / len(group), len(group) - 1)


def _skew(group: Group) -> float:
    """Of a single measurement, so that its interval comes out as it went in; means over seeds are symmetric."""
    (first, *more) = group
    if more or first.low is None or first.high is None or first.low == first.high:
        return 0.0
    return (first.high + first.low - 2 * first.value) / (first.high - first.low)


def _over_images(group: Group, *, unknown: float) -> _Share:
    """Seeds share their images, so more of them do not make this smaller."""
    known = [(m.high - m.low, max(m.n - 1, 1)) for m in group if m.low is not None and m.high is not None]
    if len(known) < len(group):
        return _Share(unknown, math.inf)
    freedom = min(each for _, each in known)
    return _Share(sum((width / 2 / student(each)) ** 2 for width, each in known) / len(group), freedom)


def _images_of_both(first: Group, second: Group, *, unknown: float) -> tuple[list[_Share], int]:
    """The variance over images of a difference of means, and the number of images.

    Paired, it is that of the differences of the images' means over seeds, divided by the number of images. Answers that
    agree on every image would have none; then Wilson's bound on how often they may differ stands for it.
    """
    gaps = _paired_scores(first, second)
    if gaps is None:
        n = min(max(m.n for m in group) for group in (first, second))
        return [_over_images(group, unknown=unknown) for group in (first, second)], n
    n = len(gaps)
    spread = float(gaps.var(ddof=1)) / n
    if spread == 0:
        spread = ((wilson_interval(0, n).high or 0.0) / student(math.inf)) ** 2
    return [_Share(spread, n - 1)], n


def _paired_scores(first: Group, second: Group) -> NDArray[np.float64] | None:
    """First minus second on each image (n,), means over seeds; None where scores are missing or of other images.

    Who compares two groups has made sure that they have one protocol, hence one list of images in one order.
    """
    sides = [[scores for m in group if (scores := _by_image(m)) is not None] for group in (first, second)]
    sizes = {len(scores) for side in sides for scores in side}
    if len(sizes) != 1 or [len(side) for side in sides] != [len(first), len(second)]:
        return None
    gaps: NDArray[np.float64] = np.mean(sides[0], axis=0) - np.mean(sides[1], axis=0)
    gaps = gaps[~np.isnan(gaps)]
    return gaps if len(gaps) > 1 else None


def _by_image(m: Quantity) -> NDArray[np.float64] | None:
    """The scores that some quantities keep: measurements of some metrics, and estimates that were just made."""
    return getattr(m, "by_image", None)


def _error(shares: Sequence[_Share]) -> tuple[float, float]:
    """The standard error of independent shares, and its degrees of freedom by Welch and Satterthwaite."""
    total = sum(share.variance for share in shares)
    doubt = sum(share.variance**2 / share.freedom for share in shares if math.isfinite(share.freedom))
    return math.sqrt(total), total**2 / doubt if doubt > 0 else math.inf


def _values(group: Group) -> list[float]:
    return [m.value for m in group]


def _mean(group: Group) -> float:
    return sum(_values(group)) / len(group)
