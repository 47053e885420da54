"""A study without its weights and photographs: the JSON from which its report is made again, small enough for git."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixlab.commands.miniature.parts import finished_runs
from mixlab.commands.output import console
from mixlab.commands.report import make_report
from mixlab.run import RunDirectory

MOST_ROWS = 60  # of a training curve
FILES_NAMED = ("skipped", "unreadable", "unmatched", "images")  # lists of file names, kept as numbers
OTHER_PLACES = re.compile(r"(?:^|(?<=[\s'\"=]))/(?:[^\s/'\"]+/)+")  # folders above a file of any other absolute path
Arrays = dict[str, NDArray[Any]]


def publish_study(run: Path, out: Path) -> Path:
    """Copy config.json, thinned metrics.jsonl and results/*.json of a study and its runs to OUT, with a report
    and its tables as README.md.
    """
    directory = RunDirectory.open(run)
    config = directory.read_config()
    if "study" not in config:
        raise ValueError(f"{run} is no study: its config.json names none; give the --run of `mixlab study`")
    if out.resolve() == run.resolve() or run.resolve() in out.resolve().parents:
        raise ValueError(f"--publish {out} lies in the study itself; give another folder")
    if out.exists() and not (out / "config.json").is_file() and any(out.iterdir()):
        raise ValueError(f"--publish {out} holds something else; give a new folder, or one that was published before")
    shutil.rmtree(out, ignore_errors=True)
    names = _short_names(run, config)
    for place in finished_runs(run):
        _copy(RunDirectory(place), RunDirectory.create(out / place.relative_to(run)), names)
    page = make_report([out], out / "report.html", measure=False)
    make_report([out], out / "README.md", measure=False)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    console.print(f"published in {out}: {size / 1e6:.1f} MB", highlight=False)
    return page


def _short_names(run: Path, config: dict[str, Any]) -> list[tuple[str, str]]:
    """Places on this machine and what they are called elsewhere, the longest first."""
    found: dict[str, str] = {}
    for text, name in ((config["data"], None), (config["masks"], None), (str(run), config["study"])):
        for place in (text, str(Path(text).resolve())):
            found[place] = name or Path(text).name
    found[str(Path.home())] = "~"
    return sorted(((place, name) for place, name in found.items() if len(place) > 1), key=lambda pair: -len(pair[0]))


def _copy(source: RunDirectory, target: RunDirectory, names: list[tuple[str, str]]) -> None:
    if (source.path / "config.json").is_file():
        target.write_config(_cleaned(source.read_config(), names))
    rows = list(source.read_metrics())
    for row in rows[:: max(1, len(rows) // MOST_ROWS)]:
        target.append_metrics(_cleaned(row, names))
    for name, result in source.results().items():
        cleaned = _cleaned(result, names)
        arrays: Arrays = {}
        if result.get("kind") == "maps":
            if str(result["data"]).startswith("shapes"):  # drawn by us; photographs are not ours to show
                target.write_result(name, cleaned | {"images": result["images"]}, source.arrays(name), one_line=True)
            continue
        if (source.path / "results" / f"{name}.npz").is_file():
            arrays, more = _published_arrays(result, source.arrays(name))
            cleaned |= more
        target.write_result(name, cleaned, arrays, one_line=True)


def _published_arrays(result: dict[str, Any], stored: Arrays) -> tuple[Arrays, dict[str, Any]]:
    """What the report's figures need, small; and scores of single images, so that intervals can be computed again."""
    if result.get("kind") == "auc" and result.get("study") == "model":
        scores = {label: [_digits(value, 4) for value in raw[:, -1].mean(-1).tolist()] for label, raw in stored.items()}
        return {}, {"raw_auc_by_image": scores}
    if result.get("kind") == "rank":
        kept: Arrays = {}
        for name in ("off_diagonal_spectrum", "grid_profile"):
            rows = stored[name].reshape(-1, stored[name].shape[-1])
            live = rows[rows.max(-1) > 0] if name == "off_diagonal_spectrum" else rows
            if len(live):
                kept[name] = live.mean(0, keepdims=True)
        return kept, {}
    return {}, {}


def _cleaned(value: Any, names: list[tuple[str, str]]) -> Any:
    """Without places on this machine, names of photographs, and digits that mean nothing."""
    if isinstance(value, dict):
        return {
            key: len(part) if key in FILES_NAMED and isinstance(part, list | dict) else _cleaned(part, names)
            for key, part in value.items()
        }
    if isinstance(value, list):
        return [_cleaned(part, names) for part in value]
    if isinstance(value, str):
        for place, name in names:
            value = value.replace(place, name)
        return OTHER_PLACES.sub("", value)
    return _six_digits(value) if isinstance(value, float) else value


def _six_digits(value: float) -> float:
    return float(f"{value:.6g}")


def _digits(value: float, digits: int) -> float | None:
    return None if np.isnan(value) else round(value, digits)
