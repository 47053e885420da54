"""Runs that differ in their seed alone are drawn as one."""

from typing import Any

import pytest

from mixlab.report.findings import Curve
from mixlab.report.sections import merge_curves, merge_roc, merge_rows


def row(label: str, mean: float | None) -> dict[str, Any]:
    place = {"model": "m", "training": "dino", "num_parameters": 1, "map": "cosine", "layer": 0, "index": None}
    return {"label": label, **place, "auc": {"mean": mean, "low": 0.0, "high": 1.0, "n": 9}}


def test_a_row_that_two_records_share_counts_once() -> None:
    (merged,) = merge_rows([row("vit-s0", 0.4), row("vit-s0", 0.4), row("vit-s1", 0.8)])
    assert merged["label"] == "vit" and merged["auc"]["mean"] == pytest.approx(0.6)
    (lone,) = merge_rows([row("vit-s0", 0.4)])
    assert lone["auc"] == {"mean": 0.4, "low": 0.0, "high": 1.0, "n": 9}, "one seed keeps its interval over images"


def test_curves_are_means_at_the_steps_that_all_seeds_logged() -> None:
    first = Curve("vit-s0", [{"step": 1, "loss": 4.0}, {"step": 2, "loss": 2.0}], {})
    second = Curve("vit-s1", [{"step": 2, "loss": 3.0}], {})
    (merged,) = merge_curves([first, second])
    assert merged.label == "vit" and merged.rows == [{"step": 2, "loss": 2.5}]
    assert merge_roc({"vit-s0": [0.0, 1.0], "vit-s1": [0.5, 1.0]}) == {"vit": [0.25, 1.0]}
