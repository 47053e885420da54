"""From measurements of runs to a verdict: the evidence, comparisons, and the rule for a verdict."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from mixlab.analysis.comparisons import Group, Network
from mixlab.run import Measurement, RunDirectory, find_runs, once, unpacked
from mixlab.statistics import Difference, difference, mean_over_seeds

CORRELATIONS = ("auc_follows_probe", "register_auc_follows_probe")
NOT_MEASURED = "no run given here measured this"


class Status(StrEnum):
    SUPPORTED = "supported"
    IN_PART = "supported in part"
    CONTRADICTED = "contradicted"
    NOT_RESOLVED = "not resolved at this scale"
    NOT_MEASURED = "not measured"


class Evidence:
    """All measurements of the given runs; a measurement that several runs hold counts once."""

    def __init__(self, measurements: Iterable[Measurement] = ()) -> None:
        self.measurements = once(measurements)

    @classmethod
    def from_runs(cls, runs: Iterable[Path | str]) -> "Evidence":
        """Of run directories, and of all runs in archives."""
        found: list[Measurement] = []
        for path in map(Path, runs):
            with unpacked(path) as folder:
                directories = [RunDirectory.open(folder)] if folder == path else find_runs([folder])
                found += [m for directory in directories for m in directory.measurements()]
        return cls(found)

    def select(self, *metrics: str, keep: Callable[[Measurement], bool] = lambda m: True) -> list[Measurement]:
        return [m for m in self.measurements if m.metric in metrics and keep(m)]


@dataclass(frozen=True)
class Verdict:
    """The verdict on a claim. `measured` is a sentence with the numbers, `scale` says on which networks and data.

    `proven`: no training could have changed it.
    """

    status: Status
    measured: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    scale: str = ""
    proven: bool = False
    networks: frozenset[Network] = frozenset()  # whose measurements it rests on

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "networks"}

    def with_text(self, text: str) -> "Verdict":
        """The same verdict with another sentence, unless nothing was measured."""
        return self if self.status == Status.NOT_MEASURED else replace(self, measured=text)


class Comparison(NamedTuple):
    """A difference with its name and what it was computed from."""

    what: str
    difference: Difference
    used: tuple[Measurement, ...]


def compare(first: Group, second: Group, what: str = "") -> Comparison:
    """The first group minus the second."""
    return Comparison(what or f"{title(first)} minus {title(second)}", difference(first, second), (*first, *second))


def compare_to_zero(group: Group, averages: Callable[..., Difference] = mean_over_seeds) -> Comparison:
    """Measurements that are differences or correlations themselves."""
    lead = group[0]
    layer = "" if lead["layer"] is None else f", layer {lead['layer']}"
    limit = {"limit": 1.0} if lead.metric in CORRELATIONS else {}
    what = f"{title(group)}{layer}: {lead.metric.replace('_', ' ')}"
    return Comparison(what, averages(group, **limit), tuple(group))


def verdict_of(comparisons: Sequence[Comparison], missing: Iterable[str] = ()) -> Verdict:
    """Supported if every difference is significantly positive, contradicted if any is significantly negative, else not
    resolved. All intervals hold at once (Bonferroni).

    `missing` names what the claim says besides and no run measured: then it is supported in part at most.
    """
    if not comparisons:
        return Verdict(Status.NOT_MEASURED, NOT_MEASURED)
    together, missing = len(comparisons), tuple(missing)
    lows, highs = zip(*(each.difference.interval(together) for each in comparisons), strict=True)
    equal = any(low == high == 0 for low, high in zip(lows, highs, strict=True))
    if min(lows) > 0:
        status = Status.IN_PART if missing else Status.SUPPORTED
        deciding = lows.index(min(lows))
    elif min(highs) < 0 or equal:
        status, deciding = Status.CONTRADICTED, highs.index(min(highs))
    else:
        status, deciding = Status.NOT_RESOLVED, lows.index(min(lows))
    text = "; ".join(
        f"{each.what}: {each.difference.value:+.3f} [{low:+.3f}, {high:+.3f}]"
        for each, low, high in zip(comparisons, lows, highs, strict=True)
    )
    text += f"; Bonferroni over {together} comparisons" if together > 1 else ""
    text += f"; not measured: {', '.join(missing)}" if missing else ""
    found = comparisons[deciding].difference
    used = [m for each in comparisons for m in each.used]
    low, high = (end if math.isfinite(end) else None for end in (lows[deciding], highs[deciding]))
    networks = frozenset(Network.of(m) for m in used)
    return Verdict(status, text, found.value, low, high, found.n, scale_of(used), networks=networks)


def title(group: Group) -> str:
    return f"{Network.of(group[0])}{f' x{len(group)}' if len(group) > 1 else ''}"


def scale_of(measurements: Sequence[Measurement]) -> str:
    """The scale of some measurements as text: sizes, data, labels and seeds."""
    if not measurements:
        return ""
    sizes = [m["num_parameters"] / 1e6 for m in measurements if m["num_parameters"]]
    data = sorted({", ".join(filter(None, (m["data"], m["change"]))) for m in measurements if m["data"]})
    shares = sorted({m["label_share"] for m in measurements} - {None, 1.0})
    seeds = len({m.seed for m in measurements})
    parts = [
        f"{min(sizes):.3g} to {max(sizes):.3g} M parameters" if sizes else "",
        ", ".join(data) or "unnamed data",
        *(f"{share:.0%} of the labels" for share in shares),
        f"n = {max(m.n for m in measurements)}",
        f"{seeds} seed{'s' if seeds > 1 else ''}",
    ]
    return ", ".join(filter(None, parts))
