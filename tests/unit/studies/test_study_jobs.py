"""Small jobs of studies: the choice of learning rates, and speed against tokens."""

from pathlib import Path

import pytest

from mixlab.run import Measurement, RunDirectory, Subject
from mixlab.run.protocols import KnnProtocol
from mixlab.studies import jobs
from mixlab.studies.jobs import choose_rates, write_scaling


def test_rates_are_chosen_by_twenty_neighbours(tmp_path: Path) -> None:
    about = Subject(label="vit", model="vit_tiny", family="attention", training="dino", num_parameters=9, num_layers=3)
    for rate, scores in {"0.1": {10: 0.5, 20: 0.4}, "0.2": {10: 0.4, 20: 0.6}}.items():
        run = RunDirectory.create(tmp_path / "tuning" / f"dino-tiny-vit-{rate}")
        run.write_config({"settings": {"steps": 9}, "seed": 100, "command": "mixlab pretrain"})
        found = [
            Measurement(metric="knn_top1", value=value, n=9, subject=about, protocol=KnnProtocol(data="photos", k=k))
            for k, value in scores.items()
        ]
        run.write_result("knn", {"kind": "knn", "measurements": [m.to_json() for m in found]})
    result = choose_rates(str(tmp_path), "dino-tiny/vit/0.1", "dino-tiny/vit/0.2")
    assert result["chosen"] == {"dino-tiny": {"vit": 0.2}}
    assert [(trial["k"], trial["value"]) for trial in result["trials"]] == [(20, 0.4), (20, 0.6)]


def test_speeds_of_graphs_are_compared_with_speeds_of_graphs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[bool | None, dict[str, Measurement]] = {}
    for graph in (None, False, True):
        monkeypatch.setattr(jobs, "_measure", lambda step, device, batch, graph=graph: ([9.0] * 12, 1.0, graph))
        run = RunDirectory.create(tmp_path / str(graph))
        write_scaling(str(run.path), "32", "16", "vit=dino_vit_tiny160", "cpu")
        found[graph] = {m.metric: m for m in run.measurements()}
    for name, ways in {"training_images_per_s": 3, "forward_images_per_s": 3, "training_peak_gib": 1}.items():
        assert len({each[name].protocol for each in found.values()}) == ways
