"""Accuracies: counts of right answers with their intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    def estimate(self) -> Estimate:
        """The share with Wilson's 95 % interval."""
        return wilson_interval(self.correct, self.n)

    def to_json(self) -> dict[str, Any]:
        """Without images, without a share."""
        found = self.estimate if self.n else None
        figures = (None, None, None) if found is None else (found.value, found.low, found.high)
        return dict(zip(("top1", "low", "high"), figures, strict=True)) | {"correct": self.correct, "n": self.n}
