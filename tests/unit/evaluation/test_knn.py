"""kNN and probes as Python functions, without a command line, a run directory or torchrun."""

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_backbones import DATA, tiny_backbone, tiny_settings, tiny_splits

import mixlab
from mixlab.analysis.comparisons import over_seeds, preferred
from mixlab.evaluation.knn import KnnSettings, evaluate_knn
from mixlab.evaluation.probe import evaluate_linear_probe
from mixlab.evaluation.target import Target
from mixlab.run import Measurement, RunDirectory


def test_knn_of_a_bare_backbone_measures_every_k_with_its_protocol() -> None:
    backbone = tiny_backbone()
    found = evaluate_knn(backbone, DATA, KnnSettings(k=(1, 5, 1000), label_share=0.5, seed=3))
    assert list(found.scores) == [1, 5] and found.num_neighbours == 25  # half of each class, rounded
    first, second = found.measurements
    assert (first["k"], second["k"]) == (1, 5) and first.n == 44
    assert (first["label_share"], first["label_seed"], first["strategy"], first["image"]) == (0.5, 3, "output", 16)
    assert first.protocol.data == DATA and first.subject.model == backbone.name and first.subject.training == ""
    assert [Measurement.from_json(record) for record in found.to_json()["measurements"]] == found.measurements
    for m in found.measurements:
        assert m.by_image is not None and len(m.by_image) == 44 and m.by_image.mean() == m.value


def test_data_may_be_a_name_or_its_splits() -> None:
    target = Target(label="tiny", backbone=tiny_backbone(), training="dino", seed=4)
    by_name, by_source = (evaluate_knn(target, data, KnnSettings(k=(3,))) for data in (DATA, tiny_splits()))
    assert by_name.to_json() == by_source.to_json()
    assert by_name.measurements[0].seed == 4


VARIED = [
    {"label_share": 0.5},
    {"strategy": "mean"},
    {"temperature": 0.1},
    {"num_train": 20},
    {"num_val": 20},
    {"image": 32},
    {"crop_share": 1.0},
    {"precision": "bf16"},
]


def test_a_run_keeps_the_headline_knn_beside_every_other_protocol(tmp_path: Path) -> None:
    target, run = Target(label="tiny", backbone=tiny_backbone()), RunDirectory.create(tmp_path)
    headline = evaluate_knn(target, DATA, KnnSettings(k=(20,)))
    for options in ({}, *VARIED, {}):
        found = evaluate_knn(target, DATA, KnnSettings(k=(20,), **options))
        run.write("knn", found.to_json())
    kept = run.measurements()
    assert len(kept) == len(run.results()) == 1 + len(VARIED)
    (again,) = [m for m in kept if m.identity == headline.measurements[0].identity]
    assert again.value == headline.measurements[0].value
    ((chosen,),) = preferred(over_seeds(kept))  # what ledger and tables take
    assert (chosen["label_share"], chosen["strategy"], chosen["num_train"], chosen["num_images"]) == (
        1.0, "output", None, None
    )  # fmt: skip


def test_probes_of_few_labels_of_both_modes_and_of_light_and_heavy_heads_stand_side_by_side(tmp_path: Path) -> None:
    target, run = Target(label="tiny", backbone=tiny_backbone()), RunDirectory.create(tmp_path)
    full = replace(tiny_settings(), mode="both", epochs=1, lrs=(0.1,), weight_decays=(0.0,), blocks=(), strategies=())
    settings = [
        replace(full, mode="cached", label_share=0.5),
        full,
        replace(full, mode="cached", heads="light"),
        replace(full, mode="cached", heads="heavy", image=32),
    ]
    for each in settings:
        found = evaluate_linear_probe(target, DATA, each, folder=tmp_path / "probe")
        run.write("probe", found.to_json(), found.arrays)
    kept = [m for m in run.measurements() if m["blocks"] is None]
    about = {(m["mode"], m["heads"], m["label_share"], m["image"]) for m in kept}
    assert about == {
        ("cached", "grid", 0.5, 16), ("augmented", "grid", 1.0, 16), ("cached", "grid", 1.0, 16),
        ("cached", "light", 1.0, 16), ("cached", "heavy", 1.0, 32),
    }  # fmt: skip
    assert all(m.by_image is not None and m.by_image.mean() == m.value for m in run.measurements())
    choices = [str(m.protocol.choices) for m in kept]
    assert len(set(choices)) == len(kept)  # nothing here repeats another as a second seed would
    other_seed = evaluate_linear_probe(target, DATA, replace(settings[2], seed=7)).measurements[0]
    light = next(m for m in kept if m["heads"] == "light")
    assert other_seed.protocol.choices == light.protocol.choices and other_seed.identity != light.identity


def test_a_probe_without_a_folder_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = evaluate_linear_probe(tiny_backbone(), DATA, tiny_settings(mode="cached", epochs=1))
    assert found.folder is None and not list(tmp_path.iterdir())
    best, *cells = found.measurements
    assert best["blocks"] is None and {(m["blocks"], m["strategy"]) for m in cells} == {
        (blocks, strategy) for blocks in (1, 2) for strategy in ("cls", "cls+mean")
    }
    assert best.value == max(m.value for m in cells) and best["heads"] == "blocks 1 2, strategies cls cls+mean"


def test_every_head_of_the_papers_ablations_is_a_measurement_of_its_own() -> None:
    model = mixlab.create_model("dinovim_tiny", dim=16, depth=4, image=16, patch=4, head_dim=8, state=8)
    target = Target(label="tiny", backbone=model.eval().requires_grad_(False))
    rates = {"lrs": (5e-4, 1e-3, 3e-3), "weight_decays": (0.0, 1e-3)}
    settings = replace(tiny_settings(), epochs=1, blocks=(1, 4), strategies=("cls",), **rates)
    found = evaluate_linear_probe(target, DATA, settings)
    cells = {(m["blocks"], m["lrs"], m["weight_decays"]) for m in found.measurements if m["heads"] == "one"}
    assert cells == {(1, (1e-3,), (0.0,)), (4, (1e-3,), (0.0,)), (4, (1e-3,), (1e-3,)), (4, (5e-4,), (1e-3,))}
