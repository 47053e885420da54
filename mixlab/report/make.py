"""A report from the places of runs, costs measured where they are missing."""

from pathlib import Path

from mixlab.console import console
from mixlab.report import find_runs, write_report
from mixlab.run import RunDirectory


def make_report(runs: list[Path], out: Path, *, measure: bool = True) -> Path:
    """The page of these runs and of the runs below them."""
    found = find_runs([RunDirectory.open(run).path for run in runs])
    if measure:
        for run in found:
            _measure(run.path)
    return write_report(found, out)


def _measure(run: Path) -> None:
    if run.name == "untrained" or not (run / "weights.safetensors").is_file():
        return
    if (run / "config.json").is_file() and not (run / "results" / "cost.json").is_file():
        from mixlab.studies.demo.jobs import write_costs

        console.print(f"measuring {run}", highlight=False)
        write_costs(run)
