"""Run directories: what every command writes and every reader reads. No torch here."""

from mixlab.run.directory import RunDirectory, measurements
from mixlab.run.provenance import provenance

__all__ = ["RunDirectory", "measurements", "provenance"]
