"""Run directories and measurements: what every command writes and everything else reads."""

from mixlab.run.directory import RunDirectory, measurements_of
from mixlab.run.measurement import METRICS, UNTRAINED, Measurement, Subject, once
from mixlab.run.provenance import provenance

__all__ = ["METRICS", "UNTRAINED", "Measurement", "RunDirectory", "Subject", "measurements_of", "once", "provenance"]
