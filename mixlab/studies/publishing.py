"""Publishes a study without weights and photographs: the JSON from which its report can be made again."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixlab.console import console
from mixlab.data.photographs import photograph_place
from mixlab.data.source_names import is_drawn
from mixlab.errors import InputError, few
from mixlab.report import write_report
from mixlab.report.forms import check_form
from mixlab.run import RunDirectory, write_archive
from mixlab.run.archive import PUBLISHED_RUNS
from mixlab.run.aside import folder_aside
from mixlab.run.directory import AGAIN
from mixlab.studies.manifest import Manifest
from mixlab.studies.plan import finished_runs
from mixlab.studies.steps import rename_folder

PAGES = ("report.html", "README.md")
FILES_NAMED = ("skipped", "unreadable", "unmatched", "unpaired", "images")  # lists of file names, kept as numbers
OTHER_PLACES = re.compile(r"(?:^|(?<=[\s'\"=]))/(?:[^\s/'\"]+/)+")  # folders above a file of any other absolute path
Arrays = dict[str, NDArray[Any]]


def publish_study(run: Path, out: Path) -> Path:
    """Pack config.json, thinned metrics.jsonl and results/*.json of a study and its runs into OUT/runs.tar.xz, with a
    report and its tables as README.md beside it. Whatever else is in OUT stays, and is named.
    """
    directory = RunDirectory.open(run)
    config = directory.read_config()
    if "study" not in config:
        raise InputError(f"{run} is not a study (see its config.json); give the --run of `mixlab study`")
    for name in ("study", "data", "masks"):
        if not isinstance(config.get(name), str):
            raise InputError(f"{run / 'config.json'} has {name} {config.get(name)!r}, not text; correct it")
    places = finished_runs(run)
    if run not in places:
        raise InputError(f"{run} has no results yet; finish a part of the study first")
    place = out.resolve()
    check_place(run, out)
    names = _short_names(run, config)
    place.parent.mkdir(parents=True, exist_ok=True)
    with folder_aside(place / PUBLISHED_RUNS if place.is_mount() else place) as aside:  # files move within one disk
        runs, made = aside / "runs" / place.name, aside / "made"
        made.mkdir()
        for one in places:
            _copy(RunDirectory(one), RunDirectory.create(runs / one.relative_to(run)), names)
        for page in PAGES:
            write_report([runs], made / page)
        write_archive(runs, made / PUBLISHED_RUNS)
        manifest = Manifest(place)
        manifest.replace_by(made)
    size = sum((place / name).stat().st_size for name in manifest.files)
    console.print(f"published in {out}: {size / 1e6:.1f} MB")
    if others := manifest.foreign():
        console.print(f"not written by mixlab, left as it is: {few(others)}")
    return out / "report.html"


def check_place(run: Path, out: Path) -> None:
    """Refuse before the work what would be refused after it."""
    place, study = out.resolve(), run.resolve()
    if place.is_relative_to(study) or study.is_relative_to(place):
        raise InputError(f"--publish {out} is, contains or lies in the study itself; give another folder")
    if place.exists() and not place.is_dir():
        raise NotADirectoryError(f"--publish {out} is a file; give a folder")
    there = next(folder for folder in (place, *place.parents) if folder.exists())
    if not os.access(there, os.W_OK):
        raise InputError(f"--publish {out}: {there} is not writable; give another folder, or change its permissions")
    Manifest(place).check_free((*PAGES, PUBLISHED_RUNS))


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
        target.write_config(cleaned(source.read_config(), names))
    for row in source.thinned_metrics():
        target.append_metrics(cleaned(row, names))
    for name, result in source.results().items():
        check_form(result, str(result.get("kind", name)), str(source.file_of(name)))
        kept = cleaned(result, names)
        arrays: Arrays = {}
        if result.get("kind") == "maps":
            if is_drawn(str(result["data"])) or photograph_place(str(result["data"])):  # others are not ours to show
                target.write_result(name, kept | {"images": result["images"]}, source.arrays(name), one_line=True)
            continue
        if (source.path / "results" / f"{name}.npz").is_file():
            try:
                arrays, more = _published_arrays(result, source.arrays(name))
            except (ValueError, IndexError, TypeError) as error:  # of another shape than its result says
                file = source.file_of(name).with_suffix(".npz")
                raise InputError(f"{file} does not fit {name}.json ({error}); {AGAIN}") from error
            kept |= more
        target.write_result(name, kept, arrays, one_line=True)


def _published_arrays(result: dict[str, Any], stored: Arrays) -> tuple[Arrays, dict[str, Any]]:
    """What the report's figures need, small; and scores of single images, so that intervals can be computed again."""
    if result.get("kind") == "auc" and result.get("study") == "model":
        scores = {
            label: [None if np.isnan(value) else round(value, 4) for value in raw[:, -1].mean(-1).tolist()]
            for label, raw in stored.items()
        }
        return {}, {"raw_auc_by_image": scores}
    if result.get("kind") == "rank":
        kept: Arrays = {}
        for name in (name for name in ("off_diagonal_spectrum", "grid_profile") if name in stored):
            rows = stored[name].reshape(-1, stored[name].shape[-1])
            live = rows[rows.max(-1) > 0] if name == "off_diagonal_spectrum" else rows
            if len(live):
                kept[name] = live.mean(0, keepdims=True)
        return kept, {}
    return {}, {}


def cleaned(value: Any, names: list[tuple[str, str]]) -> Any:
    """Without places on this machine, its kernel, names of photographs, and digits that mean nothing."""
    if isinstance(value, dict):
        return {
            key: len(part) if key in FILES_NAMED and isinstance(part, list | dict) else cleaned(part, names)
            for key, part in value.items()
            if key != "system" or "processor" not in value  # of a machine; elsewhere a system is a program
        }
    if isinstance(value, list):
        return [cleaned(part, names) for part in value]
    if isinstance(value, str):
        for place, name in names:
            value = rename_folder(value, place, name)
        return OTHER_PLACES.sub("", value)
    return float(f"{value:.6g}") if isinstance(value, float) else value
