"""`mixlab claims`: the ledger of both papers' claims against what was measured."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from mixlab.commands.answer import WideAnswer
from mixlab.commands.options import Flat
from mixlab.commands.output import progress_bar
from mixlab.errors import counted
from mixlab.run import RunDirectory, provenance
from mixlab.statistics import with_interval

if TYPE_CHECKING:
    from mixlab.analysis.claims import Entry, Evidence, Status
    from mixlab.analysis.comparisons import Gain


def claims(
    runs: Annotated[list[Path], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")],
    answer: Flat[WideAnswer] = WideAnswer(),
    *,
    run: Path | None = None,
) -> dict[str, Any]:
    """Compare each claim of the papers with computations and with the results of runs.

    Runs called NAME-s0, NAME-s1, ... count as seeds of one network. Networks are compared only under the same protocol.
    A claim is supported if all its comparisons are significantly positive at 95 %, and contradicted if one is
    significantly negative after correction for all of them (Bonferroni). One run against one run decides nothing about
    training. Of several folders or archives, the verdict of each alone is given beside that of all.

    Args:
        runs: run directories, folders of runs, or archives of runs (.tar.xz); without any, only claims that mathematics
            or counting can decide get a verdict.
        run: also store the ledger (all verdicts) in this run directory, as results/claims.json.
    """
    from mixlab.analysis.claims import CLAIMS, Evidence, draw_up, judged_alone
    from mixlab.analysis.comparisons import training_gains

    answer.check()
    parts = {path: Evidence.from_runs([path]) for path in runs}
    measurements = (m for part in parts.values() for m in part.measurements)
    evidence = Evidence(measurements, num_runs=sum(part.num_runs for part in parts.values()))
    studies = {_name(path): part for path, part in parts.items() if part.num_runs > 1}
    entries: list[Entry] = []
    with progress_bar("claims", len(CLAIMS)) as step:
        for entry in draw_up(evidence):
            entries.append(entry)
            step()
    alone = judged_alone(studies) if len(studies) > 1 else {}
    gains = training_gains(evidence.measurements)
    _print(answer, entries, evidence, alone)
    _print_gains(answer, gains)
    result = {
        "kind": "claims",
        "runs": [str(path) for path in runs],
        "num_measurements": len(evidence.measurements),
        "claims": [entry.to_json() | {"alone": _differing(entry, alone)} for entry in entries],
        "gains": [gain.to_json() for gain in gains],
        "provenance": provenance(),
    }
    if run is not None:
        RunDirectory.create(run).write_result("claims", result)
    return answer.emit(result)


def _name(place: Path) -> str:
    """Of a folder or an archive of runs: that of a published study is called runs.tar.xz, in a folder of its name."""
    return place.resolve().parent.name if place.is_file() else place.resolve().name


def _differing(entry: Entry, alone: dict[int | str, dict[str, Status]]) -> dict[str, Status]:
    """The verdicts of single studies on a claim, where one of them differs from that of all."""
    own = alone.get(entry.claim.number, {})
    return own if any(status != entry.verdict.status for status in own.values()) else {}


def _print(
    answer: WideAnswer, entries: list[Entry], evidence: Evidence, alone: dict[int | str, dict[str, Status]]
) -> None:
    measured = counted(evidence.measurements, "measurement", "measurements")
    runs = counted(evidence.num_runs, "run", "runs")
    title = f"Claims of the papers against {measured} of {runs}"
    columns = ("claim", "verdict", "statement", "measured here", "paper", "place", "kind", "scale", "note", "alone")
    rows = []
    for entry in entries:
        claim, verdict = entry.claim, entry.verdict
        own = ", ".join(f"{name}: {status}" for name, status in _differing(entry, alone).items())
        about = (claim.paper, claim.place, claim.kind, verdict.scale, claim.note, own)
        rows.append((claim.number, str(verdict.status), claim.statement, verdict.measured, *map(str, about)))
    answer.table(title, columns, rows, more=columns[4:])
    counts = Counter(str(entry.verdict.status) for entry in entries)
    answer.line(", ".join(f"{number} {status}" for status, number in counts.most_common()))


def _print_gains(answer: WideAnswer, gains: list[Gain]) -> None:
    rows = []
    for gain in gains:
        gap = gain.difference
        shown = with_interval(gap.value, gap.low, gap.high, form="+.3f")
        rows.append([gain.network.name or gain.network.model, gain.metric, shown, gap.significance])
    if rows:
        answer.line("")
        answer.table("Trained minus untrained, 95 %", ("network", "metric", "difference", "significance"), rows)
