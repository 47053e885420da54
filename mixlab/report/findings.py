"""The input of a report: all result files of some runs, their measurements, and training curves."""

import json
import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixlab.errors import InputError
from mixlab.report.forms import check_form
from mixlab.run import Measurement, RunDirectory, find_runs
from mixlab.run.arrays import from_arrays
from mixlab.run.directory import AGAIN, method_of
from mixlab.run.earlier_weights import Weights, find_earlier_weights, networks_in, weights_of
from mixlab.statistics import with_interval

LONG = 60  # lists longer than this are cut on the page; the file has them all


@dataclass(frozen=True)
class Record:
    """One result file; `file` is how the page names it."""

    run: RunDirectory
    name: str
    file: str
    content: dict[str, Any]
    measurements: list[Measurement] = field(default_factory=list)
    parts: tuple["Record", ...] = ()  # the results behind it, where several are shown as one

    @property
    def kind(self) -> str:
        return str(self.content.get("kind", self.name))

    @property
    def anchor(self) -> str:
        return "record-" + re.sub(r"[^a-z0-9]+", "-", self.file.lower()).strip("-")

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays beside it; none where there is no such file."""
        return self.run.arrays(self.name) if self.run.file_of(self.name).with_suffix(".npz").is_file() else {}

    def array(self, name: str) -> NDArray[Any]:
        arrays = self.arrays()
        if name not in arrays:
            file = PurePath(self.file).with_suffix(".npz")
            raise InputError(f"{file} has no array {name!r}, it has {', '.join(arrays) or 'none'}; {AGAIN}")
        return arrays[name]

    def several(self, name: str) -> list[NDArray[Any]]:
        """One of each image."""
        return from_arrays(self.arrays(), name) or [*self.array(name)]

    def shown(self) -> str:
        """The record as text: long lists cut, and measurements as one line each unless its rows say the same."""
        content = {key: value for key, value in self.content.items() if key != "measurements"}
        if self.measurements and self.kind not in ("auc", "rank", "scaling"):
            content["measurements"] = [_line(m) for m in self.measurements]
        return _text(_cut(content))


@dataclass(frozen=True)
class Curve:
    """The metrics of a training run."""

    label: str
    rows: list[dict[str, Any]]
    config: dict[str, Any]

    @property
    def method(self) -> str:
        return method_of(self.config) or ""

    def points(self, name: str) -> tuple[list[float], list[float]]:
        known = [row for row in self.rows if isinstance(row.get(name), int | float) and "step" in row]
        return [float(row["step"]) for row in known], [float(row[name]) for row in known]


@dataclass(frozen=True)
class EarlierResult:
    """What was measured of a run before its training went on, and again afterwards."""

    label: str
    record: Record
    step: int | None  # up to which the run was trained then, where that is known


@dataclass(frozen=True)
class Findings:
    """The content of the given runs. Of a measurement in several files, the last one counts."""

    name: str = "mixlab"  # of the first place that was given
    runs: list[RunDirectory] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    record_of: dict[str, Record] = field(default_factory=dict)  # by the identity of a measurement
    measurements: dict[str, Measurement] = field(default_factory=dict)  # likewise
    contradictions: list[tuple[Measurement, Record, Record]] = field(default_factory=list)  # not shown, shown
    earlier: list[EarlierResult] = field(default_factory=list)  # not shown

    @property
    def files(self) -> list[Record]:
        """All result files, those that only notes name at the end."""
        known = {record.file for record in self.records}
        return [*self.records, *{e.record.file: e.record for e in self.earlier if e.record.file not in known}.values()]

    def of(self, kind: str) -> list[Record]:
        return [record for record in self.records if record.kind == kind]

    def add(self, record: Record) -> None:
        self.records.append(record)
        for m in record.measurements:
            known = self.measurements.get(m.identity)
            if known is not None and not math.isclose(known.value, m.value, rel_tol=1e-3, abs_tol=1e-4):
                self.contradictions.append((known, self.record_of[m.identity], record))
            self.measurements[m.identity], self.record_of[m.identity] = m, record

    def add_current(self, record: Record, earlier: Collection[Weights]) -> None:
        """Add what a result says of other networks than these, which are runs before their training went on."""
        networks = networks_in(record.content, record.measurements)
        for label, weights in sorted(networks & set(earlier), key=str):
            steps = {m.subject.step for m in record.measurements if m.subject.weights == weights}
            self.earlier.append(EarlierResult(label, record, next(iter(steps), None)))
        if not networks or not networks <= set(earlier):
            kept = [m for m in record.measurements if weights_of(m) not in earlier]
            self.add(replace(record, measurements=kept))


def read_findings(places: Iterable[Path]) -> Findings:
    """Read every result and every training curve of the runs at these places and below them."""
    folders = [place.resolve() for place in places]
    findings = Findings(name=folders[0].name) if folders else Findings()
    named = dict(zip(folders, _distinct_names(folders), strict=True))
    records: list[Record] = []
    earlier: set[Weights] = set()
    for run in find_runs(named):
        top = next(folder for folder in named if run.path.is_relative_to(folder))
        shown = (named[top] / run.path.relative_to(top)).as_posix()
        findings.runs.append(run)
        own = [
            Record(run, name, f"{shown}/results/{name}.json", content, measured)
            for name, content, measured in run.read_results()
        ]
        for record in own:
            check_form(record.content, record.kind, record.file)
        earlier |= run.earlier_weights((record.content, record.measurements) for record in own)
        records += own
        if rows := list(run.read_metrics()):
            findings.curves.append(Curve(run.path.name, rows, run.read_config_if_any()))
    earlier |= find_earlier_weights(((record.content, record.measurements) for record in records), lambda: None)
    for record in records:
        findings.add_current(record, earlier)
    return findings


def _distinct_names(folders: list[Path]) -> list[PurePath]:
    """The names of some folders, with as many of those above as make them distinct."""
    for count in range(1, max((len(folder.parts) for folder in folders), default=0) + 1):
        names = [PurePath(*folder.parts[-count:]) for folder in folders]
        if len(set(names)) == len(set(folders)):
            return names
    return [*folders]


def _line(m: Measurement) -> str:
    choices = ", ".join(f"{name} {value}" for name, value in m.protocol.to_json().items())
    return f"{m.metric} of {m.subject.label}: {with_interval(m.value, m.low, m.high, form='.6g')}, n = {m.n}; {choices}"


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
    """JSON with short parts on one line, and what holds nothing but numbers and names."""
    flat = json.dumps(value, ensure_ascii=False)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if len(flat) + indent <= 110 or (len(flat) <= 320 and not any(isinstance(part, dict | list) for part in parts)):
        return flat
    if not parts:
        return flat
    pad = " " * (indent + 2)
    if isinstance(value, dict):
        lines = (f"{json.dumps(key, ensure_ascii=False)}: {_text(part, indent + 2)}" for key, part in value.items())
        return "{\n" + ",\n".join(pad + line for line in lines) + "\n" + " " * indent + "}"
    return "[\n" + ",\n".join(pad + _text(part, indent + 2) for part in value) + "\n" + " " * indent + "]"
