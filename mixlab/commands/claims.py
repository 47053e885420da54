"""`mixlab claims`: the ledger of both papers' claims against what was measured."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from mixlab.commands.answer import WideAnswer
from mixlab.commands.options import Flat
from mixlab.commands.output import progress_bar
from mixlab.run import RunDirectory, provenance
from mixlab.statistics import with_interval

if TYPE_CHECKING:
    from mixlab.analysis.claims import Entry
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
    training.

    Args:
        runs: run directories, folders of runs, or archives of runs (.tar.xz); without any, only claims that mathematics
            or counting can decide get a verdict.
        run: also store the ledger (all verdicts) in this run directory, as results/claims.json.
    """
    from mixlab.analysis.claims import CLAIMS, Evidence, draw_up
    from mixlab.analysis.comparisons import training_gains

    answer.check()
    evidence = Evidence.from_runs(runs)
    entries: list[Entry] = []
    with progress_bar("claims", len(CLAIMS)) as step:
        for entry in draw_up(evidence):
            entries.append(entry)
            step()
    gains = training_gains(evidence.measurements)
    _print(answer, entries, len(evidence.measurements), evidence.num_runs)
    _print_gains(answer, gains)
    result = {
        "kind": "claims",
        "runs": [str(path) for path in runs],
        "num_measurements": len(evidence.measurements),
        "claims": [entry.to_json() for entry in entries],
        "gains": [gain.to_json() for gain in gains],
        "provenance": provenance(),
    }
    if run is not None:
        RunDirectory.create(run).write_result("claims", result)
    return answer.emit(result)


def _print(answer: WideAnswer, entries: list[Entry], num_measurements: int, num_runs: int) -> None:
    title = f"Claims of the papers against {num_measurements} measurements of {num_runs} run{'s' * (num_runs != 1)}"
    columns = ("claim", "verdict", "statement", "measured here", "paper", "place", "kind", "scale", "note")
    rows = []
    for entry in entries:
        claim, verdict = entry.claim, entry.verdict
        about = (claim.paper, claim.place, claim.kind, verdict.scale, claim.note)
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
