"""What a report is made from: every result file of some runs, each with a place on the page."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixlab.run import RunDirectory, find_runs
from mixlab.run.directory import flat_records

LONG = 60  # lists of objects longer than this are cut on the page; the file has them all


@dataclass(frozen=True)
class Record:
    """One result file; `file` is how the page names it."""

    run: RunDirectory
    name: str
    file: str
    content: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.content.get("kind", self.name))

    @property
    def anchor(self) -> str:
        return "record-" + re.sub(r"[^a-z0-9]+", "-", self.file.lower()).strip("-")

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays beside it; none where there is no such file."""
        return self.run.arrays(self.name) if (self.run.path / "results" / f"{self.name}.npz").is_file() else {}

    def shown(self) -> str:
        """The record as text, without the flat copies that the ledger reads, and with long lists cut."""
        content = {key: value for key, value in self.content.items() if key != "measurements"}
        return _text(_cut(content))


@dataclass(frozen=True)
class Curve:
    """The metrics of a training run."""

    label: str
    rows: list[dict[str, Any]]
    config: dict[str, Any]

    def points(self, name: str) -> tuple[list[float], list[float]]:
        known = [row for row in self.rows if isinstance(row.get(name), int | float)]
        return [float(row["step"]) for row in known], [float(row[name]) for row in known]


@dataclass(frozen=True)
class Findings:
    """All that the given runs hold."""

    runs: list[RunDirectory]
    records: list[Record]
    curves: list[Curve] = field(default_factory=list)

    def of(self, kind: str, **fields: Any) -> list[Record]:
        """Records of a kind whose fields have these values."""
        return [
            record
            for record in self.records
            if record.kind == kind and all(record.content.get(key) == value for key, value in fields.items())
        ]

    def measurements(self) -> Iterator[tuple[Record, dict[str, Any]]]:
        for record in self.records:
            for measurement in flat_records(record.content, record.file):
                yield record, measurement


def read_findings(places: Iterable[Path]) -> Findings:
    """Read every result and every training curve of the runs at these places and below them."""
    findings = Findings([], [])
    folders = [place.resolve() for place in places]
    named = dict(zip(folders, _distinct_names(folders), strict=True))
    for run in find_runs(named):
        top = next(folder for folder in named if run.path.is_relative_to(folder))
        shown = (named[top] / run.path.relative_to(top)).as_posix()
        findings.runs.append(run)
        for name, content in run.results().items():
            findings.records.append(Record(run, name, f"{shown}/results/{name}.json", content))
        rows = list(run.read_metrics())
        if rows:
            config = run.read_config() if (run.path / "config.json").is_file() else {}
            findings.curves.append(Curve(run.path.name, rows, config))
    return findings


def _distinct_names(folders: list[Path]) -> list[PurePath]:
    """The names of some folders, with as many of those above as tell them apart."""
    for count in range(1, max((len(folder.parts) for folder in folders), default=0) + 1):
        names = [PurePath(*folder.parts[-count:]) for folder in folders]
        if len(set(names)) == len(set(folders)):
            return names
    return [*folders]


def _cut(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _cut(part) for key, part in value.items()}
    if isinstance(value, list):
        kept = [_cut(part) for part in value[:LONG]]
        return kept if len(value) <= LONG else [*kept, f"... and {len(value) - LONG} more in the file"]
    if isinstance(value, float) and np.isfinite(value):
        return float(f"{value:.6g}")
    return value


def _text(value: Any, indent: int = 0) -> str:
    """JSON with short parts on one line."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) + indent <= 110 or not isinstance(value, dict | list) or not value:
        return flat
    pad = " " * (indent + 2)
    if isinstance(value, dict):
        parts = [
            f"{pad}{json.dumps(key, ensure_ascii=False)}: {_text(part, indent + 2)}" for key, part in value.items()
        ]
        return "{\n" + ",\n".join(parts) + "\n" + " " * indent + "}"
    return "[\n" + ",\n".join(pad + _text(part, indent + 2) for part in value) + "\n" + " " * indent + "]"
