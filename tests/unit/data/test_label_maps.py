"""Label maps: every layout, its splits, and what is wrong with files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mixlab.data.decode import UnreadableImage
from mixlab.data.mask_formats import parse_label_maps
from mixlab.data.source import at_most
from tests.photographs import PHOTOGRAPHS, needs_photographs


def save(path: Path, values: list[list[int]] | np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.array(values, dtype=np.uint8)).save(path)


def save_pair(root: Path, masks: str, stem: str, values: list[list[int]], part: str = "") -> None:
    save(root / "images" / part / f"{stem}.png", np.zeros((*np.shape(values), 3)))
    save(root / masks / part / f"{stem}.png", values)


def test_annotations_count_from_one_and_leave_zero_out(tmp_path: Path) -> None:
    (tmp_path / "objectInfo3.txt").write_text("Idx\tRatio\tName\n1\t0.5\twall\n2\t0.2\tsky, heaven\n3\t0.1\ttree\n")
    for part in ("training", "validation"):
        save_pair(tmp_path, "annotations", f"in_{part}", [[0, 1], [2, 3]], part)
    for split, part in (("train", "training"), ("val", "validation")):
        source = parse_label_maps(str(tmp_path), split=split)
        assert source.classes == ("wall", "sky, heaven", "tree")
        assert (len(source), source.name(0)) == (1, f"in_{part}.png")
        assert source.load(0).mask.tolist() == [[255, 0], [1, 2]]


def test_labels_count_from_zero_and_leave_255_out(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("0\tground\n1\tcat\n255\tvoid\n")
    for index in range(11):
        save_pair(tmp_path, "labels", f"{index:02d}", [[0, 1], [255, index % 2]])
    train, val = (parse_label_maps(str(tmp_path), split=split) for split in ("train", "val"))
    assert train.classes == ("ground", "cat")
    assert train.load(0).mask.tolist() == [[0, 1], [255, 1]]
    names = [{part.name(i) for i in range(len(part))} for part in (train, val)]
    assert [len(part) for part in names] == [8, 3] and not names[0] & names[1]


def test_voc_takes_its_own_lists(tmp_path: Path) -> None:
    for stem in ("2007_1", "2007_2", "2007_3"):
        save(tmp_path / "JPEGImages" / f"{stem}.jpg", np.zeros((2, 2, 3)))
        save(tmp_path / "SegmentationClass" / f"{stem}.png", [[0, 20], [255, 1]])
    lists = tmp_path / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("2007_1\n2007_3\n")
    (lists / "val.txt").write_text("2007_2\n")
    train, val = (parse_label_maps(str(tmp_path), split=split) for split in ("train", "val"))
    assert (len(train), len(val), len(train.classes)) == (2, 1, 21)
    assert (train.name(1), val.name(0)) == ("2007_3.jpg", "2007_2.jpg")


def test_shapes_have_the_ground_and_every_kind() -> None:
    source = parse_label_maps("shapes:n=30,size=32")
    pair = source.load(3)
    assert len(source.classes) == 11 and pair.mask.shape == (32, 32)
    assert torch.equal(pair.mask > 0, source.shapes.scene(3).foreground.bool())
    assert parse_label_maps("shapes:n=30,size=32", split="val").name(0) != source.name(0)


def test_a_few_images_are_spread_evenly() -> None:
    source = at_most(parse_label_maps("shapes:n=30,size=8"), 3)
    assert [source.name(index) for index in range(len(source))] == [f"shapes/train/0/{i}" for i in (0, 10, 20)]


@pytest.mark.parametrize(
    ("masks", "values", "says"),
    [("annotations", [[0, 4], [1, 1]], "the label 4 is unknown: labels are 1 to 3"),
     ("labels", [[0, 3], [1, 1]], "the label 3 is unknown: labels are 0 to 2, and 255"),
     ("labels", [[0, 1, 2], [0, 1, 2], [0, 0, 0], [0, 0, 0]], "another shape")],
)  # fmt: skip
def test_a_mask_that_does_not_fit_is_told_by_name(tmp_path: Path, masks: str, values, says: str) -> None:
    (tmp_path / "classes.txt").write_text("a\nb\nc\n")
    for stem in ("x", "y"):
        save(tmp_path / "images" / f"{stem}.png", np.zeros((2, 2, 3)))
        save(tmp_path / masks / f"{stem}.png", values)
    with pytest.raises(UnreadableImage, match=says) as error:
        parse_label_maps(str(tmp_path)).load(0)
    assert "y.png" in str(error.value)


def test_what_is_no_set_of_label_maps_is_answered_with_the_layouts(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nor an existing folder"):
        parse_label_maps(str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="images/ beside annotations/"):
        parse_label_maps(str(tmp_path))
    save_pair(tmp_path, "labels", "x", [[0]])
    with pytest.raises(FileNotFoundError, match="write classes.txt"):
        parse_label_maps(str(tmp_path))
    (tmp_path / "classes.txt").write_text("only\n")
    with pytest.raises(ValueError, match="names 1 classes; give 2 to 255"):
        parse_label_maps(str(tmp_path))
    with pytest.raises(ValueError, match="choose train or val"):
        parse_label_maps("shapes", split="test")


def test_a_validation_part_alone_is_not_trained_on(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("a\nb\n")
    save_pair(tmp_path, "annotations", "x", [[1]], "validation")
    assert len(parse_label_maps(str(tmp_path), split="val")) == 1
    with pytest.raises(FileNotFoundError, match="has validation to validate on, but no training part"):
        parse_label_maps(str(tmp_path), split="train")


@pytest.mark.parametrize("as_list", [False, True])
def test_a_training_part_alone_is_cut_in_two(tmp_path: Path, as_list: bool) -> None:
    for stem in "abcdef":
        save(tmp_path / "JPEGImages" / ("" if as_list else "train") / f"{stem}.jpg", np.zeros((1, 1, 3)))
        save(tmp_path / "SegmentationClass" / ("" if as_list else "train") / f"{stem}.png", [[0]])
    lists = tmp_path / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    if as_list:
        save(tmp_path / "JPEGImages" / "0.jpg", np.zeros((1, 1, 3)))
        save(tmp_path / "SegmentationClass" / "0.png", [[0]])
        (lists / "train.txt").write_text("\n".join("abcdef"))
    train, val = (parse_label_maps(str(tmp_path), split=split) for split in ("train", "val"))
    assert [val.name(index) for index in range(len(val))] == ["a.jpg", "f.jpg"]
    assert [train.name(index) for index in range(len(train))] == ["b.jpg", "c.jpg", "d.jpg", "e.jpg"]


@needs_photographs
@pytest.mark.parametrize(("folder", "num", "num_classes"), [("semantic", 20, 129), ("ade20k_sample", 3, 150),
                                                            ("voc", 86, 21)])  # fmt: skip
def test_real_photographs_are_read_with_their_classes(folder: str, num: int, num_classes: int) -> None:
    source = parse_label_maps(str(PHOTOGRAPHS / folder), split="val")
    assert (len(source), len(source.classes)) == (num, num_classes)
    for index in range(min(num, 5)):
        pair = source.load(index)
        assert pair.image.shape[1:] == pair.mask.shape
        counted = pair.mask[pair.mask != 255]
        assert len(counted) and int(counted.max()) < num_classes


@needs_photographs
def test_labels_of_ade20k_are_those_of_the_files_less_one() -> None:
    source = parse_label_maps(str(PHOTOGRAPHS / "ade20k_sample"), split="val")
    stored = np.array(Image.open(PHOTOGRAPHS / "ade20k_sample" / "annotations" / "validation" / "ADE_val_00000001.png"))
    assert np.array_equal(source.load(0).mask.numpy(), (stored.astype(int) - 1) % 256)
    assert source.classes[0] == "wall" and source.classes[-1].startswith("flag")
