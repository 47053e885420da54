"""What a study reads: the folder itself where it is small, else few and small folders."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mixlab.data.images import parse_source
from mixlab.run.files import read_json
from mixlab.studies import folders


def paint(place: Path, size: tuple[int, int], colour: tuple[int, int, int] = (200, 30, 60)) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(place)


def test_a_small_folder_with_both_parts_is_read_as_it_is(tmp_path: Path) -> None:
    for part in ("train", "val"):
        for name in "ab":
            paint(tmp_path / "photos" / part / name / "1.png", (112, 150))
    assert folders.prepare(tmp_path / "photos", tmp_path / "out", workers=1) == str(tmp_path / "photos")
    assert not (tmp_path / "out").exists()
    paint(tmp_path / "flat" / "1.png", (64, 64))
    assert folders.prepare(tmp_path / "flat", tmp_path / "out", workers=1) == str(tmp_path / "flat")


def test_large_images_are_copied_small_and_keep_their_shape_and_colour(tmp_path: Path) -> None:
    for name in "ab":
        for number in range(10):
            paint(tmp_path / "photos" / name / f"{number}.png", (600, 400))
        paint(tmp_path / "photos" / name / "small.png", (90, 90))
        (tmp_path / "photos" / name / "torn.jpg").write_bytes(b"not an image")
    data = folders.prepare(tmp_path / "photos", tmp_path / "out", workers=2)
    train, val = (parse_source(data, split=part) for part in ("train", "val"))
    assert (len(train), len(val), train.classes) == (18, 6, ("a", "b"))
    assert read_json(tmp_path / "out" / "split.json") == {
        "data": str(tmp_path / "photos"), "short_side": 128, "train": 18, "val": 6
    }  # fmt: skip
    sizes = {}
    for file in (tmp_path / "out").rglob("*.jpg"):
        if not file.is_symlink():
            with Image.open(file) as image:
                sizes[file.name] = image.size
                assert np.abs(np.asarray(image, dtype=int) - (200, 30, 60)).max() <= 3
    assert set(sizes.values()) == {(192, 128)}
    assert {file.name for file in (tmp_path / "out").rglob("*") if file.is_symlink()} == {"small.png", "torn.jpg"}
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("*.jpg") if not file.is_symlink()}
    assert folders.prepare(tmp_path / "photos", tmp_path / "out", workers=1) == data
    assert before == {file: file.stat().st_mtime_ns for file in before}, "made twice"


def test_of_many_images_some_of_every_class_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "MOST", {"train": 8, "val": 4})
    for part, number in (("train", 10), ("val", 6)):
        for name in "abcd":
            for index in range(number):
                paint(tmp_path / "photos" / part / name / f"{index}.png", (32, 32))
    data = folders.prepare(tmp_path / "photos", tmp_path / "out", workers=1)
    for part, most in (("train", 8), ("val", 4)):
        source = parse_source(data, split=part)
        assert len(source) == most
        assert [source.label(index) for index in range(most)] == sorted([0, 1, 2, 3] * (most // 4))


@pytest.mark.parametrize("name", ["1.jpg", "1.png"])
def test_no_photograph_is_written_through_a_link_to_it(name: str, tmp_path: Path) -> None:
    photo, link = tmp_path / "photos" / "a" / name, tmp_path / "out" / "train" / "a" / "1.jpg"
    paint(photo, (600, 400))
    other = tmp_path / "other.jpg"  # what an earlier start, killed before its end, linked to
    paint(other, (90, 90))
    before = {file: file.read_bytes() for file in (photo, other)}
    link.parent.mkdir(parents=True)
    for target in (photo, other):
        place = link if name == link.name else link.with_name(f"{name}.jpg")
        place.unlink(missing_ok=True)
        place.symlink_to(target)
        folders._copy(photo, link.with_name(name))
        assert {file: file.read_bytes() for file in before} == before, "a photograph was overwritten"
        assert not place.is_symlink()
        with Image.open(place) as image:
            assert image.size == (192, 128)
        assert [file.name for file in link.parent.iterdir()] == [place.name]


def test_what_was_copied_large_and_is_small_now_becomes_a_link(tmp_path: Path) -> None:
    photo, place = tmp_path / "photos" / "1.jpg", tmp_path / "out" / "1.jpg"
    paint(photo, (600, 400))
    folders._copy(photo, place)
    paint(photo, (90, 90))
    folders._copy(photo, place)
    assert place.is_symlink() and place.resolve() == photo
