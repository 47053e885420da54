"""`mixlab claims`: the ledger of both papers' claims against what was measured."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.markup import escape
from rich.table import Table

from mixlab.analysis.claims import CLAIMS, Entry, draw_up
from mixlab.analysis.evidence import Evidence, Status
from mixlab.commands.output import console, emit, progress_bar
from mixlab.run import RunDirectory, find_runs, provenance, unpacked

COLOURS: dict[Status, str] = {
    "supported": "green",
    "supported in part": "green",
    "contradicted": "red",
    "not resolved at this scale": "yellow",
    "not measured": "dim",
}


def claims(
    runs: Annotated[list[Path], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")],
    *,
    run: Path | None = None,
    json: str | None = None,
) -> dict[str, Any]:
    """Hold each claim of the papers against computation and against the results of runs.

    Args:
        runs: run directories whose results to read, or archives of runs (.tar.xz), which are read whole; without any,
            only claims that mathematics or counting settles.
        run: also store the ledger in this run directory, as results/claims.json.
        json: also write the ledger as JSON to this file, or to stdout for "-".
    """
    evidence = read_evidence(runs)
    entries: list[Entry] = []
    with progress_bar("claims", len(CLAIMS)) as step:
        for entry in draw_up(evidence):
            entries.append(entry)
            step()
    _print(entries, len(evidence.measurements), len(runs))
    result = {
        "kind": "claims",
        "runs": [str(path) for path in runs],
        "num_measurements": len(evidence.measurements),
        "claims": [entry.as_json() for entry in entries],
        "provenance": provenance(),
    }
    if run is not None:
        RunDirectory.create(run).write_result("claims", result)
    return emit(result, json)


def read_evidence(runs: list[Path]) -> Evidence:
    """All measurements in the result files of the runs."""
    found = []
    for path in runs:
        with unpacked(path) as folder:
            directory = RunDirectory.open(folder)
            for each in [directory] if folder == path else find_runs([folder]):
                found += [(str(each.file_of(name)), result) for name, result in each.results().items()]
    return Evidence.from_results(found)


def _print(entries: list[Entry], num_measurements: int, num_runs: int) -> None:
    title = f"Claims of the papers against {num_measurements} measurements of {num_runs} runs"
    view = Table(title=title, title_justify="left", header_style="bold", show_lines=True)
    for column in ("#", "claim", "verdict", "measured here"):
        view.add_column(column)
    for entry in entries:
        claim, verdict = entry.claim, entry.verdict
        scale = f"\n[dim]{escape(verdict.scale)}[/dim]" if verdict.scale else ""
        colour = COLOURS[verdict.status]
        place = f"[dim]{claim.paper}, {claim.place}; {claim.kind}[/dim]"
        view.add_row(
            str(claim.number),
            f"{claim.statement}\n{place}",
            f"[{colour}]{verdict.status}[/{colour}]",
            escape(verdict.measured) + scale,
        )
    console.print(view, markup=True)
    counts = Counter(entry.verdict.status for entry in entries)
    console.print(", ".join(f"{counts[status]} {status}" for status in COLOURS if counts[status]), highlight=False)
