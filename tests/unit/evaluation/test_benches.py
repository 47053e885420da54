"""The benchmarks run in small, and refuse to time what is wrong."""

import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from mixlab.bench import auc, dino, drawn_files, frozen, images, summary, timing
from mixlab.errors import InputError
from mixlab.evaluation.features import FeatureTable
from tests.waiting import PATIENCE_S

CPU = torch.device("cpu")


def test_crops_of_files_are_as_large_and_as_sharp_as_torchvisions(tmp_path) -> None:
    drawn_files.draw_scenes(tmp_path, 2)
    for crop in (rows := iter(images.describe_crops(str(tmp_path / "images"), num_draws=400))):
        ours, squashed = next(rows), next(rows)
        assert (crop["system"], ours["system"]) == ("torchvision", "mixlab")
        assert abs(ours["enlarged"] - crop["enlarged"]) < 0.1 < squashed["enlarged"] - crop["enlarged"]
        assert abs(ours["sharpness"] - 1) < 0.01 < 1 - squashed["sharpness"]


def test_the_knn_benchmark_times_a_small_case() -> None:
    (row,) = frozen.measure_knn(num_bank=600, num_queries=40, dim=8)
    assert row["seconds"] > 0 and row["accuracy"] < 0.5


def test_the_knn_benchmark_refuses_features_whose_neighbours_come_out_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    table = FeatureTable.from_tensors(torch.randn(300, 8), torch.zeros(300, dtype=torch.int64))
    monkeypatch.setattr(
        frozen, "nearest", lambda *_, **__: iter([(torch.ones(64, 20), torch.arange(20).expand(64, 20))])
    )
    with pytest.raises(RuntimeError, match="off the nearest ones"):
        frozen.check_knn(table, table, CPU)


def test_the_probe_benchmark_times_one_head_a_grid_and_cached_features() -> None:
    assert frozen.check_probe(CPU) < 1e-6
    one, grid = frozen.measure_augmented(model="vit_tiny", image=16, batch=2, num_classes=3, steps=1, device=CPU)
    assert (one["heads"], grid["heads"]) == (1, 320) and grid["times_one_head"] > 0
    cached = frozen.measure_cached(dim=4, batch=16, num_classes=3, num_images=64, steps=2, device=CPU)
    assert cached["heads"] == 320 and cached["images_per_s"] > 0


def test_the_auc_benchmark_leaves_scikit_learn_out_where_it_is_not_installed_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    systems = ["mixlab", "torchmetrics, loop", "scikit-learn, loop"]
    assert [row["system"] for row in auc.measure_auc(num_images=12)] == systems * 2
    assert "left out" not in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    assert [row["system"] for row in auc.measure_auc(num_images=12)] == systems[:2] * 2
    assert "scikit-learn is left out" in capsys.readouterr().err


def test_the_dino_benchmark_measures_both_networks_in_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda _: None)  # it would outlive the test
    rows = dino.measure_dino(tiny=True, steps=1)
    assert {row["model"] for row in rows} == {"dinovim_base", "vit_base"}
    assert not [row["note"] for row in rows if not row["images_per_s"]]


def test_a_peer_that_takes_too_long_is_stopped() -> None:
    with pytest.raises(TimeoutError, match=r"longer than 0\.05 s"), timing.time_limit(0.05):
        time.sleep(PATIENCE_S)
    with timing.time_limit(PATIENCE_S):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)  # no signal comes later


def test_the_table_of_speed_is_written_between_its_marks_from_what_was_measured(tmp_path: Path) -> None:
    step = {"model": "dinovim_base", "system": "mixlab", "peak_GiB": 17.25}
    results = {
        "ssd": {"scan": [{"batch": 64, "tokens": 198, "system": "mixlab", "fwd_bwd_ms": 0.4321}]},
        "dino": {
            "step": [
                {**step, "views": "made in step", "images_per_s": 321.4},
                {**step, "views": "made in step", "images_per_s": 448.2},
                {**step, "views": "ready", "images_per_s": 500.0},
            ]
        },
    }
    page = tmp_path / "README.md"
    page.write_text(f"before\n{summary.BEGIN}\nold\n{summary.END}\nafter\n")
    summary.write_speed_table(summary.speed_table(results), page)
    lines = page.read_text().splitlines()
    assert lines[0] == "before" and lines[-1] == "after" and "old" not in lines
    assert "| two-way scan, 64 x 198 tokens, forward + backward | 0.432 ms |  |" in lines
    assert sum("448 images/s, 17.2 GiB | 81 images/s" in line for line in lines) == 1
    assert len([line for line in lines if line.startswith("|")]) == 4
    page.write_text("nothing")
    with pytest.raises(InputError, match="no place for the table"):
        summary.write_speed_table("", page)


def test_readme_has_a_place_for_the_table_of_speed() -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    assert readme.count(summary.BEGIN) == readme.count(summary.END) == 1
