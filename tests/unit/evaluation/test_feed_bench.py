"""The benchmark of feeding runs in small, on files that the commands read as they were drawn."""

import json
from pathlib import Path

import pytest

from mixlab.bench.drawn_files import draw_scenes, write_classes, write_label_maps, write_objects, write_shards
from mixlab.bench.feed import KINDS
from mixlab.commands.answer import Answer
from mixlab.commands.bench import bench
from mixlab.data import parse_source
from mixlab.data.mask_formats import parse_label_maps
from mixlab.data.objects import parse_objects
from tests.waiting import holds_once


def test_every_kind_of_run_is_measured_from_files_and_alone(tmp_path: Path) -> None:
    def measure(attempt: int) -> None:
        bench("feed", Answer(json=str(tmp_path / "feed.json")), quick=True)
        (rows,) = json.loads((tmp_path / "feed.json").read_text())["tables"].values()
        assert [row["run"] for row in rows] == [kind.name for kind in KINDS]
        assert not [row["note"] for row in rows if "not measured" in row["note"]]
        for row in rows:
            assert row["from_files"] > 0 and row["step_alone"] > 0, row
            assert row["share"] == pytest.approx(row["from_files"] / row["step_alone"])
            assert 0 < row["waiting"] < 1, row
        waiting = {row["run"]: row["waiting"] for row in rows}
        assert waiting["DINO, resident"] < waiting["UperNet"]  # the one reads nothing, the other whole images
        seconds = [sum(1 / row[part] for row in rows) for part in ("step_alone", "from_files")]
        assert seconds[0] / seconds[1] < 1.2  # of all together: single rows are of a few steps

    holds_once(measure)


def test_each_layout_holds_all_files_with_their_labels(tmp_path: Path) -> None:
    scenes = draw_scenes(tmp_path / "scenes", 2)
    folder = parse_source(write_classes(scenes, tmp_path / "classes", 5))
    shards = parse_source(write_shards(scenes, tmp_path / "shards", 5))
    assert len(folder) == len(shards) == 5
    names = sorted(folder.classes[label] for label in folder.labels().tolist())
    maps = parse_label_maps(write_label_maps(scenes, tmp_path / "maps", 5))
    objects = parse_objects(write_objects(scenes, tmp_path / "objects", 5))
    assert len(maps) == len(objects) == 4  # one of five, the first, is held out
    assert sorted(objects.classes[label] for label in shards.labels().tolist()) == names
    for index in range(2):
        pair, (boxes, classes, masks) = maps.load(index), objects.load(index).objects()
        assert pair.image.shape == (3, 375, 500) and pair.image.equal(shards.load(index + 1))
        assert set(pair.mask.unique().tolist()) == {0, *(classes + 1).tolist()}
        assert (pair.mask > 0).equal(masks.any(0))
        for mask, (left, top, right, bottom) in zip(masks, boxes.int().tolist(), strict=True):
            assert mask.sum() == mask[top:bottom, left:right].sum() and mask[top].any() and mask[:, right - 1].any()
