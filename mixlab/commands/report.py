"""`mixlab report`: run directories as one page."""

from pathlib import Path
from typing import Annotated, Any

import tyro

from mixlab.commands.output import console, emit
from mixlab.errors import InputError
from mixlab.report.make import make_report


def report(
    runs: Annotated[list[Path], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")],
    *,
    out: Path = Path("report.html"),
    measure: bool = True,
    json: str | None = None,
) -> dict[str, Any]:
    """Write one self-contained page about runs: figures, tables, the ledger, and every record behind them.

    Args:
        runs: run directories; runs below a run belong to it.
        out: the page to write; as .md its tables alone.
        measure: count and time backbones of runs that do not say yet how large and fast they are (results/cost.json).
        json: also write a summary as JSON to this file, or to stdout for "-".
    """
    if not runs:
        raise InputError("no run given; name the directory of a run, such as demo")
    if out.suffix not in (".html", ".md"):
        raise InputError(f"--out {out} is neither .html nor .md; end its name in one of them")
    page = make_report(runs, out, measure=measure)
    size = page.stat().st_size
    console.print(f"{page}, {size / 1e6:.1f} MB: open it in any browser", highlight=False)
    return emit({"page": str(page), "bytes": size, "runs": [str(run) for run in runs]}, json)
