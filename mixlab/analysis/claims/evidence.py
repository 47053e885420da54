"""From measurements of runs to a verdict: the evidence, comparisons, and the rule for a verdict.

A claim is a list of comparisons that must all be positive. Two questions are asked, each with its own error rate:

- Is all of it true? Every comparison must be significantly positive by itself, at 95 %. This is an intersection-union
  test: a false "supported" needs every comparison to look positive, also the one that is not, and that one does so in
  at most 2.5 % of all studies. No correction is needed, however many comparisons there are and however they depend on
  each other (Berger, 1982).
- Is some of it false? One of k comparisons, each of which errs in 2.5 % of all studies, would be significantly negative
  by chance in up to k times as many. So a comparison contradicts only if its interval is below zero after Bonferroni's
  correction for k: then a true claim is contradicted in at most 2.5 % of all studies.

What differs by training is decided by trainings: one run against one run leaves open what another seed would change.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from mixlab.analysis.comparisons import Group, Network, grouped
from mixlab.run import Measurement, RunDirectory, find_runs, once, unpacked
from mixlab.statistics import Difference, difference, mean_over_seeds, repeated_difference, with_interval

CORRELATIONS = ("auc_follows_probe", "register_auc_follows_probe")
NOT_MEASURED = "none of the given runs measured this"
ONE_RUN = "one run against one run decides nothing about training: train more seeds (NAME-s1, NAME-s2)"
RELEASED = ("dinov2",)  # trainings that nobody repeats: the papers speak of the released weights


class Status(StrEnum):
    SUPPORTED = "supported"
    IN_PART = "supported in part"
    CONTRADICTED = "contradicted"
    NOT_RESOLVED = "not resolved at this scale"
    NOT_MEASURED = "not measured"

    @classmethod
    def of(cls, held: bool) -> "Status":
        """The verdict of a computation."""
        return cls.SUPPORTED if held else cls.CONTRADICTED


class Evidence:
    """All measurements of the given runs; a measurement that several runs hold counts once."""

    def __init__(self, measurements: Iterable[Measurement] = (), *, num_runs: int = 0) -> None:
        self.measurements, self.num_runs = once(measurements), num_runs

    @classmethod
    def from_runs(cls, runs: Iterable[Path | str]) -> "Evidence":
        """Of run directories, and of all runs in archives and in folders that are no run themselves."""
        found: list[Measurement] = []
        num_runs = 0
        for path in map(Path, runs):
            with unpacked(path) as folder:
                is_run = folder == path and RunDirectory(folder).exists()
                below = find_runs([folder]) if folder.is_dir() and not is_run else []
                directories = below or [RunDirectory.open(path)]
                num_runs += len(directories)
                found += [m for directory in directories for m in directory.measurements()]
        return cls(found, num_runs=num_runs)

    def select(self, *metrics: str, keep: Callable[[Measurement], bool] = lambda m: True) -> list[Measurement]:
        return [m for m in self.measurements if m.metric in metrics and keep(m)]


@dataclass(frozen=True)
class Verdict:
    """The verdict on a claim. `measured` is a sentence with the numbers, `scale` says on which networks and data.

    `low` and `high` are the interval that decided: 95 % by itself, of a contradiction corrected for all comparisons.
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
    """A difference with its name and what it was computed from.

    `part` names the part of the claim that it speaks of: each part must hold. `trainings` is how often what it compares
    was trained: 0 for one run against one, 1 where one side has several, 2 where both have, or where the claim is about
    these very weights.
    """

    what: str
    difference: Difference
    used: tuple[Measurement, ...]
    part: str = ""
    trainings: int = 2


def compare(first: Group, second: Group, what: str = "", *, part: str = "") -> Comparison:
    """The first group minus the second; of the same networks, seed by seed."""
    what = what or f"{title(first)} minus {title(second)}"
    used = (*first, *second)
    if all(m["training"] in RELEASED for m in used):
        return Comparison(what, difference(first, second), used, part)
    if [(m.subject, m.seed) for m in first] == [(m.subject, m.seed) for m in second]:
        return Comparison(what, repeated_difference(first, second), used, part, 2 if len(first) > 1 else 0)
    trainings = (len(first) > 1) + (len(second) > 1)
    return Comparison(what, difference(first, second), used, part, trainings)


def compare_to_zero(
    group: Group,
    averages: Callable[..., Difference] = mean_over_seeds,
    *,
    part: str = "",
    of_weights: bool = False,
) -> Comparison:
    """Measurements that are differences or correlations themselves. `of_weights`: the claim is about these networks."""
    lead = group[0]
    layer = "" if lead["layer"] is None else f", layer {lead['layer']}"
    limit = {"limit": 1.0} if lead.metric in CORRELATIONS else {}
    what = f"{title(group)}{layer}: {lead.metric.replace('_', ' ')}"
    trainings = 2 if of_weights or len(group) > 1 else 0
    return Comparison(what, averages(group, **limit), tuple(group), part, trainings)


def verdict_of(comparisons: Sequence[Comparison], missing: Iterable[str] = ()) -> Verdict:
    """Supported if every difference is significantly positive; contradicted if any is significantly negative even after
    correction for all of them; else not resolved. The head of this file says why these are two rules.

    Of each part of a claim, those comparisons decide that have the most trainings. `missing` names what the claim says
    besides and no run measured: then it is supported in part at most.
    """
    if not comparisons:
        return Verdict(Status.NOT_MEASURED, NOT_MEASURED)
    comparisons = [part for same in grouped(comparisons, lambda each: each.what) for part in _with_data(same)]
    deciding, beside = _deciding(comparisons)
    undecided = sorted({each.part for each in comparisons} - {each.part for each in deciding})
    missing = [*missing, *(f"{part} by more than one run" for part in undecided if part)]
    if not deciding:
        lead = min(comparisons, key=lambda each: each.difference.value)
        text = f"{'; '.join(map(_one_run_text, comparisons))}; {ONE_RUN}"
        return _verdict(Status.NOT_RESOLVED, text, lead, (None, None), comparisons)
    together = len(deciding)
    alone, corrected = ([each.difference.interval(num) for each in deciding] for num in (1, together))
    lows = [low for low, _ in alone]
    highs = [high for _, high in corrected]
    equal = any(low == high == 0 for low, high in alone)
    if min(lows) > 0:
        partly = bool(missing) or bool(undecided)
        status, place = Status.IN_PART if partly else Status.SUPPORTED, lows.index(min(lows))
        ends = alone[place]
    elif min(highs) < 0 or equal:
        status, place = Status.CONTRADICTED, highs.index(min(highs))
        ends = corrected[place]
    else:
        status, place = Status.NOT_RESOLVED, lows.index(min(lows))
        ends = alone[place]
    text = "; ".join(
        f"{each.what}: {with_interval(each.difference.value, *own, form='+.3f')}"
        for each, own in zip(deciding, alone, strict=True)
    )
    text += _rule_text(status, deciding[place], ends, alone, together)
    text += "".join(f"; beside it, {_one_run_text(each)}" for each in beside)
    text += f"; not measured: {', '.join(missing)}" if missing else ""
    return _verdict(status, text, deciding[place], ends, deciding)


def _with_data(same: Sequence[Comparison]) -> list[Comparison]:
    """Comparisons of one name; of several data sets, each with its own."""
    data = [each.used[0]["data"] if each.used else None for each in same]
    if len(set(data)) == 1:
        return [*same]
    return [each._replace(what=f"{each.what} on {own}") for each, own in zip(same, data, strict=True)]


def _deciding(comparisons: Sequence[Comparison]) -> tuple[list[Comparison], list[Comparison]]:
    """Of each part, the comparisons with the most trainings; and all others, which decide nothing."""
    most = {group[0].part: max(each.trainings for each in group) for group in grouped(comparisons, lambda c: c.part)}
    decide = [each.trainings > 0 and each.trainings == most[each.part] for each in comparisons]
    found = [[each for each, yes in zip(comparisons, decide, strict=True) if yes == wanted] for wanted in (True, False)]
    return found[0], found[1]


def _rule_text(
    status: Status, lead: Comparison, ends: tuple[float, float], alone: Sequence[tuple[float, float]], together: int
) -> str:
    """Which rule decided, where several comparisons make a difference."""
    if together == 1:
        return ""
    if status == Status.CONTRADICTED:
        shown = with_interval(lead.difference.value, *ends, form="+.3f")
        return f"; corrected for {together} comparisons (Bonferroni), {lead.what}: {shown}"
    below = sum(high < 0 for _, high in alone)
    if status == Status.NOT_RESOLVED and below:
        return f"; {below} of {together} below zero at 95 %, none after correction for all of them (Bonferroni)"
    return f"; each of {together} at 95 %"


def _verdict(
    status: Status, text: str, lead: Comparison, ends: tuple[float | None, float | None], used: Sequence[Comparison]
) -> Verdict:
    low, high = (end if end is not None and math.isfinite(end) else None for end in ends)
    measurements = [m for each in used for m in each.used]
    networks = frozenset(Network.of(m) for m in measurements)
    found = lead.difference
    return Verdict(status, text, found.value, low, high, found.n, scale_of(measurements), networks=networks)


def _one_run_text(each: Comparison) -> str:
    return f"{each.what}: {each.difference.value:+.3f} ({'one run of one' if each.trainings else 'one run each'})"


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
