"""The benchmark of dense tasks runs in small, and says where lines cross."""

import json
from pathlib import Path

import pytest
import torch

from mixlab.bench.dense import Bench, crossings, tiny_plan
from mixlab.commands.answer import Answer
from mixlab.commands.bench import bench


def test_the_miniature_measures_every_model_in_every_table_and_draws_them(tmp_path: Path) -> None:
    bench("dense", Answer(json=str(tmp_path / "dense.json")), quick=True, figure=tmp_path / "dense.svg")
    tables = list(json.loads((tmp_path / "dense.json").read_text())["tables"].items())
    assert [len(rows) for _, rows in tables] == [8, 3, 4, 4]
    for title, rows in tables:
        if "images_per_s" in rows[0]:
            assert all(row["images_per_s"] > 0 for row in rows), title
            vit = [row["speed_over_vit"] for row in rows if row["model"] == "vit_tiny"]
            assert vit == [1.0] * len(vit)
    assert "dinovim_tiny" in (tmp_path / "dense.svg").read_text()


def row(model: str, px: int, speed: float, memory: float | None) -> dict:
    return {"model": model, "px": px, "speed_over_vit": speed, "memory_over_vit": memory}


@pytest.mark.parametrize(
    ("speeds", "says"),
    [((0.5, 0.5, 2.0), "about 1448"), ((2.0, 2.0, 2.0), "512 or below"), ((0.5, 0.6, 0.9), "not up to 2048"),
     ((2.0, 0.5, 2.0), "about 1448"), ((0.5, 2.0, 3.0), "about 724")],
)  # fmt: skip
def test_the_crossing_is_where_the_ratio_passes_one_for_good(speeds, says: str) -> None:
    rows = [row("dinovim", px, speed, None) for px, speed in zip((512, 1024, 2048), speeds, strict=True)]
    (found,) = crossings([row("vit", 512, 1.0, 1.0), *rows])
    assert (found["faster_from_px"], found["less_memory_from_px"]) == (says, "not measured")


def test_when_one_model_runs_out_of_memory_all_are_measured_with_half_the_batch() -> None:
    def one(model, batch: int) -> dict:
        if model.name == "linearvit_tiny" and batch > 2:
            raise torch.OutOfMemoryError("none left")
        return {"batch": batch, "images_per_s": 10.0 * batch, "peak_GiB": 1.0}

    rows = Bench(tiny_plan(), torch.device("cpu")).together(8, one)
    assert {row["batch"] for row in rows} == {2}
    note = "linearvit_tiny out of memory at batch 8; linearvit_tiny out of memory at batch 4"
    assert all(row["note"] == note for row in rows)
