"""Accuracies: counts of right answers with their intervals, as JSON and as measurements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mixlab.run import Measurement, Subject
from mixlab.run.protocols import EvaluationProtocol
from mixlab.statistics import Estimate, wilson_interval


@dataclass(frozen=True)
class Accuracy:
    """`correct` of `n` images.

    >>> Accuracy(90, 100).to_json()["top1"]
    0.9
    """

    correct: int
    n: int

    @property
    def estimate(self) -> Estimate | None:
        """The share with Wilson's 95 % interval; None without images."""
        return wilson_interval(self.correct, self.n) if self.n else None

    def to_json(self) -> dict[str, Any]:
        found = self.estimate
        figures = (None, None, None) if found is None else (found.value, found.low, found.high)
        return dict(zip(("top1", "low", "high"), figures, strict=True)) | {"correct": self.correct, "n": self.n}


def measured(
    metric: str, found: Estimate | None, *, subject: Subject, protocol: EvaluationProtocol, seed: int | None
) -> list[Measurement]:
    """The estimate as a measurement; none where there was nothing to estimate."""
    if found is None:
        return []
    figures: dict[str, Any] = {"value": found.value, "low": found.low, "high": found.high, "n": found.n}
    return [Measurement(metric=metric, **figures, subject=subject, protocol=protocol, seed=seed)]
