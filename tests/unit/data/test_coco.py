"""COCO's JSON, polygons and run lengths against independent spellings of the same masks."""

import json
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw
from pycocotools import mask as oracle

from mixlab.data.coco import decode_segmentation, encode_mask, fill_polygon, read_coco
from tests.coco_folder import run_lengths
from tests.photographs import PHOTOGRAPHS, needs_photographs

INSTANCES = PHOTOGRAPHS / "coco" / "instances.json"


def packed(mask: np.ndarray) -> dict[str, object]:
    return oracle.encode(np.asfortranarray(mask.astype(np.uint8)))


masks = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32 - 1), st.floats(0, 1)).map(
    lambda t: np.random.default_rng(t[2]).random((t[0], t[1])) < t[3]
)


@given(masks)
@settings(max_examples=60, deadline=None)
def test_both_spellings_of_run_lengths_give_the_mask_back(mask):
    counts = packed(mask)["counts"]
    for spelling in (run_lengths(mask), counts, counts.decode()):
        assert np.array_equal(decode_segmentation({"size": [*mask.shape], "counts": spelling}, *mask.shape), mask)
    assert encode_mask(torch.from_numpy(mask)) == {"size": [*mask.shape], "counts": counts.decode()}


def test_long_runs_survive_packing():
    mask = np.zeros((700, 900), dtype=bool)
    mask[3:650, 100:870] = True
    assert np.array_equal(decode_segmentation(packed(mask), 700, 900), mask)
    assert encode_mask(torch.from_numpy(mask))["counts"] == packed(mask)["counts"].decode()


def test_a_polygon_covers_the_pixels_whose_centre_it_covers():
    assert fill_polygon(np.array([[1, 1], [4, 1], [4, 3], [1, 3]], float), 5, 6).astype(int).tolist() == [
        [0, 0, 0, 0, 0, 0],
        [0, 1, 1, 1, 0, 0],
        [0, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
    ]


def test_polygons_agree_with_a_finely_drawn_picture():
    for seed in range(6):
        random = np.random.default_rng(seed)
        angles = np.sort(random.random(9)) * 2 * np.pi
        points = 20 + (6 + 12 * random.random((9, 1))) * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        fine = Image.new("L", (40 * 16, 40 * 16))
        ImageDraw.Draw(fine).polygon([tuple(point) for point in points * 16], fill=255)
        cover = np.asarray(fine).reshape(40, 16, 40, 16).mean(axis=(1, 3)) / 255
        ours = fill_polygon(points, 40, 40)
        assert ours[cover > 0.95].all() and not ours[cover < 0.05].any(), seed
        assert abs(ours.sum() - cover.sum()) < 0.03 * cover.sum(), seed


def test_polygons_outside_the_image_are_cut_and_several_are_joined():
    inside = decode_segmentation([[-5, -5, 2, -5, 2, 2, -5, 2], [3, 3, 99, 3, 99, 99, 3, 99]], 4, 5)
    assert inside.astype(int).tolist() == [[1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 1, 1]]


@pytest.mark.parametrize(
    ("segmentation", "message"),
    [
        ([[1, 2, 3, 4]], "4 numbers"),
        ([[1, 2, 3, 4, float("nan"), 6]], "finite"),
        ({"size": [2, 2], "counts": [1, 2]}, "3 of 4"),
        ({"size": [2, 2], "counts": [5, -1]}, "4"),
        ({"size": [3, 2], "counts": [6]}, "size"),
        ({"size": [2, 2], "counts": "\x7f\x01"}, "alphabet"),
        ({"size": [2, 2], "counts": "P"}, "end in the middle"),
        (None, "neither"),
    ],
)
def test_broken_segmentations_are_value_errors(segmentation, message):
    with pytest.raises(ValueError, match=message):
        decode_segmentation(segmentation, 2, 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[1]", "no list 'images'"),
        ('{"images": [], "annotations": {}, "categories": []}', "no list 'annotations'"),
        ('{"images": [{"id": 1}], "annotations": [], "categories": []}', "file_name"),
        ('{"images": [], "annotations": [{"image_id": 9, "bbox": [0, 0, 1, 1]}], "categories": []}', "category_id"),
    ],
)
def test_broken_files_are_answered_with_what_is_missing(tmp_path, content, message):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_coco(tmp_path / "x.json")


IMAGE = {"id": 1, "file_name": "a.jpg", "height": 4, "width": 4}
ENTRY = {"image_id": 1, "category_id": 1, "bbox": [0, 0, 1, 1]}


@pytest.mark.parametrize(
    ("part", "entries", "message"),
    [
        ("images", [IMAGE, {**IMAGE, "file_name": "b.jpg"}], r"images\[1\] has id 1, as a.jpg has"),
        ("images", [{**IMAGE, "id": 1.5}], r"images\[0\] has id 1.5, not a whole number"),
        ("images", [{**IMAGE, "width": float("inf")}], r"images\[0\] has width inf, not a whole number"),
        ("images", [{**IMAGE, "height": 0}], r"images\[0\] is 4 x 0 pixels"),
        ("images", [{**IMAGE, "height": 10**9}], r"images\[0\] is 4 x 1000000000 pixels"),
        ("images", [{**IMAGE, "file_name": None}], r"images\[0\] has file_name None"),
        ("images", [IMAGE, 7], r"images\[1\] is 7, not an object"),
        ("categories", [{"id": 1, "name": "cat"}, {"id": 1, "name": "dog"}], r"categories\[1\] has id 1, as cat has"),
        ("annotations", [ENTRY, {**ENTRY, "area": "large"}], r"annotations\[1\] \(of a.jpg\) has area 'large'"),
        ("annotations", [{**ENTRY, "area": -1}], r"has area -1, not a finite number from 0 on"),
        ("annotations", [{**ENTRY, "bbox": [3, 0, -2, 1]}], r"has bbox \[3, 0, -2, 1\], whose width or height is neg"),
        ("annotations", [{**ENTRY, "iscrowd": "0"}], r"has iscrowd '0', neither 0 nor 1"),
        ("annotations", [{**ENTRY, "iscrowd": float("nan")}], r"has iscrowd nan, neither 0 nor 1"),
        ("annotations", [{**ENTRY, "bbox": [0, 0, 1]}], r"annotations\[0\] \(of a.jpg\) has bbox \[0, 0, 1\]"),
        ("annotations", [{"image_id": 1, "bbox": [0, 0, 1, 1]}], r"annotations\[0\] lacks 'category_id'"),
    ],
)
def test_the_entry_that_is_wrong_is_named_with_its_value(tmp_path, part, entries, message):
    content = {"images": [IMAGE], "annotations": [], "categories": [{"id": 1, "name": "cat"}], part: entries}
    (tmp_path / "x.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        read_coco(tmp_path / "x.json")


def test_boxes_without_size_or_outside_of_the_image_are_kept_as_in_cocos_own_files(tmp_path):
    boxes = [[0, 0, 0, 1], [1, 1, 1, 0], [9, 9, 1, 1], [-3, 0, 2, 2]]
    entries = [{**ENTRY, "bbox": box, "iscrowd": crowd} for box, crowd in zip(boxes, (0, 1, True, None), strict=True)]
    content = {"images": [IMAGE], "annotations": entries, "categories": [{"id": 1, "name": "cat"}]}
    (tmp_path / "x.json").write_text(json.dumps(content))
    (image,), _ = read_coco(tmp_path / "x.json")
    assert [list(item.box) for item in image.objects] == boxes
    assert [item.is_crowd for item in image.objects] == [False, True, True, False]


def test_a_polygon_of_very_many_points_takes_little_memory_and_is_the_same():
    turn = np.linspace(0, 2 * np.pi, 20_001)[:-1]
    circle = np.stack([1000 + 900 * np.cos(turn), 1000 + 900 * np.sin(turn)], axis=1)
    tracemalloc.start()
    mask = fill_polygon(circle, 2000, 2000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert abs(mask.sum() / (np.pi * 900**2) - 1) < 1e-3
    assert peak < 250e6  # all rows by all edges at once: 1 GB


def test_categories_with_gaps_and_images_without_objects_are_kept(tmp_path):
    content = {
        "images": [{"id": i, "file_name": f"{i}.jpg", "height": 2, "width": 2} for i in (4, 2)],
        "annotations": [{"image_id": 2, "category_id": 90, "bbox": [0, 0, 1, 1], "segmentation": []}],
        "categories": [{"id": 1, "name": "person"}, {"id": 90, "name": "toothbrush"}],
    }
    (tmp_path / "x.json").write_text(json.dumps(content))
    images, categories = read_coco(tmp_path / "x.json")
    assert [(image.number, len(image.objects)) for image in images] == [(4, 0), (2, 1)]
    assert categories == {1: "person", 90: "toothbrush"}


@needs_photographs
def test_real_annotations_have_the_area_and_box_that_the_file_states():
    stated = json.loads(INSTANCES.read_text())["annotations"]
    sizes = {image.number: (image.height, image.width) for image in read_coco(INSTANCES)[0]}
    for entry in stated[::40]:
        height, width = sizes[entry["image_id"]]
        mask = decode_segmentation(entry["segmentation"], height, width)
        assert abs(mask.sum() - entry["area"]) <= max(0.06 * entry["area"], 25)
        if entry["area"] < 200:  # a sliver may cover no pixel centre at its tip
            continue
        rows, columns = np.nonzero(mask)
        left, top, box_width, box_height = entry["bbox"]
        edges = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert np.abs(np.array(edges) - [left, top, left + box_width, top + box_height]).max() <= 3


@needs_photographs
def test_real_masks_agree_with_pycocotools():
    sizes = {image.number: (image.height, image.width) for image in read_coco(INSTANCES)[0]}
    for entry in json.loads(INSTANCES.read_text())["annotations"][::25]:
        height, width = sizes[entry["image_id"]]
        segmentation = entry["segmentation"]
        if isinstance(segmentation, list):
            segmentation = oracle.merge(oracle.frPyObjects(segmentation, height, width))
        elif isinstance(segmentation["counts"], list):
            segmentation = oracle.frPyObjects(segmentation, height, width)
        expected = oracle.decode(segmentation).astype(bool)
        ours = decode_segmentation(entry["segmentation"], height, width)
        assert (ours ^ expected).sum() <= 0.05 * expected.sum() + 12
