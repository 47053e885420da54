"""How much one score of Binary-AUC is above another on the same images, as results store it and as text."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mixlab.statistics import Estimate, with_interval


@dataclass(frozen=True)
class ScoreDifference:
    """The score of the first minus that of the second; the sign says which is higher."""

    first: str  # a network, or a part of one
    second: str
    map: str | None  # of the first; None in older results, which do not name it
    second_map: str | None
    difference: Estimate

    @property
    def first_score(self) -> str:
        return _score(self.map, self.first)

    @property
    def second_score(self) -> str:
        return _score(self.second_map, self.second)

    @property
    def is_defined(self) -> bool:
        return not math.isnan(self.difference.value)

    def __str__(self) -> str:
        gap = self.difference
        if not self.is_defined:
            return f"{self.first_score} minus {self.second_score}: -, n = 0"
        doubt = ", not significant" if gap.low is not None and gap.high is not None and gap.low <= 0 <= gap.high else ""
        found = with_interval(gap.value, gap.low, gap.high, form="+.3f")
        return f"{self.first_score} minus {self.second_score}: {found}, n = {gap.n}{doubt}"

    def to_json(self) -> dict[str, Any]:
        names = {"first": self.first, "second": self.second, "map": self.map, "second_map": self.second_map}
        return {**names, "n": self.difference.n, "difference": estimate_json(self.difference)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "ScoreDifference":
        """Older results called the two `better` and `worse`, whatever the sign."""
        first, second = (record[new] if new in record else record[old] for new, old in OLDER_NAMES.items())
        gap = record["difference"]
        value = math.nan if gap["mean"] is None else gap["mean"]
        found = Estimate(value, gap["low"], gap["high"], gap["n"], gap.get("undefined", 0))
        return cls(first, second, record.get("map"), record.get("second_map"), found)


OLDER_NAMES = {"first": "better", "second": "worse"}


def estimate_json(found: Estimate) -> dict[str, float | int | None]:
    """JSON has no NaN."""
    mean = None if math.isnan(found.value) else found.value
    return {"mean": mean, "low": found.low, "high": found.high, "n": found.n, "undefined": found.num_dropped}


def _score(map_name: str | None, label: str) -> str:
    return f"{map_name} of {label}" if map_name else label
