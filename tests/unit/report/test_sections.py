"""Runs that differ in their seed alone are drawn as one."""

import re
from pathlib import Path
from typing import Any

import pytest

import mixlab
from mixlab.analysis.layer_ranks import RankSettings
from mixlab.analysis.rank import measure_ranks
from mixlab.report import write_report
from mixlab.report.findings import Curve, read_findings
from mixlab.report.sections import auc_part
from mixlab.report.seeds import merge_curves, merge_roc, merge_rows
from mixlab.run import RunDirectory
from tests.unit.report.example_run import keep_results, subject, write_scores


def row(label: str, mean: float | None) -> dict[str, Any]:
    place = {"model": "m", "training": "dino", "num_parameters": 1, "map": "cosine", "layer": 0, "index": None}
    return {"label": label, **place, "auc": {"mean": mean, "low": 0.0, "high": 1.0, "n": 9}}


def test_a_row_that_two_records_share_counts_once() -> None:
    (merged,) = merge_rows([row("vit-s0", 0.4), row("vit-s0", 0.4), row("vit-s1", 0.8)])
    assert merged["label"] == "vit" and merged["auc"]["mean"] == pytest.approx(0.6)
    (lone,) = merge_rows([row("vit-s0", 0.4)])
    assert lone["auc"] == {"mean": 0.4, "low": 0.0, "high": 1.0, "n": 9}, "one seed keeps its interval over images"


def test_the_interval_of_a_difference_over_seeds_may_be_below_zero() -> None:
    seeds = [row(f"vit-s{n}", 0.5) | {"above_untrained": {"mean": mean}} for n, mean in enumerate((-0.10, -0.12))]
    (merged,) = merge_rows(seeds)
    low, high = (merged["above_untrained"][end] for end in ("low", "high"))
    assert low < -0.12 < -0.10 < high and (low + high) / 2 == pytest.approx(-0.11)


def test_scores_of_another_map_have_a_chart_of_their_own_that_names_it(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    write_scores(run, [subject("vit", "attention")])
    other = run.results()["auc_model"]
    other["rows"][0]["map"] = "norm"
    run.write_result("auc_model_2", other | {"protocol": {"kind": "map", "data": "shapes", "map": "norm"}})
    drawn = auc_part(read_findings([run.path]), {})
    assert drawn is not None
    own = [figure for figure in drawn["kinds"][0]["figures"] if figure["study"] == "model"]
    assert [figure["images"].endswith("map norm") for figure in own] == [False, True]


def test_comparisons_name_the_map_of_each_side_and_n_also_those_of_older_results(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    write_scores(run, [subject("vit", "attention"), subject("vim", "mamba2")])
    keep_results(run, "auc_model")
    page = tmp_path / "page.html"
    rows = re.compile(r"(?s)Comparisons paired.*?<tbody>(.*?)</tbody>")
    said = " ".join(re.sub("<.*?>", " ", rows.findall(write_report([run.path], page).read_text())[0]).split())
    assert said == "model shapes, px cosine of vit pooled_cosine of vim -0.010 [-0.030, +0.010] 150"
    result = run.results()["auc_model"]
    gap = result["comparisons"][0]
    result["comparisons"] = [{"better": "vit", "worse": "vim", "difference": gap["difference"]}]
    run.write_result("auc_model", result)
    older = " ".join(re.sub("<.*?>", " ", rows.findall(write_report([run.path], page).read_text())[0]).split())
    assert older == "model shapes, px vit vim -0.010 [-0.030, +0.010] 150"
    result["comparisons"] = [{"second": "vim", "difference": gap["difference"]}]
    run.write_result("auc_model", result)
    with pytest.raises(ValueError, match=r"auc_model.json has no field comparisons\[0\]\.first"):
        read_findings([run.path])


def test_no_roc_has_curves_of_one_network_that_nothing_tells_apart(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    write_scores(run, [subject("vit", "attention")])
    roc = {"false_positive_rate": [0.0, 1.0], "true_positive_rate": {"vit": [0.0, 1.0]}}
    by_model = run.results()["auc_model"] | {"roc": roc}
    run.write_result("auc_model", by_model)
    places = {f"vit, class token {place}": [0.0, 1.0] for place in ("in the middle", "in front")}
    run.write_result("auc_token", by_model | {"study": "token", "roc": roc | {"true_positive_rate": places}})
    drawn = auc_part(read_findings([run.path]), {})
    assert drawn is not None
    own = [(figure["study"], figure["title"]) for figure in drawn["kinds"][0]["figures"]]
    assert ("model", "Mean ROC") in own and ("token", "Mean ROC") not in own


def test_curves_are_means_at_the_steps_that_all_seeds_logged() -> None:
    first = Curve("vit-s0", [{"step": 1, "loss": 4.0}, {"step": 2, "loss": 2.0}], {})
    second = Curve("vit-s1", [{"step": 2, "loss": 3.0}], {})
    (merged,) = merge_curves([first, second])
    assert merged.label == "vit" and merged.rows == [{"step": 2, "loss": 2.5}]


def test_scores_while_training_are_averaged_over_seeds_as_losses_are() -> None:
    """The loop logs them as lines of their own, without a loss."""
    seeds = [
        Curve(f"vit-s{seed}", [{"step": 0, "knn_accuracy": score}, {"step": 2, "loss": 3.0}], {})
        for seed, score in enumerate((0.2, 0.4))
    ]
    (merged,) = merge_curves(seeds)
    assert merged.points("knn_accuracy") == ([0.0], [pytest.approx(0.3)]) and merged.points("loss") == ([2.0], [3.0])


def test_roc_curves_of_all_records_are_drawn() -> None:
    def curves(**rates: list[float]) -> dict[str, Any]:
        named = {label.replace("_", "-"): values for label, values in rates.items()}
        return {"false_positive_rate": [0.0, 1.0], "true_positive_rate": named}

    merged = merge_roc([curves(vit_s0=[0.0, 1.0]), curves(vit_s1=[0.5, 1.0], vim=[0.2, 1.0])])
    assert merged == curves(vit=[0.25, 1.0], vim=[0.2, 1.0])
    other = {"false_positive_rate": [0.0, 0.5, 1.0], "true_positive_rate": {"vim": [0.0, 0.9, 1.0]}}
    assert merge_roc([curves(vit=[0.0, 1.0]), other]) == curves(vit=[0.0, 1.0])


def test_what_a_low_rank_leaves_stands_on_the_page(tmp_path: Path) -> None:
    model = mixlab.create_model("vit_tiny", dim=32, depth=1, patch=8, image=32, head_dim=16).eval()
    found = measure_ranks(model, "shapes:n=1", settings=RankSettings(chunk=8, rank=2))
    run = RunDirectory.create(tmp_path / "run")
    run.write("rank_vit", found.to_json(), found.arrays)
    text = write_report([run.path], tmp_path / "page.html").read_text()
    left = found.summary["overall"]["off_diagonal"]["left_by_rank"]["mean"]
    assert f"{100 * left:.2g} %" in text and "N = 2" in text
    older = {**found.to_json(), "rank": 8}  # of blocks of 8 tokens a side
    RunDirectory.create(tmp_path / "older").write("rank_vit", older, found.arrays)
    assert "N = 8" not in write_report([tmp_path / "older"], tmp_path / "older.html").read_text()


@pytest.mark.parametrize(
    ("graphs", "said"),
    [
        ((True, True), "replayed from CUDA graphs."),
        ((False, False), "launched kernel by kernel: "),
        ((True, False), "some replayed from CUDA graphs, the others launched kernel by kernel: "),
    ],
)
def test_cost_names_its_machine_and_how_passes_were_launched(
    graphs: tuple[bool, bool], said: str, tmp_path: Path
) -> None:
    row = {"label": "vit", "tokens": 64, "batch": 8, "peak_gib": 1.0, "images_per_s": {"value": 9.0}}
    rows = [row | {"pass": kind, "graph": graph} for kind, graph in zip(("forward", "training"), graphs, strict=True)]
    about = {"kind": "scaling", "precision": "bf16", "rows": rows, "provenance": {"machine": {"device": "NVIDIA H200"}}}
    RunDirectory.create(tmp_path / "run").write_result("scaling", about)
    for name in ("README.md", "page.html"):
        made = write_report([tmp_path / "run"], tmp_path / name).read_text(encoding="utf-8")
        assert "in bf16 on NVIDIA H200, " in made.replace("In bf16", "in bf16")
        assert f"batches of about the same number of tokens, {said}" in made
