"""Honest differences between groups of measurements, and the verdict that follows from several of them.

What another choice would change is counted twice: over seeds, by their spread, and over images, by the intervals that
measurements carry. Two models scored on the same images are taken as if scored on others, which is cautious.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mixlab.analysis.evidence import NOT_MEASURED, Group, Measurement, Status, Verdict
from mixlab.statistics.intervals import student, variance

CORRELATIONS = ("auc_follows_probe", "register_auc_follows_probe")
_SURE = 0.95
_NORMAL = 1.96  # measurements come with 95 % intervals over images


class Share(NamedTuple):
    """A part of the variance of a mean, and how well it is known."""

    variance: float
    freedom: float


class Difference(NamedTuple):
    """How much the first of two groups of measurements exceeds the second, with its standard error."""

    what: str
    mean: float
    error: float
    freedom: float = math.inf
    n: int = 0  # images
    limit: float = math.inf  # no interval reaches beyond

    def interval(self, together: int = 1) -> tuple[float, float]:
        """95 %; of several that are judged together, so wide that all of them hold at once (Bonferroni)."""
        if not math.isfinite(self.error):
            return -math.inf, math.inf
        half = student(self.freedom, 1 - (1 - _SURE) / together) * self.error
        return max(self.mean - half, -self.limit), min(self.mean + half, self.limit)


def difference(first: Group, second: Group) -> Difference:
    """First less second. Where one side alone has several seeds, their spread stands for that of the other too."""
    gap = _mean(first) - _mean(second)
    fewer, more = sorted((first, second), key=len)
    repeated = len(more) > 1
    shares = [_over_images(group, unknown=0.0 if repeated else math.inf) for group in (first, second)]
    if len(fewer) > 1:
        shares += [_over_seeds(group) for group in (first, second)]
    elif repeated:
        shares.append(Share(variance(_values(more)) * (1 + 1 / len(more)), len(more) - 1))
    n = min(max(m.n for m in group) for group in (first, second))
    return Difference(f"{_name(first)} over {_name(second)}", gap, *_error(shares), n)


def own_difference(group: Group) -> Difference:
    """Measurements that are themselves differences (paired over images) or correlations."""
    shares = [_over_images(group, unknown=0.0 if len(group) > 1 else math.inf)]
    if len(group) > 1:
        shares.append(_over_seeds(group))
    return _of(group, *_error(shares))


def over_images(group: Group) -> Difference:
    """The same of what is true of single networks, whatever others would have come to: over images alone."""
    shares = [_over_images([m], unknown=math.inf) for m in group]
    total, _ = _error(shares)
    return _of(group, total / len(group), math.inf)


def judge(differences: Sequence[Difference], scale: str, missing: Iterable[str] = ()) -> Verdict:
    """Supported if every difference is surely positive, contradicted if any is surely not, else not resolved.

    `missing` names what the claim says besides and no run measured: then it is supported in part at most.
    """
    if not differences:
        return Verdict("not measured", NOT_MEASURED)
    together, missing = len(differences), tuple(missing)
    lows, highs = zip(*(d.interval(together) for d in differences), strict=True)
    equal = any(low == high == 0 for low, high in zip(lows, highs, strict=True))
    if min(lows) > 0:
        status: Status = "supported in part" if missing else "supported"
        deciding = lows.index(min(lows))
    elif min(highs) < 0 or equal:
        status, deciding = "contradicted", highs.index(min(highs))
    else:
        status, deciding = "not resolved at this scale", lows.index(min(lows))
    text = "; ".join(
        f"{d.what}: {d.mean:+.3f} [{low:+.3f}, {high:+.3f}]"
        for d, low, high in zip(differences, lows, highs, strict=True)
    )
    text += f"; all {together} intervals hold together" if together > 1 else ""
    text += f"; not measured: {', '.join(missing)}" if missing else ""
    found = differences[deciding]
    return Verdict(status, text, found.mean, _finite(lows[deciding]), _finite(highs[deciding]), found.n, scale)


def _of(group: Group, error: float, freedom: float) -> Difference:
    lead = group[0]
    layer = "" if lead["layer"] is None else f", layer {lead['layer']}"
    what = f"{_name(group)}{layer}: {lead.metric.replace('_', ' ')}"
    limit = 1.0 if lead.metric in CORRELATIONS else math.inf
    return Difference(what, _mean(group), error, freedom, max(m.n for m in group), limit)


def _over_seeds(group: Group) -> Share:
    return Share(variance(_values(group)) / len(group), len(group) - 1)


def _over_images(group: Group, *, unknown: float) -> Share:
    """Seeds share their images, so more of them do not make this smaller."""
    halves = [(m.high - m.low) / 2 for m in group if m.low is not None and m.high is not None]
    if len(halves) < len(group):
        return Share(unknown, math.inf)
    return Share(sum((half / _NORMAL) ** 2 for half in halves) / len(group), math.inf)


def _error(shares: Sequence[Share]) -> tuple[float, float]:
    """The standard error of independent shares, and its degrees of freedom by Welch and Satterthwaite."""
    total = sum(share.variance for share in shares)
    doubt = sum(share.variance**2 / share.freedom for share in shares if math.isfinite(share.freedom))
    return math.sqrt(total), total**2 / doubt if doubt > 0 else math.inf


def _values(group: Iterable[Measurement]) -> list[float]:
    return [m.value for m in group]


def _mean(group: Group) -> float:
    return sum(_values(group)) / len(group)


def _name(group: Group) -> str:
    lead = group[0]
    size = f"{lead.num_parameters / 1e6:.2g} M" if lead.num_parameters else ""
    kind = ", ".join(part for part in (size, lead.training) if part)
    return f"{lead.model}{f' ({kind})' if kind else ''}{f' x{len(group)}' if len(group) > 1 else ''}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
