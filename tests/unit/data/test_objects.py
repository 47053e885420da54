"""COCO files and shapes as objects to learn from, and what is said of files that are not whole."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from pycocotools import mask as oracle_mask
from pycocotools.coco import COCO

from mixlab.data.decode import UnreadableImage
from mixlab.data.objects import CocoObjects, Objects, ObjectSource, ShapeObjects, instances_file, parse_objects
from mixlab.data.shapes import Shapes
from tests.coco_folder import draw_coco
from tests.photographs import PHOTOGRAPHS, needs_photographs

COCO_SAMPLE = PHOTOGRAPHS / "coco"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    draw_coco(tmp_path)
    return tmp_path


def whole(folder: Path) -> CocoObjects:
    return CocoObjects(folder / "instances.json")


def read(source: ObjectSource, index: int) -> tuple[torch.Tensor, Objects]:
    sample = source.load(index)
    return sample.image, sample.objects()


def test_categories_with_gaps_become_consecutive_classes(folder):
    source = whole(folder)
    assert source.classes == ("cat", "kite", "brush")
    assert source.class_ids == (3, 17, 90)
    _, objects = read(source, 0)
    assert objects.classes.tolist() == [1, 0]  # 17 is the second of 3, 17, 90


def test_boxes_and_masks_of_polygons_and_run_lengths_agree(folder):
    for index in (0, 1, 2):
        image, objects = read(whole(folder), index)
        assert objects.masks.shape[1:] == image.shape[1:]
        for box, mask in zip(objects.boxes, objects.masks, strict=True):
            rows, columns = mask.nonzero(as_tuple=True)
            around = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            assert box.tolist() == [float(edge) for edge in around]


def test_crowds_are_not_learnt_but_stay_in_the_truth(folder):
    source = whole(folder)
    assert len(source.load(1).objects().boxes) == 1
    assert sum(entry["iscrowd"] for entry in instances_file(source)["annotations"]) == 1


def test_an_image_without_objects_is_an_image_with_none(folder):
    image, objects = read(whole(folder), 4)
    assert image.shape == (3, 44, 44)
    assert objects.boxes.shape == (0, 4) and objects.masks.shape == (0, 44, 44)


def test_thin_objects_are_left_out_and_boxes_end_at_the_border(folder):
    _, objects = read(whole(folder), 3)
    assert objects.boxes.tolist() == [[30.0, 30.0, 50.0, 50.0]]


def test_pycocotools_takes_the_truth_of_a_file_without_ids_and_areas(folder, capsys):
    api = COCO()
    api.dataset = instances_file(whole(folder))
    api.createIndex()
    assert len(api.anns) == 7 and 0 not in api.anns
    assert api.anns[1]["area"] == 600


def test_without_a_split_every_fifth_image_is_held_out(folder):
    train, val = parse_objects(str(folder)), parse_objects(str(folder), split="val")
    assert [val.name(index) for index in range(len(val))] == ["0.png"]
    assert {train.name(index) for index in range(len(train))} == {"1.png", "2.png", "3.png", "4.png"}
    assert [image["id"] for image in instances_file(val)["images"]] == [100]
    assert {entry["image_id"] for entry in instances_file(val)["annotations"]} == {100}


def test_images_without_objects_can_be_left_out(folder):
    source = parse_objects(str(folder), keep_empty=False)
    assert [source.name(index) for index in range(len(source))] == ["1.png", "2.png", "3.png"]


def test_the_official_layout_has_its_own_splits(tmp_path):
    draw_coco(tmp_path, name="annotations/instances_train2017.json", images="train2017")
    draw_coco(tmp_path, name="annotations/instances_val2017.json", images="val2017")
    for split in ("train", "val"):
        source = parse_objects(str(tmp_path), split=split)
        assert len(source) == 5 and source.root.name == f"{split}2017"


@pytest.mark.parametrize("name", ["instances_train2017.json", "instances_trainval2017.json"])
@pytest.mark.parametrize("as_file", [False, True])
def test_no_image_is_trained_on_and_validated_on_where_one_file_is_all(tmp_path, name, as_file):
    draw_coco(tmp_path, name=name)
    place = tmp_path / name if as_file else tmp_path
    train, val = (parse_objects(str(place), split=split) for split in ("train", "val"))
    names = [{part.name(index) for index in range(len(part))} for part in (train, val)]
    assert names == [{"1.png", "2.png", "3.png", "4.png"}, {"0.png"}]


def test_a_file_for_validation_is_whole_and_not_trained_on(tmp_path):
    draw_coco(tmp_path, name="instances_val.json")
    for place in (tmp_path, tmp_path / "instances_val.json"):
        assert len(parse_objects(str(place), split="val")) == 5
        with pytest.raises(FileNotFoundError, match="instances_val.json is for validation"):
            parse_objects(str(place))


def broken(folder: Path, change) -> None:
    content = json.loads((folder / "instances.json").read_text())
    change(content)
    (folder / "instances.json").write_text(json.dumps(content))


def test_an_object_of_an_unlisted_category_or_image_is_named(folder):
    broken(folder, lambda content: content["annotations"][0].update(category_id=55))
    with pytest.raises(ValueError, match="category 55, which the file's categories do not list"):
        parse_objects(str(folder))
    broken(folder, lambda content: content["annotations"][0].update(category_id=3, image_id=999))
    with pytest.raises(ValueError, match=r"annotations\[0\] has image_id 999, which no image has"):
        parse_objects(str(folder))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), None, "7", True, 10**400])
def test_a_box_that_is_not_four_finite_numbers_is_refused_by_the_name_of_its_image(folder, number):
    broken(folder, lambda content: content["annotations"][6]["bbox"].__setitem__(2, number))
    for keep_empty in (True, False):  # such an image used to be left out
        with pytest.raises(ValueError, match=r"instances.json: annotations\[6\] \(of \d.png\) has bbox .*; correct it"):
            parse_objects(str(folder), keep_empty=keep_empty)


def test_images_whose_objects_cannot_be_learnt_from_are_left_out_by_name(folder):
    broken(folder, lambda content: [e.pop("segmentation") for e in content["annotations"] if e["image_id"] == 101])
    with pytest.warns(UserWarning, match=r"1 image is left out, as all their objects .*: 1\.png"):
        source = parse_objects(str(folder), keep_empty=False)
    assert [source.name(index) for index in range(len(source))] == ["2.png", "3.png"]


def test_a_broken_mask_makes_its_image_unreadable_by_name(folder):
    broken(folder, lambda content: content["annotations"][0].update(segmentation=[[1, 2, 3]]))
    with pytest.raises(UnreadableImage, match="0.png: its annotations hold a polygon of 3 numbers"):
        read(whole(folder), 0)


def test_a_broken_mask_never_reaches_the_scoring(folder):
    strange = (
        [[1, 2, 3]],
        [[1, 2, 3, 4, None, 6]],
        [["1", "2", "3", "4", "5", "6"]],
        [7],
        {"size": [9, 9], "counts": [81]},
    )
    for segmentation in (*strange, "here", {"size": 4}):
        broken(folder, lambda content, one=segmentation: content["annotations"][0].update(segmentation=one))
        with pytest.raises(ValueError, match=r"instances.json: an annotation of 0.png holds .*; correct it"):
            instances_file(whole(folder))


def test_a_broken_mask_of_a_validation_image_is_refused_when_the_set_is_opened(folder):
    broken(folder, lambda content: content["annotations"][0].update(segmentation=[[1, 2, 3, float("nan"), 5, 6]]))
    parse_objects(str(folder))  # it is no training image
    with pytest.raises(ValueError, match=r"instances.json: an annotation of 0.png holds a polygon .*; correct it"):
        parse_objects(str(folder), split="val")


def test_an_image_of_another_size_than_the_file_says_is_unreadable(folder):
    broken(folder, lambda content: content["images"][0].update(width=61))
    with pytest.raises(UnreadableImage, match="60 x 40, its annotations say 61 x 40"):
        read(whole(folder), 0)


def test_wrong_places_get_an_answer(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="not a source of objects"):
        parse_objects("nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(FileNotFoundError, match=r"no instances\*.json"):
        parse_objects(str(empty))
    for file in (folder / "images").iterdir():
        file.unlink()
    with pytest.raises(FileNotFoundError, match="names images such as 0.png"):
        parse_objects(str(folder))
    with pytest.raises(ValueError, match="there is no option 'sise'"):
        parse_objects("shapes:sise=3")
    broken(folder, lambda content: content.update(images=[], annotations=[]))
    with pytest.raises(ValueError, match="lists no images"):
        parse_objects(str(folder))


def test_shapes_truth_says_what_the_scenes_show():
    source = ShapeObjects(Shapes(size=32, num_images=6, split="val"))
    truth = instances_file(source)
    assert [image["id"] for image in truth["images"]] == [1, 2, 3, 4, 5, 6]
    for index in range(6):
        scene = source.shapes.scene(index)
        own = [entry for entry in truth["annotations"] if entry["image_id"] == index + 1]
        assert [entry["category_id"] - 1 for entry in own] == scene.classes.tolist()
        for entry, mask in zip(own, scene.instances.numpy(), strict=True):
            assert np.array_equal(oracle_mask.decode(entry["segmentation"]).astype(bool), mask)
            assert entry["bbox"] == pytest.approx(oracle_mask.toBbox(entry["segmentation"]).tolist())
            assert entry["area"] == mask.sum()


@needs_photographs
def test_the_real_sample_reads_as_pycocotools_reads_it(capsys):
    source = CocoObjects(COCO_SAMPLE / "instances.json")
    oracle = COCO(str(COCO_SAMPLE / "instances.json"))
    assert len(source.classes) == 80 and max(source.class_ids) == 90
    for index in range(0, len(source), 27):
        image, objects = read(source, index)
        theirs = [
            entry
            for entry in oracle.imgToAnns[source.load(index).number]
            if not entry["iscrowd"] and min(entry["bbox"][2:]) >= 1
        ]
        assert len(objects.boxes) == len(theirs)
        assert objects.masks.shape == (len(theirs), *image.shape[1:])
        for mask, entry in zip(objects.masks.numpy(), theirs, strict=True):
            reference = oracle.annToMask(entry).astype(bool)
            differing = (mask != reference).sum()
            assert differing <= 0.02 * reference.sum() + 3 * np.sqrt(reference.sum())  # outlines round differently
