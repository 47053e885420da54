"""Runs that differ in their seed alone stand in one row."""

import pytest

from mixlab.report.models import Figure, Model
from mixlab.report.records import Curve, Record
from mixlab.report.seeds import merge_curves, merge_models, merge_roc, merge_rows
from mixlab.run import RunDirectory

RECORD = Record(RunDirectory("nowhere"), "knn", "knn.json", {})


def model(label: str, value: float, *, training: str = "dino") -> Model:
    figures = {"knn_top1": Figure(value, value - 0.1, value + 0.1, 100, RECORD)}
    return Model(label, "vit_tiny", "attention", training, 0, 1000, figures=figures)


def test_seeds_of_one_training_become_one_row_and_others_stay() -> None:
    models = [model("vit-s0", 0.5), model("vit-s1", 0.7), model("vit-supervised-s0", 0.9, training="supervised")]
    merged = merge_models(models)
    assert [one.label for one in merged] == ["vit", "vit-supervised-s0"]
    assert merged[0].figures["knn_top1"].value == pytest.approx(0.6)
    assert merged[0].members == ("vit-s0", "vit-s1")
    assert merged[1].figures["knn_top1"].low == pytest.approx(0.8), "one seed keeps its interval over images"


def test_a_row_that_two_records_share_counts_once() -> None:
    def row(label: str, mean: float) -> dict[str, object]:
        figure = {"mean": mean, "low": 0.0, "high": 1.0, "n": 9}
        return {"label": label, "model": "m", "training": "dino", "num_parameters": 1, "map": "cosine", "layer": 0,
                "index": None,
                "auc": figure}  # fmt: skip

    (merged,) = merge_rows([row("vit-s0", 0.4), row("vit-s0", 0.4), row("vit-s1", 0.8)])
    assert merged["label"] == "vit" and merged["auc"]["mean"] == pytest.approx(0.6)


def test_curves_are_means_at_the_steps_that_all_seeds_logged() -> None:
    first = Curve("vit-s0", [{"step": 1, "loss": 4.0}, {"step": 2, "loss": 2.0}], {})
    second = Curve("vit-s1", [{"step": 2, "loss": 3.0}], {})
    (merged,) = merge_curves([first, second])
    assert merged.label == "vit" and merged.rows == [{"step": 2, "loss": 2.5}]
    assert merge_roc({"vit-s0": [0.0, 1.0], "vit-s1": [0.5, 1.0]}) == {"vit": [0.25, 1.0]}
