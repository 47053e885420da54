"""`mixlab report`: run directories as one page."""

import os
from pathlib import Path
from typing import Annotated, Any

import tyro

from mixlab.commands.answer import Answer
from mixlab.commands.options import Flat
from mixlab.commands.output import warn
from mixlab.console import console
from mixlab.errors import InputError, WorkError
from mixlab.run import UNTRAINED, find_runs, provenance
from mixlab.run.archive import PUBLISHED_RUNS
from mixlab.run.disk import in_units


def report(
    runs: Annotated[list[Path], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")],
    answer: Flat[Answer] = Answer(),
    *,
    out: Path = Path("report.html"),
    title: str | None = None,
    measure: bool = True,
    force: bool = False,
) -> dict[str, Any]:
    """Write one self-contained page about runs: figures, tables, verdicts on the papers' claims, and every result file.

    Args:
        runs: run directories, folders of runs, or archives of runs (.tar.xz); runs in sub-folders are included.
        out: the file to write: an .html page, or .md for the tables only.
        title: the heading of the page; default: the mixers that it compares.
        measure: count parameters and measure the speed of runs that have no results/cost.json yet.
        force: replace --out even if mixlab did not write it, or it was edited since.
    """
    from mixlab.report import check_page, write_report

    answer.check()
    if not runs:
        raise InputError("no run given; name the directory of a run, such as demo")
    if out.suffix not in (".html", ".md"):
        raise InputError(f"--out {out} is neither .html nor .md; end its name in one of them")
    if title is not None and out.suffix == ".md":
        raise InputError(f"--title has no effect on {out}: the tables alone have no heading of their own; leave it out")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"the folder {out.parent} of --out does not exist; create it, or change --out")
    if not force:
        check_page(out)
    runs = _with_results(runs)
    if measure:
        measure_costs(runs)
    page = write_report(runs, out, title=title, force=force)
    size = page.stat().st_size
    answer.line(f"{page}, {in_units(size)}{': open it in any browser' if out.suffix == '.html' else ''}")
    return answer.emit({"page": str(page), "bytes": size, "runs": [str(run) for run in runs]})


def _with_results(places: list[Path]) -> list[Path]:
    """Of several places, folders without a run, such as one whose first command was killed, are named and left out."""
    folders = (place for place in places if place.is_dir() and not (place / PUBLISHED_RUNS).is_file())
    without = [folder for folder in folders if not find_runs([folder])]
    if len(without) == len(places):
        return places  # of which `write_report` says what is missing
    for place in without:
        warn(f"{place} is left out: it has neither config.json nor results/")
    return [place for place in places if place not in without]


def measure_costs(places: list[Path]) -> None:
    """Size and speed of the exported backbones that have no results/cost.json yet; those that cannot be read, or stored
    in their runs, are named."""
    from mixlab.analysis.cost import measure_cost
    from mixlab.evaluation.target import load_target

    without = "is reported without its size and speed"
    for run in find_runs(place for place in places if place.is_dir()):
        is_whole = (run.path / "weights.safetensors").is_file() and (run.path / "config.json").is_file()
        if not is_whole or run.path.name == UNTRAINED or run.file_of("cost").is_file():
            continue
        folder = run.path / "results"
        if not os.access(folder if folder.is_dir() else run.path, os.W_OK):
            warn(f"{run.path} {without}: it cannot be written to, so they are not measured")
            continue
        console.print(f"measuring {run.path}")
        try:
            result = measure_cost(load_target(str(run.path), device="cpu"))
            run.write_result("cost", result | {"provenance": provenance(device="cpu")})
        except (
            InputError,
            WorkError,
            OSError,
        ) as error:  # such as of a plugin that is not loaded, or a full disk
            warn(f"{run.path} {without}: {error}")
