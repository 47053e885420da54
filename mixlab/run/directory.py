"""The file format that every command shares: a run directory, readable with nothing but a text editor.

config.json      everything needed to repeat the run, and what it ran on
metrics.jsonl    one line per logged step
checkpoints/     training state, from which a run resumes
weights.safetensors   the exported backbone, once there is one
results/         NAME.json beside NAME.npz for arrays (of images in several shapes, see `arrays.py`)
figures/         pictures made from the results
"""

import fcntl
import json
import os
import re
import shutil
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mixlab.errors import InputError, check_kind, short
from mixlab.plugins import missing_plugins
from mixlab.run.disk import naming_file
from mixlab.run.earlier_weights import Result, Weights, find_earlier_weights, weights_of
from mixlab.run.files import check_regular, read_json, write_atomically, write_json
from mixlab.run.measurement import Measurement, measurements_of_older, once
from mixlab.run.protocols import METRICS

AGAIN = "remove it, and run the command that wrote it again"
KEPT_FOLDERS, KEPT_FILES = {"checkpoints", "results"}, {"config.json", "metrics.jsonl"}
_CONFIG_FORM: dict[str, tuple[Any, str]] = {  # of config.json: a field after the one that holds it
    **dict.fromkeys(("settings", "settings.method", "settings.model", "settings.model.fields"), (dict, "an object")),
    **dict.fromkeys(("starts_from", "architecture"), (dict, "an object")),
    **dict.fromkeys(("settings.method.kind", "data", "recipe"), (str | None, "text")),
    "classes": (list, "a list"),
}
MOST_LINES = 60  # of a training curve that is published, about
NOT_RUNS = ("checkpoints", "results", "figures", "features", "tensorboard", "logs", "steps", "tuning", "data", "labels")


class RunDirectory:
    """Reads and writes one run. Files are written under a temporary name and renamed, so readers see whole files."""

    def __init__(self, path: str | Path) -> None:
        check_kind(path, str | os.PathLike, "give the path of a run directory")
        self.path = Path(path)

    @classmethod
    def create(cls, path: str | Path) -> "RunDirectory":
        """Create the directory, or reuse an existing one."""
        run = cls(path)
        if run.path.exists() and not run.path.is_dir():
            raise NotADirectoryError(f"{run.path} is a file; a run needs a directory of its own")
        run.path.mkdir(parents=True, exist_ok=True)
        return run

    @classmethod
    def open(cls, path: str | Path) -> "RunDirectory":
        run = cls(path)
        if not run.exists():
            raise FileNotFoundError(
                f"{run.path} is not a run directory: it has neither config.json nor results/; name a folder that "
                "`pretrain`, `maps` or another command has written, such as runs/look"
            )
        return run

    @contextmanager
    def kept_if_used(self, *, notes: Collection[str] = ()) -> Iterator[None]:
        """Around work that may be refused: a directory that it creates is removed again if it stays empty. Locks, which
        nobody holds any more, empty folders, and files with the names of `notes` do not count."""
        is_new = not self.path.exists()
        try:
            yield
        finally:
            below = list(self.path.rglob("*")) if is_new else []
            if is_new and all(file.is_dir() or file.name in (".lock", *notes) for file in below):
                shutil.rmtree(self.path, ignore_errors=True)

    def exists(self) -> bool:
        return (self.path / "config.json").is_file() or (self.path / "results").is_dir()

    def write_config(self, config: dict[str, Any]) -> None:
        write_json(self.path / "config.json", config)

    def read_config(self) -> dict[str, Any]:
        try:
            return read_config_file(self.path / "config.json")
        except InputError as error:
            has_copy = any((self.path / "checkpoints").glob("step-*.json"))
            way_out = "remove it, and resume: the newest checkpoint has a copy" if has_copy else "restore it"
            raise InputError(f"{error}; {way_out}, or start again in another directory") from error

    def read_config_if_any(self) -> dict[str, Any]:
        """{} where there is none."""
        return self.read_config() if (self.path / "config.json").is_file() else {}

    def append_metrics(self, row: dict[str, Any]) -> None:
        place, line = self.path / "metrics.jsonl", (json.dumps(row) + "\n").encode()
        with naming_file(place, len(line)), place.open("ab") as file:
            file.write(line)

    def read_metrics(self) -> Iterator[dict[str, Any]]:
        """The numbers of every line that has a step; lines that are cut short or damaged are left out."""
        file = self.path / "metrics.jsonl"
        for line in file.read_bytes().split(b"\n") if file.is_file() else ():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict) and type(row.get("step")) is int:
                yield {name: value for name, value in row.items() if type(value) in (int, float)}

    def thinned_metrics(self) -> list[dict[str, Any]]:
        """About MOST_LINES lines of metrics, evenly spaced, with the last one and every line of scores."""
        rows = list(self.read_metrics())
        apart, last = max(1, len(rows) // MOST_LINES), len(rows) - 1
        return [row for at, row in enumerate(rows) if at % apart == 0 or at == last or "loss" not in row]

    def write_result(
        self,
        name: str,
        result: dict[str, Any],
        arrays: dict[str, npt.NDArray[Any]] | None = None,
        *,
        one_line: bool = False,
    ) -> Path:
        """Write results/NAME.json, and results/NAME.npz if there are arrays. Returns the path of the JSON."""
        folder = self.path / "results"
        folder.mkdir(parents=True, exist_ok=True)
        if arrays:
            write_atomically(folder / f"{name}.npz", lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]
        write_json(folder / f"{name}.json", result, one_line=one_line)
        return folder / f"{name}.json"

    def write(self, name: str, result: dict[str, Any], arrays: dict[str, npt.NDArray[Any]] | None = None) -> str:
        """Write a result beside all others; only the same measurements, made again, are replaced. Returns its name.

        Results without measurements are the same if `kind`, `subject`, `subjects` and `protocol` are.
        """
        with self.named(name, result) as chosen:
            self.write_result(chosen, result, arrays)
        return chosen

    @contextmanager
    def named(self, name: str, result: dict[str, Any]) -> Iterator[str]:
        """The name that `write` gives a result: NAME, NAME_2, ... No other process takes it until the context ends."""
        folder = self.path / "results"
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            names = chain((name,), (f"{name}_{number}" for number in count(2)))
            identity = identity_of(result)
            yield next(each for each in names if self._is_free(each, identity))
        finally:
            os.close(handle)

    def _is_free(self, name: str, identity: object) -> bool:
        """Whether writing under this name would replace nothing but the same result, or an unreadable file."""
        if not self.file_of(name).is_file():
            return True
        try:
            return identity_of(read_json(self.file_of(name))) == identity
        except ValueError:
            return True

    def file_of(self, name: str) -> Path:
        """The path of the result of that name."""
        return self.path / "results" / f"{name}.json"

    def results(self) -> dict[str, dict[str, Any]]:
        """All results by name; their measurements are lists of records."""
        return {name: result for name, result, _ in self.read_results()}

    def measurements(self) -> list[Measurement]:
        """All measurements of all results, each once, without those of weights that a network had earlier."""
        results = [(content, found) for _, content, found in self.read_results()]
        earlier = self.earlier_weights(results)
        return once(m for _, found in results for m in found if weights_of(m) not in earlier)

    def earlier_weights(self, results: Iterable[Result]) -> set[Weights]:
        """The weights that a network had before its training went on, among those that its results are of."""
        return find_earlier_weights(results, lambda: method_of(self.read_config_if_any()))

    def read_results(self) -> Iterator[tuple[str, dict[str, Any], list[Measurement]]]:
        """Name, content and measurements of every result."""
        for file in sorted((self.path / "results").glob("*.json")):
            try:
                result = read_json(file)
            except ValueError as error:
                raise InputError(f"{error}; {AGAIN}") from error
            yield file.stem, result, measurements_of(result, file)

    def arrays(self, name: str) -> dict[str, npt.NDArray[Any]]:
        file = self.path / "results" / f"{name}.npz"
        try:
            check_regular(file)
            with np.load(file, allow_pickle=False) as stored:
                return dict(stored)
        except Exception as error:  # as many kinds as zip files and headers can be damaged in
            raise InputError(f"{file} cannot be read ({error}); {AGAIN}") from error

    def figure_path(self, name: str) -> Path:
        """The path for a figure of that file name."""
        folder = self.path / "figures"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / name


def find_runs(places: Iterable[Path]) -> list[RunDirectory]:
    """The run directories at these places and up to two levels below them, each once."""
    found: dict[Path, RunDirectory] = {}
    for place in places:
        for run in _runs_below(place, 2):
            found.setdefault(run.path.resolve(), run)
    return list(found.values())


def _runs_below(place: Path, depth: int) -> Iterator[RunDirectory]:
    run = RunDirectory(place)
    if run.exists():
        yield run
    if depth:
        for child in sorted(place.iterdir()):
            if child.is_dir() and not child.is_symlink() and child.name not in NOT_RUNS:
                yield from _runs_below(child, depth - 1)


def run_around(file: Path) -> Path | None:
    """The run that a file lies in."""
    return next((folder for folder in file.resolve().parents if RunDirectory(folder).exists()), None)


def is_kept(file: Path, run: Path) -> bool:
    """Whether a file in a run is its record, and not one that somebody put beside it."""
    place = file.resolve()
    return place.name in KEPT_FILES or bool(KEPT_FOLDERS.intersection(place.relative_to(run).parts))


def measurements_of(result: dict[str, Any], origin: str | Path) -> list[Measurement]:
    """The measurements of a result, none where it has none; the origin is named where one is wrong.

    What a plugin measured cannot be read without the plugin: a warning names it.
    """
    records = result.get("measurements", [])
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise InputError(f"{origin}: measurements must be a list of records, got {str(records)[:40]}; {AGAIN}")
    found: list[Measurement] = []
    known = [record for record in records if str(record.get("metric")) in METRICS]
    if len(known) < len(records) and (missing := missing_plugins(result.get("plugins"))):
        warnings.warn(f"{origin} {missing}; its measurements are left out", stacklevel=2)
        records = known
    for record in records:
        try:
            found += [Measurement.from_json(record)] if "protocol" in record else measurements_of_older(record, result)
        except (InputError, TypeError, OverflowError) as error:
            raise InputError(f"{origin}: {error}; {AGAIN}") from error
    return found


def file_name(label: str) -> str:
    """A label as part of a file name, or as the key of an array."""
    return re.sub(r"[^\w.-]+", "_", label)


def identity_of(result: dict[str, Any]) -> Any:
    """The identity of a result: its measurements, or else its subjects and its protocol."""
    if found := measurements_of(result, "this result"):
        return sorted({measurement.identity for measurement in found})
    return [result.get(key) for key in ("kind", "subject", "subjects", "protocol")]


def read_config_file(file: Path) -> dict[str, Any]:
    """A config.json whose fields are of the kinds that others read; any of them may be missing."""
    content = read_json(file)
    for path, (kind, words) in _CONFIG_FORM.items():
        *above, name = path.split(".")
        part: Any = content
        for outer in above:
            part = part.get(outer, {})
        if name in part and not isinstance(part[name], kind):
            raise InputError(f"{file} has {path} {short(part[name], 40)}, not {words}")
    return content


def method_of(config: Mapping[str, Any]) -> str | None:
    """The kind of the method that trained a run, by its config.json; None where it was no training."""
    kind: str | None = config.get("settings", {}).get("method", {}).get("kind")
    return kind
