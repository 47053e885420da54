"""Run directories and measurements: what every command writes and everything else reads."""

from mixlab.run.archive import unpacked, write_archive
from mixlab.run.directory import RunDirectory, find_runs, measurements_of
from mixlab.run.lock import RunLock
from mixlab.run.measurement import UNTRAINED, Measurement, Subject, base_label, once
from mixlab.run.protocols import METRICS
from mixlab.run.provenance import provenance

__all__ = [
    "METRICS",
    "UNTRAINED",
    "Measurement",
    "RunDirectory",
    "RunLock",
    "Subject",
    "base_label",
    "find_runs",
    "measurements_of",
    "once",
    "provenance",
    "unpacked",
    "write_archive",
]
