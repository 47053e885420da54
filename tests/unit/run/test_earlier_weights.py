"""A run that was measured, trained further and measured again: its newest weights alone are the run."""

from dataclasses import replace
from pathlib import Path

import pytest

from mixlab.run import UNTRAINED, Measurement, RunDirectory, Subject
from mixlab.run.protocols import KnnProtocol, SegmentationProtocol, SpeedProtocol

KNN = Measurement(
    metric="knn_top1",
    value=0.3267,
    n=150,
    subject=Subject(label="long", model="vit_tiny", training="dino", weights="at 69"),
    protocol=KnnProtocol(data="photos", k=20),
    seed=0,
)


def of(weights: str, value: float, m: Measurement = KNN, **fields: object) -> Measurement:
    return replace(m, value=value, subject=replace(m.subject, weights=weights, **fields))


def trained(folder: Path, method: str = "dino") -> RunDirectory:
    run = RunDirectory.create(folder)
    run.write_config({"seed": 0, "settings": {"method": {"kind": method}}})
    return run


def write(run: RunDirectory, name: str, date: str, *measured: Measurement) -> None:
    content = {"kind": "knn", "measurements": [m.to_json() for m in measured], "provenance": {"date": date}}
    run.write_result(name, content)


def values(run: RunDirectory) -> list[float]:
    return sorted(m.value for m in run.measurements())


def test_the_weights_that_were_measured_last_are_the_run(tmp_path: Path) -> None:
    run = trained(tmp_path / "long")
    write(run, "knn_long", "2026-07-02T10:00:00+00:00", of("at 220", 0.4133))
    write(run, "knn_long_2", "2026-07-01T10:00:00+00:00", KNN)
    other = replace(KNN, protocol=KnnProtocol(data="drawn", k=20))
    write(run, "knn_long_3", "2026-07-01T11:00:00+00:00", other)  # not measured again
    assert values(run) == [0.4133]


@pytest.mark.parametrize(
    "other",
    [
        of("b", 0.4, label="step-69"),
        replace(of("b", 0.4), seed=1),
        of("b", 0.4, training=UNTRAINED),
        replace(of("b", 0.9), metric="images_per_s", protocol=SpeedProtocol(px=64)),
    ],
    ids=["another label", "another seed", "the untrained twin", "a speed"],
)
def test_what_is_of_no_other_stage_of_the_training_stays(other: Measurement, tmp_path: Path) -> None:
    run = trained(tmp_path / "long")
    write(run, "one", "2026-07-01", KNN)
    write(run, "two", "2026-07-02", other)
    assert len(values(run)) == 2


def test_networks_that_the_directory_did_not_train_stay(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "look")
    write(run, "one", "2026-07-01", KNN)
    write(run, "two", "2026-07-02", of("at 220", 0.4133))
    assert len(values(run)) == 2


@pytest.mark.parametrize("newest", [None, 200], ids=["finished", "stopped again"])
def test_of_a_run_that_another_directory_trained_a_checkpoint_is_a_stage(newest: int | None, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "look")
    write(run, "one", "2026-07-01", of("at 69", 0.3267, step=69), of("c", 0.2, label="vit"))
    write(run, "two", "2026-07-02", of("at 220", 0.4133, step=newest))
    write(run, "three", "2026-07-03", of("d", 0.5, model="vit_small"))
    assert values(run) == [0.2, 0.4133, 0.5]


def test_a_dense_task_is_of_the_run_that_trained_it_however_its_backbone_was_trained(tmp_path: Path) -> None:
    run = trained(tmp_path / "long", "segment")
    miou = replace(KNN, metric="miou", protocol=SegmentationProtocol(data="photos", mode="single"))
    write(run, "one", "2026-07-01", miou)
    write(run, "two", "2026-07-02", of("at 220", 0.41, miou), of("at 220", 0.5))
    assert values(run) == [0.41, 0.5]
