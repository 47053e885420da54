"""`mixlab claims`: the ledger of both papers' claims against what was measured."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.markup import escape
from rich.table import Table

from mixlab.analysis.claims import CLAIMS, Entry, Evidence, Status, draw_up
from mixlab.analysis.comparisons import Gain, training_gains
from mixlab.commands.options import Json
from mixlab.commands.output import console, emit, progress_bar, table
from mixlab.run import RunDirectory, provenance

COLOURS = {
    Status.SUPPORTED: "green",
    Status.IN_PART: "green",
    Status.CONTRADICTED: "red",
    Status.NOT_RESOLVED: "yellow",
    Status.NOT_MEASURED: "dim",
}


def claims(
    runs: Annotated[list[Path], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")],
    *,
    run: Path | None = None,
    json: Json = None,
) -> dict[str, Any]:
    """Compare each claim of the papers with computations and with the results of runs.

    Runs called NAME-s0, NAME-s1, ... count as seeds of one network. Networks are compared only by measurements of one
    protocol. A claim is supported if each of its comparisons is significantly positive at 95 %, contradicted if one is
    significantly negative after correction for all of them. One run against one run decides nothing about training.

    Args:
        runs: run directories, or archives of runs (.tar.xz), of which all runs are read; default: none, which leaves
            only the claims that mathematics or counting decides.
        run: also store the ledger in this run directory, as results/claims.json.
    """
    evidence = Evidence.from_runs(runs)
    entries: list[Entry] = []
    with progress_bar("claims", len(CLAIMS)) as step:
        for entry in draw_up(evidence):
            entries.append(entry)
            step()
    gains = training_gains(evidence.measurements)
    _print(entries, len(evidence.measurements), evidence.num_runs)
    _print_gains(gains)
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
    return emit(result, json)


def _print(entries: list[Entry], num_measurements: int, num_runs: int) -> None:
    title = f"Claims of the papers against {num_measurements} measurements of {num_runs} runs"
    view = Table(title=title, title_justify="left", header_style="bold", show_lines=True)
    for column in ("#", "claim", "verdict", "measured here"):
        view.add_column(column)
    for entry in entries:
        claim, verdict = entry.claim, entry.verdict
        scale = f"\n[dim]{escape(verdict.scale)}[/dim]" if verdict.scale else ""
        place = f"[dim]{claim.paper}, {claim.place}; {claim.kind}[/dim]"
        note = f"\n[dim]{escape(claim.note)}[/dim]" if claim.note else ""
        status = f"[{COLOURS[verdict.status]}]{verdict.status}[/]"
        view.add_row(str(claim.number), f"{claim.statement}\n{place}{note}", status, escape(verdict.measured) + scale)
    console.print(view, markup=True)
    counts = Counter(entry.verdict.status for entry in entries)
    console.print(", ".join(f"{counts[status]} {status}" for status in COLOURS if counts[status]))


def _print_gains(gains: list[Gain]) -> None:
    rows = []
    for gain in gains:
        gap = gain.difference
        interval = "" if gap.low is None else f" [{gap.low:+.3f}, {gap.high:+.3f}]"
        rows.append(
            [gain.network.name or gain.network.model, gain.metric, f"{gap.value:+.3f}{interval}", gap.significance]
        )
    if rows:
        table("Trained minus untrained, 95 %", ("network", "metric", "difference", ""), rows)
