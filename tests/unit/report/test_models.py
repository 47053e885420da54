"""The tables of models: one protocol per column, every other one beside it, and differences from `statistics`."""

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from mixlab.analysis.comparisons import training_gains
from mixlab.choices import SHOWN_MAP
from mixlab.evaluation.settings import LRS, SPEEDRUN_LRS
from mixlab.report import write_report
from mixlab.report.baselines import baseline_columns
from mixlab.report.findings import Findings, Record, read_findings
from mixlab.report.models import model_table, words
from mixlab.report.page import first_sentences
from mixlab.report.probes import chosen_elsewhere
from mixlab.report.shown_numbers import shown
from mixlab.report.table import Column, Table
from mixlab.run import METRICS, UNTRAINED, Measurement, RunDirectory, Subject
from mixlab.run.protocols import (
    PROTOCOLS,
    DetectionProtocol,
    EvaluationProtocol,
    KnnProtocol,
    MapProtocol,
    ProbeProtocol,
    RankProtocol,
    RobustnessProtocol,
    SegmentationProtocol,
    SpeedProtocol,
)
from mixlab.statistics import mean_over_seeds

KNN = KnnProtocol(data="shapes", k=20)


def measured(
    label: str,
    value: float,
    protocol: EvaluationProtocol = KNN,
    *,
    metric: str = "knn_top1",
    training: str = "dino",
    model: str = "vit_tiny",
    seed: int = 0,
) -> Measurement:
    about = Subject(label=label, model=model, family="attention", training=training, num_parameters=1000, num_layers=3)
    return Measurement(
        metric=metric,
        value=value,
        n=100,
        subject=about,
        protocol=protocol,
        seed=seed,
        low=value - 0.05,
        high=value + 0.05,
    )


def table_of(*measurements: Measurement) -> Table:
    findings = Findings()
    findings.add(Record(RunDirectory("nowhere"), "x", "run/results/x.json", {}, [*measurements]))
    return model_table(findings)


def column(table: Table, title: str) -> dict[str, float]:
    (found,) = (each for each in (*table.columns, *table.robustness) if each.title == title)
    return {network.name: cell.value for network, cell in found.cells.items()}


def others(table: Table) -> set[tuple[str, str, str, float]]:
    """Model, measure, what differs, value."""
    found = ((network, one, cell) for one in table.others for network, cell in one.cells.items())
    return {(f"{network.name} {network.training}", one.title, one.protocol, cell.value) for network, one, cell in found}


def test_a_column_holds_the_protocol_of_most_networks_and_others_say_what_they_changed() -> None:
    few = replace(KNN, label_share=0.1)
    table = table_of(measured("a", 0.5), measured("b", 0.6), measured("a", 0.3, few), measured("c", 0.2, few))
    assert column(table, "kNN") == {"a": 0.5, "b": 0.6}
    assert others(table) == {("a dino", "kNN", "10 % of the labels", 0.3), ("c dino", "kNN", "10 % of the labels", 0.2)}


def made_for(image: int, m: Measurement) -> Measurement:
    return replace(m, subject=replace(m.subject, native_image=image, model=f"vit_{image}"))


def test_networks_made_for_other_images_have_columns_and_tables_of_their_own() -> None:
    sizes = {80: ("tiny", 0.5), 160: ("small", 0.6)}
    knn = [made_for(px, measured(name, v, replace(KNN, image=px))) for px, (name, v) in sizes.items()]
    maps = [
        made_for(
            px, measured(name, v, MapProtocol(data="masks", image=160, map="cosine", layer=2), metric="binary_auc")
        )
        for px, (name, v) in sizes.items()
    ]
    task = SegmentationProtocol(data="ade", mode="single")
    dense = made_for(80, measured("tiny-segment", 0.3, task, metric="miou"))
    table = table_of(*knn, *maps, dense)
    assert not table.others
    parts = [
        (part.image, [c.title for c in part.columns], [r.label for r in part.rows])
        for part in table.parts(table.scores)
    ]
    assert parts == [
        (160, ["kNN", "Binary-AUC"], ["small"]),
        (80, ["kNN", "Binary-AUC"], ["tiny"]),
        (80, ["mIoU"], ["tiny-segment"]),
    ]
    keys = [column.key for column in table.scores if column.title == "kNN"]
    assert sorted(keys) == ["shapes, 160 px", "shapes, 80 px"]
    alone = table_of(knn[0], maps[0], dense)
    assert [part.image for part in alone.parts(alone.scores)] == [None, None]


def test_each_data_set_and_each_kind_of_probe_has_a_column() -> None:
    kinds = [ProbeProtocol(data="photos", lrs=rates, weight_decays=(0.0,)) for rates in ((0.1,), (1e-3, 2e-3))]
    probes = [measured("a", 0.5 + n / 10, kind, metric="probe_top1") for n, kind in enumerate(kinds)]
    maps = [
        measured("a", v, MapProtocol(data=data, map="cosine", layer=2), metric="binary_auc")
        for data, v in (("masks", 0.7), ("voc", 0.8))
    ]
    table = table_of(*probes, *maps)
    assert [(c.title, c.key) for c in table.scores] == [
        ("linear probe", "photos, lrs 0.1"), ("linear probe", "photos, lrs 0.001 0.002"),
        ("Binary-AUC", "masks"), ("Binary-AUC", "voc"),
    ]  # fmt: skip


def test_the_papers_probe_and_that_of_the_speedrun_are_named() -> None:
    about = {"data": "photos", "image": 80, "mode": "cached"}
    grids = {LRS: 100, SPEEDRUN_LRS: 50}
    kinds = [ProbeProtocol(**about, lrs=lrs, epochs=epochs) for lrs, epochs in grids.items()]
    columns = table_of(*(measured("a", 0.5, kind, metric="probe_top1") for kind in kinds)).scores
    assert [c.key for c in columns] == ["the paper's, photos, 80 px", "the speedrun's, photos, 80 px"]
    assert "epochs 50, the speedrun's lrs 0.01 0.1 0.5" in columns[1].protocol


def test_beside_ranks_no_network_has_a_row_for_the_parameters_of_another() -> None:
    how = RankProtocol(data="photos", definition="numerical")
    found = [measured("vit", 64.0, how, metric="off_diagonal_rank")]
    found += [measured(name, 0.5, model=model) for name, model in (("vit-segment", "vit_tiny"), ("cnn", "cnn_tiny"))]
    assert [row.label for row in table_of(*found).rows_of(table_of(*found).sizes)] == ["cnn", "vit"]


def test_maps_stand_beside_their_baselines() -> None:
    def scores(label: str, seed: int, score: float, name: str) -> list[Measurement]:
        how = MapProtocol(data="masks", image=64, map=name, layer=2)
        values = {"binary_auc": score, "above_centre_prior": score - 0.8, "above_untrained": score - 0.6}
        return [measured(label, v, how, metric=m, seed=seed) for m, v in values.items()]

    findings = Findings()
    found = [m for seed, v in enumerate((0.88, 0.92)) for m in scores(f"vit-s{seed}", seed, v, SHOWN_MAP)]
    found += [
        m
        for name in ("pooled_cosine", "cosine", "norm")
        for m in scores("vit-s0", 0, {"cosine": 0.7}.get(name, 0.9), name)
    ]
    findings.add(Record(RunDirectory("nowhere"), "x", "run/results/x.json", {}, found))
    (columns,) = baseline_columns(findings)
    cells = {(column.key, column.title): next(iter(column.cells.values())) for column in columns}
    assert {key: round(cell.value, 3) for key, cell in cells.items()} == {
        ("the paper's map", "Binary-AUC"): 0.7, ("the paper's map", "minus centre"): -0.1,
        ("the paper's map", "minus untrained"): 0.1, (SHOWN_MAP, "Binary-AUC"): 0.9,
        (SHOWN_MAP, "minus centre"): 0.1, (SHOWN_MAP, "minus untrained"): 0.3,
    }  # fmt: skip
    gap = mean_over_seeds([m for m in found if m.metric == "above_centre_prior" and m["map"] == SHOWN_MAP])
    shown_cell = cells[SHOWN_MAP, "minus centre"]
    assert (shown_cell.low, shown_cell.high, shown_cell.num_seeds) == (gap.low, gap.high, 2)
    assert shown(shown_cell, "±")["text"] == "+0.100"


def test_of_two_protocols_that_as_many_networks_have_the_preferred_one_is_the_column() -> None:
    cached, augmented = (ProbeProtocol(data="shapes", mode=mode) for mode in ("cached", "augmented"))
    table = table_of(*(measured("a", v, p, metric="probe_top1") for v, p in ((0.4, cached), (0.5, augmented))))
    assert column(table, "linear probe") == {"a": 0.5}
    assert others(table) == {("a dino", "linear probe", "mode cached", 0.4)}


def test_the_papers_map_is_the_column_before_others_and_those_are_named() -> None:
    def maps(label: str, layer: int = 2, **scores: float) -> list[Measurement]:
        at = {name: MapProtocol(data="masks", map=name, layer=layer) for name in scores}
        return [measured(label, value, at[name], metric="binary_auc") for name, value in scores.items()]

    table = table_of(*maps("a", cosine=0.7, norm=0.8), *maps("b", norm=0.6), *maps("a", layer=0, cosine=0.5))
    assert column(table, "Binary-AUC") == {"a": 0.7}
    assert [(other.title, other.protocol, len(other.cells)) for other in table.others] == [
        ("Binary-AUC", "map norm", 2)
    ]
    assert column(table_of(*maps("b", norm=0.6)), "Binary-AUC by norm") == {"b": 0.6}


def test_seeds_are_one_cell_with_students_interval_and_other_trainings_are_other_rows() -> None:
    values = [0.5, 0.6, 0.9]
    seeds = [measured(f"vit-s{seed}", value, seed=seed) for seed, value in enumerate(values)]
    table = table_of(*seeds, measured("vit-supervised-s0", 0.7, training="supervised"))
    assert [(row.label, row.network.training) for row in table.rows] == [
        ("vit", "dino"),
        ("vit-supervised", "supervised"),
    ]
    (knn,) = (each for each in table.columns if each.title == "kNN")
    merged, lone = knn.cells.values()
    half = stats.t.ppf(0.975, 2) * np.std(values, ddof=1) / np.sqrt(3)
    mean = np.mean(values)
    assert mean + half > 1  # which no accuracy can be
    assert (merged.value, merged.low, merged.high) == pytest.approx((mean, mean - half, 1.0))
    assert (merged.num_seeds, lone.low) == (3, pytest.approx(0.65)), "one seed keeps its interval over images"


def test_changed_images_have_a_table_of_their_own() -> None:
    changes = {"mean": 0.4, "blur": 0.5, "noise": 0.3}
    found = [
        measured("vit", v, RobustnessProtocol(data="shapes", change=name, classifier="probe"),
                 metric="shifted_top1" if name == "mean" else "shift_top1")
        for name, v in changes.items()
    ]  # fmt: skip
    found.append(measured("vit", 0.1, RobustnessProtocol(data="imagenet-r"), metric="robust_top1"))
    table = table_of(*found)
    assert {each.title: [*column(table, each.title).values()] for each in table.robustness} == {
        "imagenet-r": [0.1], "mean": [0.4], "blur": [0.5], "noise": [0.3],
    }  # fmt: skip


def test_seeds_with_another_probe_are_not_counted_among_those_of_changed_images() -> None:
    def changed(seed: int, epochs: int) -> Measurement:
        classifier = f"cached probe, {epochs} epochs"
        protocol = RobustnessProtocol(data="shapes", change="mean", classifier=classifier)
        return measured(f"vit-s{seed}", 0.4 + 0.1 * seed, protocol, metric="shifted_top1", seed=seed)

    knn = [measured(f"vit-s{seed}", 0.5, seed=seed) for seed in range(3)]
    table = table_of(*knn, changed(0, 100), changed(1, 100), changed(2, 50))
    (row,) = table.rows
    assert (table.num_seeds(row), table.num_seeds(row, table.robustness)) == (3, 2)
    (mean,) = table.robustness
    assert (mean.cells[row.network].value, mean.key) == (pytest.approx(0.45), "shapes")
    assert [other.protocol for other in table.others] == ["classifier cached probe, 50 epochs"]


def test_a_network_of_a_dense_task_is_one_row_whatever_was_trained_before() -> None:
    one, six = (SegmentationProtocol(data="ade", mode=mode, frozen=True) for mode in ("single", "multi"))
    boxes = DetectionProtocol(data="coco")
    table = table_of(
        measured("vit-segment", 0.3, one, metric="miou", training="supervised"),
        measured("vit-segment", 0.4, six, metric="miou", training="supervised"),
        measured("vit-segment", 90, SpeedProtocol(image=64), metric="images_per_s", training="segment"),
        measured("scratch", 0.2, boxes, metric="box_ap", training=UNTRAINED),
        measured("scratch", 0.1, boxes, metric="mask_ap", training=UNTRAINED),
        measured("scratch", 80, SpeedProtocol(image=64), metric="images_per_s", training="detect"),
        measured("scratch", 0.5, training="dino"),  # another network of that name
        measured("only-speed", 70, SpeedProtocol(image=64), metric="images_per_s", training="segment"),
    )
    assert {(row.label, row.network.training) for row in table.rows} == {
        ("vit-segment", "supervised, then segmentation"),
        ("scratch", "detection"),
        ("scratch", "dino"),
        ("only-speed", "segmentation"),
    }
    assert column(table, "mIoU") == {"vit-segment": 0.3} and column(table, "box AP") == {"scratch": 0.2}
    assert column(table, "images/s") == {"vit-segment": 90, "scratch": 80, "only-speed": 70}
    assert others(table) == {("vit-segment supervised, then segmentation", "mIoU", "mode multi", 0.4)}


def test_every_column_names_its_data_and_the_choices_that_set_it_apart() -> None:
    kinds = [ProbeProtocol(data="photos", image=64, heads=heads, epochs=10) for heads in ("light", "heavy", "grid")]
    probes = [measured("vit", 0.5 + place / 10, kind, metric="probe_top1") for place, kind in enumerate(kinds)]
    table = table_of(*probes, measured("vit", 0.4))
    keys = {found.title: found.key for found in table.scores}
    assert keys == {"linear probe": "photos, 64 px, heads light", "kNN": "shapes"}
    assert {found.protocol for found in table.others} == {"heads heavy", "heads grid"}


def test_no_difference_stands_beside_the_baseline_of_other_images() -> None:
    voc = replace(KNN, data="voc")
    table = table_of(
        measured("a", 0.5), measured("a", 0.2, training=UNTRAINED), measured("b", 0.6, voc, model="vit_small"),
        measured("b", 0.3, voc, training=UNTRAINED, model="vit_small"),
    )  # fmt: skip
    found = {gains.key: {network.name: gain for network, gain in gains.cells.items()} for gains in table.gains}
    assert {key: [*cells] for key, cells in found.items()} == {"shapes": ["a"], "voc": ["b"]}
    assert [m.value for m in found["voc"]["b"].untrained] == [0.3]
    assert {gain.untrained[0]["data"] for gain in found["voc"].values()} == {"voc"}


def test_an_untrained_twin_stands_beside_its_network_and_any_other_untrained_network_in_a_row() -> None:
    few = replace(KNN, label_share=0.1)
    found = [
        measured("vit", 0.5),
        measured("vit", 0.2, training=UNTRAINED),
        measured("vit", 0.1, few, training=UNTRAINED),
        measured("random", 0.15, model="vit_small", training=UNTRAINED),
    ]
    table = table_of(*found)
    assert [row.label for row in table.rows] == ["random", "vit"]
    (gain,) = table.gains[0].cells.values()
    assert gain == training_gains(found)[0] and gain.difference.value == pytest.approx(0.3)
    assert (table.labels(learnt=True), table.labels(learnt=False)) == ("vit", "")
    assert others(table) == {("vit untrained", "kNN", "10 % of the labels", 0.1)}
    assert [row.network.training for row in table.rows_of(table.others)] == ["untrained"]


def test_a_network_measured_only_by_another_map_has_a_row_and_counts() -> None:
    maps = [MapProtocol(data="shapes", map=kind, layer=2) for kind in ("cosine", "cut")]
    found = [measured(name, 0.6, kind, metric="binary_auc") for name, kind in zip(("vit", "vim"), maps, strict=True)]
    table = table_of(*found, measured("vim", 0.5, maps[1], metric="binary_auc", training=UNTRAINED))
    assert [row.label for row in table.rows] == ["vim", "vit"]
    assert others(table) >= {("vim dino", "Binary-AUC", "map cut", 0.6)}
    assert [row.label for row in table.rows_of(table.sizes)] == ["vim", "vit"]  # with its parameters


def test_networks_that_share_label_and_seed_are_not_averaged_in_silence() -> None:
    one, two = (
        replace(m, subject=replace(m.subject, weights=digest))
        for m, digest in ((measured("vit", 0.4), "aa"), (measured("vit", 0.6), "bb"))
    )
    table = table_of(one, two)
    assert column(table, "kNN") == {"vit": pytest.approx(0.5)}
    assert table.notes == [
        "vit, seed 0: 2 networks with different weights have this label, and cells show their mean; give the runs "
        "different labels to see each."
    ]


def write_knn(run: RunDirectory, name: str, date: str, *found: Measurement) -> None:
    content = {"kind": "knn", "measurements": [m.to_json() for m in found], "provenance": {"date": date}}
    run.write_result(name, content | {"num_classes": 10})


def test_a_run_that_was_measured_before_its_training_went_on_is_shown_as_it_is_now(tmp_path: Path) -> None:
    run, beside = RunDirectory.create(tmp_path / "long"), RunDirectory.create(tmp_path / "beside")
    run.write_config({"seed": 0, "settings": {"method": {"kind": "dino"}}})
    first, second = (
        replace(m, subject=replace(m.subject, weights=weights, step=step))
        for m, weights, step in ((measured("long", 0.3267), "aa", 69), (measured("long", 0.4133), "bb", None))
    )
    write_knn(run, "knn_long", "2026-07-01", first)
    write_knn(run, "knn_long_2", "2026-07-02", second)
    write_knn(beside, "knn", "2026-07-01", replace(first, protocol=replace(KNN, data="b")), measured("vit", 0.2))
    findings = read_findings([tmp_path])
    table = model_table(findings)
    assert column(table, "kNN") == {"long": 0.4133, "vit": 0.2} and not others(table) and not table.notes
    assert first_sentences([run.path])[0] == "kNN on drawn scenes (shapes): 41.3 % for long."
    page = " ".join(re.sub("<[^>]*>", "", write_report([tmp_path], tmp_path / "page.html").read_text()).split())
    files = [f"{tmp_path.name}/{file}.json (step 69)" for file in ("beside/results/knn", "long/results/knn_long")]
    left_out = f"long: left out is what was measured before the training of this run went on: {', '.join(files)}."
    assert left_out in page
    assert left_out.replace("_", "\\_") in write_report([tmp_path], tmp_path / "page.md").read_text()
    assert len(findings.records) == 2 and "3 result files behind this page" in page


@pytest.mark.parametrize("places", [("look", "look"), ("look", "look2"), ("look", "long")])
def test_stages_of_a_run_measured_into_other_directories_are_not_averaged(
    places: tuple[str, str], tmp_path: Path
) -> None:
    RunDirectory.create(tmp_path / "long").write_config({"seed": 0, "settings": {"method": {"kind": "dino"}}})
    for place, day, (value, weights, step) in zip(places, (1, 2), ((0.3, "aa", 69), (0.4, "bb", None)), strict=True):
        one = measured("long", value)
        one = replace(one, subject=replace(one.subject, weights=weights, step=step))
        write_knn(RunDirectory.create(tmp_path / place), f"knn_{day}", f"2026-07-0{day}", one)
    findings = read_findings([tmp_path])
    table = model_table(findings)
    assert column(table, "kNN") == {"long": 0.4} and not table.notes
    assert [(each.label, each.step) for each in findings.earlier] == [("long", 69)]


def test_seeds_under_one_label_are_averaged_though_their_weights_differ(tmp_path: Path) -> None:
    for seed, value in enumerate((0.4, 0.6)):
        run = RunDirectory.create(tmp_path / f"vit-s{seed}")
        run.write_config({"seed": seed, "settings": {"method": {"kind": "dino"}}})
        one = measured(f"vit-s{seed}", value, seed=seed)
        write_knn(run, "knn", f"2026-07-0{seed + 1}", replace(one, subject=replace(one.subject, weights=f"s{seed}")))
    findings = read_findings([tmp_path])
    assert column(model_table(findings), "kNN") == {"vit": pytest.approx(0.5)} and not findings.earlier


def two_values(kind: Any) -> tuple[Any, Any]:
    """For a field of a protocol, by its type."""
    text = str(kind)
    one, two = (
        (True, False) if "bool" in text else (1, 2) if "int" in text else (0.25, 0.5) if "float" in text else "ab"
    )
    return ((one,), (one, two)) if "tuple" in text else (one, two)


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_measurements_that_differ_in_any_choice_are_both_on_the_page(kind: str, tmp_path: Path) -> None:
    metric = next(name for name, about in METRICS.items() if about.protocol is PROTOCOLS[kind])
    run, expected = RunDirectory.create(tmp_path / "run"), []
    for item in fields(PROTOCOLS[kind]):
        for value in two_values(item.type):
            number = 0.1 + 0.0001 * len(expected)
            base = {"data": "shapes", "map": "cosine"} if kind == "map" else {"data": "shapes"}
            protocol = PROTOCOLS[kind](**{**base, item.name: value})
            found = measured("vit", number, protocol, metric=metric, seed=len(expected))
            expected.append(f"{number:.6g}")
            run.write("result", {"measurements": [found.to_json()]})
    page = write_report([run.path], tmp_path / "page.html").read_text(encoding="utf-8")
    missing = [number for number in expected if f": {number} [" not in page]
    assert not missing


def test_columns_say_their_protocol() -> None:
    (parameters, knn) = table_of(measured("vit", 0.5)).columns
    assert isinstance(knn, Column) and knn.protocol == "data shapes, all labels, k 20"
    assert parameters.title == "parameters"


def test_choices_of_a_protocol_are_plain_words() -> None:
    choices = {"kind": "rank", "chunk": 32, "layers": (0, 5), "centre": True, "k": 20, "map": ""}
    assert words(choices) == "chunk 32, layers 0 5, centre yes, k 20"


def test_heads_of_a_probe_that_were_chosen_elsewhere_stand_beside_the_best(tmp_path: Path) -> None:
    def probed(label: str, seed: int, best: float, elsewhere: float | None, *, heads: str = "grid") -> None:
        lead = measured(
            label, best, ProbeProtocol(data="shapes", lrs=LRS, heads=heads), metric="probe_top1", seed=seed
        )  # fmt: skip
        halves = None if elsewhere is None else {"top1": elsewhere}
        modes = {"cached": {"best": {"top1": best}, "chosen_elsewhere": halves}}
        content = {"kind": "probe", "subject": {"label": label}, "modes": modes, "measurements": [lead.to_json()]}
        RunDirectory.create(tmp_path / label).write_result("probe", content)

    probed("vit-s0", 0, 0.8, 0.7)
    probed("vit-s1", 1, 0.6, 0.5)
    probed("old", 0, 0.9, None)  # of a version that did not say
    probed("registers", 0, 0.9, 0.8, heads="blocks 1, strategies registers")  # an ablation
    places = [tmp_path / name for name in ("vit-s0", "vit-s1", "old", "registers")]
    (row,) = chosen_elsewhere(read_findings(places))
    assert (row.label, row.heads, row.num_seeds) == ("vit", "the paper's, cached", 2)
    assert (row.best, row.elsewhere) == pytest.approx((0.7, 0.6))
    write_report(places, tmp_path / "page.html")
    assert "chosen on other images" in (tmp_path / "page.html").read_text()


def test_macs_of_a_run_of_a_dense_task_are_those_of_its_record() -> None:
    miou = measured("photos", 0.4, SegmentationProtocol(data="ade", mode="single"), metric="miou", training="segment")
    about = {"label": "photos", "model": "vit_tiny", "training": "segment"}
    findings = Findings()
    findings.add(Record(RunDirectory("nowhere"), "x", "run/results/x.json", {}, [miou]))
    cost = {"kind": "cost", "subject": about, "num_parameters": 1000, "macs": 2_500_000}
    findings.add(Record(RunDirectory("nowhere"), "cost", "run/results/cost.json", cost))
    (macs,) = (column for column in model_table(findings).sizes if column.title == "MACs")
    assert [cell.value for cell in macs.cells.values()] == [2_500_000]
