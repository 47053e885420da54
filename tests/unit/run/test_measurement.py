"""A measurement is checked when it is made, and two that differ in anything stand side by side."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

from mixlab.errors import InputError
from mixlab.run import METRICS, Measurement, RunDirectory, Subject, measurements_of
from mixlab.run.protocols import PROTOCOLS, KnnProtocol, MapProtocol

SUBJECT = Subject(label="vit", model="vit_tiny", family="attention", training="dino", num_parameters=5, weights="ab12")
METRIC_OF = {metric.protocol: name for name, metric in reversed(METRICS.items())}


def measured(protocol: Any, **changes: Any) -> Measurement:
    given: dict[str, Any] = {"value": 0.5, "n": 10, "subject": SUBJECT, "seed": 0, "low": 0.4, "high": 0.6}
    return Measurement(metric=METRIC_OF[type(protocol)], protocol=protocol, **given | changes)


def another(cls: type, name: str, value: Any) -> Any:
    """A value of that field's type which is not `value`."""
    kinds = set(get_args(get_type_hints(cls)[name])) or {get_type_hints(cls)[name]}
    if str in kinds:
        return f"{value} other"
    if bool in kinds:
        return not value
    if int in kinds or float in kinds:
        return (value or 0) + 1
    return (1,)


@pytest.mark.parametrize("cls", PROTOCOLS.values(), ids=lambda cls: cls.kind)
def test_two_that_differ_in_one_choice_both_survive_a_run_directory(cls: Any, tmp_path: Path) -> None:
    first = measured(cls(data="photos"))
    for name in (item.name for item in fields(cls)):
        other = replace(first.protocol, **{name: another(cls, name, getattr(first.protocol, name))})
        second = replace(first, protocol=other)
        run = RunDirectory.create(tmp_path / name)
        for measurement in (first, second, first):
            run.write("result", {"kind": cls.kind, "measurements": [measurement.to_json()]})
        assert len(list((run.path / "results").glob("*.json"))) == 2, name
        assert {m.identity for m in run.measurements()} == {first.identity, second.identity}, name
        assert set(run.measurements()) == {first, second}, name


@pytest.mark.parametrize("change", [{"label": "b", "weights": None}, {"training": "supervised"}, {"weights": "cd34"}])
def test_another_network_is_another_measurement(change: dict[str, Any]) -> None:
    first = measured(KnnProtocol(data="photos"))
    assert replace(first, subject=replace(SUBJECT, **change)).identity != first.identity
    assert replace(first, seed=1).identity != first.identity


def test_a_network_stays_the_same_under_another_label_if_its_weights_are_known() -> None:
    first = measured(KnnProtocol(data="photos"))
    assert replace(first, subject=replace(SUBJECT, label="renamed")).identity == first.identity


def test_a_repeated_measurement_replaces_itself_alone(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    for value in (0.5, 0.55):
        run.write("knn", {"measurements": [measured(KnnProtocol(k=20), value=value).to_json()]})
    assert [m.value for m in run.measurements()] == [0.55]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"value": float("nan")}, "finite"),
        ({"value": 1.2, "low": None, "high": None}, "between 0.0 and 1.0"),
        ({"low": 0.7, "high": 0.6}, "in order"),
        ({"low": None}, "both ends"),
        ({"n": 0}, "from 1 on"),
        ({"value": "0.5"}, "finite number"),
    ],
)
def test_a_wrong_number_is_refused_when_it_is_made(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        measured(KnnProtocol(data="photos"), **changes)


def test_a_metric_takes_its_own_protocol_alone() -> None:
    with pytest.raises(InputError, match="measured by a KnnProtocol"):
        Measurement(metric="knn_top1", value=0.5, n=1, subject=SUBJECT, protocol=MapProtocol())
    with pytest.raises(InputError, match="unknown metric 'nearest'"):
        Measurement(metric="nearest", value=0.5, n=1, subject=SUBJECT, protocol=MapProtocol())


@pytest.mark.parametrize(
    "record",
    [
        {"metric": "knn_top1", "value": 0.5},
        {"metric": "knn_top1", "value": 0.5, "n": 1, "subject": {}, "protocol": {"kind": "none"}},
        {"metric": "knn_top1", "value": 0.5, "n": 1, "subject": {"colour": 1}, "protocol": {"kind": "knn"}},
        {"metric": "knn_top1", "value": 0.5, "n": 1, "subject": 3, "protocol": {"kind": "knn"}},
        {"metric": "nearest", "value": 0.5, "n": 1},
    ],
)
def test_a_wrong_record_names_the_file_it_is_in(record: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"runs/a/results/knn\.json: "):
        measurements_of({"measurements": [record]}, "runs/a/results/knn.json")


def test_flat_records_of_older_runs_become_measurements() -> None:
    about = {"label": "vit", "model": "vit_tiny", "family": "attention", "training": "dino", "seed": 1, "causal": False}
    knn = {"metric": "knn_top1", "value": 0.5, "n": 9, "low": 0.4, "high": 0.6, "data": "photos", "k": 20, **about}
    rank = {"metric": "off_diagonal_rank", "value": 30.0, "n": 1, "minimum": 20.0, "bound": 32.0, **about}
    (found,) = measurements_of({"strategy": "cls", "label_share": 0.1, "seed": 4, "measurements": [knn]}, "knn.json")
    assert found.protocol == KnnProtocol(data="photos", k=20, strategy="cls", label_share=0.1, label_seed=4)
    assert (found.seed, found["family"], found["k"], found["strategy"]) == (1, "attention", 20, "cls")
    ranks = measurements_of({"measurements": [rank | {"definition": "numerical", "chunk": 256}]}, "rank.json")
    assert {m.metric: m.value for m in ranks} == {
        "off_diagonal_rank": 30.0,
        "smallest_off_diagonal_rank": 20.0,
        "off_diagonal_rank_bound": 32.0,
    }
    with pytest.raises(KeyError, match="strategies"):
        found["strategies"]


def test_one_choice_written_in_two_ways_is_one_measurement() -> None:
    assert measured(KnnProtocol(crop_share=1)).identity == measured(KnnProtocol(crop_share=1.0)).identity
    assert measured(KnnProtocol(data="photos/")).identity == measured(KnnProtocol(data="photos")).identity
    with pytest.raises(InputError, match="k of a KnnProtocol is '20'; expected int or None"):
        KnnProtocol(k="20")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("scores", "text"),
    [([1.0, 0.0, 0.0, 1.0], "1001"), ([0.25, np.nan, 0.75, 0.5], "0.2500 nan 0.7500 0.5000")],
    ids=["answers", "scores"],
)
def test_scores_of_images_survive_a_run_directory_and_make_no_other_measurement(
    scores: list[float], text: str, tmp_path: Path
) -> None:
    bare = measured(KnnProtocol(data="photos"))
    kept = replace(bare, by_image=np.array(scores))
    assert kept.identity == bare.identity and kept == bare
    run = RunDirectory.create(tmp_path)
    run.write_result("knn", {"measurements": [kept.to_json()]})
    run.write_result("later", {"measurements": [bare.to_json()]})
    assert run.results()["knn"]["measurements"][0]["by_image"] == text
    (found,) = run.measurements()
    np.testing.assert_array_equal(found.by_image, scores, "the later file has none, the earlier one's are kept")


def test_scores_of_images_must_have_the_mean_that_was_measured() -> None:
    with pytest.raises(InputError, match=r"is 0\.5, but the scores of its images have the mean 0\.25"):
        measured(KnnProtocol(data="photos"), by_image=np.array([0.0, 0.5]))
    record = measured(KnnProtocol(data="photos")).to_json() | {"by_image": "some"}
    with pytest.raises(InputError, match="zeros and ones, or numbers with spaces"):
        Measurement.from_json(record)
