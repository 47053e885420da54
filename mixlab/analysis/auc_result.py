"""What a study of Binary-AUC finds: rows of scores, comparisons, and all of it as measurements."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixlab.analysis.map_scores import FALSE_POSITIVE_RATES
from mixlab.run import Measurement, Subject
from mixlab.run.protocols import MapProtocol
from mixlab.statistics import Correlation, Estimate

_METRICS = {"auc": "binary_auc", "raw_auc": "binary_auc_raw"}  # other scores have the names of their metrics
_OF_TWINS = ("untrained", "above_untrained")


@dataclass(frozen=True, kw_only=True)
class ScoreRow:
    """The scores of one map of a network: after a layer, and of one head or register where it has several."""

    subject: Subject
    seed: int | None
    probe_accuracy: float | None
    protocol: MapProtocol
    scores: dict[str, Estimate]  # by name; every name but those of _METRICS is a metric

    @property
    def measurements(self) -> Iterator[Measurement]:
        for name, found in self.scores.items():
            protocol = self.protocol if name in _OF_TWINS else replace(self.protocol, twin_seed=None)
            yield from to_measurements(_METRICS.get(name, name), found, protocol, self.subject, self.seed)

    def to_json(self) -> dict[str, Any]:
        place = {"map": self.protocol.map, "layer": self.protocol.layer, "index": self.protocol.index}
        scores = {name: _estimate_json(found) for name, found in self.scores.items()}
        known = {"seed": self.seed, "probe_accuracy": self.probe_accuracy}
        return asdict(self.subject) | known | place | scores


@dataclass(frozen=True)
class ScoreDifference:
    """How much the first scores above the second, on the same images."""

    better: str
    worse: str
    difference: Estimate

    def to_json(self) -> dict[str, Any]:
        return {"better": self.better, "worse": self.worse, "difference": _estimate_json(self.difference)}


@dataclass(frozen=True, kw_only=True)
class AucResult:
    """What one study found; `arrays` holds raw AUC per image, (n, layers, maps), by the label of the network."""

    study: str
    subjects: tuple[dict[str, Any], ...]  # descriptions of the networks
    protocol: MapProtocol  # what all rows have in common
    rows: tuple[ScoreRow, ...]
    arrays: dict[str, NDArray[np.float64]]
    comparisons: tuple[ScoreDifference, ...] = ()
    correlations: dict[str, Correlation] = field(default_factory=dict)
    findings: tuple[Measurement, ...] = ()  # of the study, beyond the scores of its rows
    roc: dict[str, list[float]] = field(default_factory=dict)  # by label: true positive rates, means over images
    skipped: dict[str, str] = field(default_factory=dict)  # images that could not be read, and why
    unpaired: tuple[str, ...] = ()  # images without a mask, and masks without an image

    @property
    def measurements(self) -> list[Measurement]:
        """None of the study by map: verdicts are about the default map alone, which the other studies score."""
        rows = () if self.study == "map" else self.rows
        return [found for row in rows for found in row.measurements] + list(self.findings)

    def to_json(self) -> dict[str, Any]:
        result = {
            "kind": "auc",
            "study": self.study,
            "data": self.protocol.data,
            "image": self.protocol.image,
            "protocol": self.protocol.to_json(),
            "subjects": list(self.subjects),
            "rows": [row.to_json() for row in self.rows],
            "comparisons": [comparison.to_json() for comparison in self.comparisons],
            "correlations": {label: found.to_json() for label, found in self.correlations.items()},
            "measurements": [measurement.to_json() for measurement in self.measurements],
            "skipped": self.skipped,
            "unpaired": list(self.unpaired),
        }
        if self.roc:
            rates = {"false_positive_rate": FALSE_POSITIVE_RATES.tolist(), "true_positive_rate": self.roc}
            result["roc"] = rates
        return result


def to_measurements(
    metric: str, found: Estimate | Correlation, protocol: MapProtocol, subject: Subject, seed: int | None
) -> list[Measurement]:
    """One measurement (of a correlation, Spearman's), or none where the estimate is undefined."""
    if isinstance(found, Correlation):
        found = Estimate(math.nan if found.spearman is None else found.spearman, found.low, found.high, found.n)
    if math.isnan(found.value):
        return []
    return [Measurement.of(metric, found, subject=subject, protocol=protocol, seed=seed)]


def _estimate_json(found: Estimate) -> dict[str, float | int | None]:
    """JSON has no NaN."""
    mean = None if math.isnan(found.value) else found.value
    return {"mean": mean, "low": found.low, "high": found.high, "n": found.n, "undefined": found.num_dropped}
