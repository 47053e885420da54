"""Folders, shards, and the names that people type for them."""

import io
import os
import shutil
import tarfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mixlab.data import ImageFolder, Shapes, Subset, TarShards, UnreadableImage, folder_index, parse_source
from mixlab.data.folder_index import PathTable, list_images, scan_folder
from mixlab.data.index_file import (
    StoredIndex,
    cache_folder,
    index_file,
    read_index,
    trusting_indexes,
    write_index,
)
from mixlab.data.labelled import Relabelled, labelled_splits
from mixlab.data.mask_formats import parse_images_or_masks, parse_label_maps
from mixlab.data.shards import expand_pattern
from mixlab.data.source import part_of
from mixlab.errors import InputError
from mixlab.run import RunDirectory
from tests.drawn_folders import draw_folders


def save(path: Path, value: int = 100, size: tuple[int, int] = (20, 12)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, value, value)).save(path)


def png(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (9, 7), (value, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def settle(root: Path) -> None:
    """Folders changed a moment ago are not trusted; pretend they changed an hour ago."""
    for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
        os.utime(folder, (time.time() - 3600,) * 2)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tmp_path / "my photos"
    save(root / "cats" / "été à la plage.JPG", 10)
    save(root / "cats" / "deep" / "er" / "b.png", 20)
    save(root / "dogs" / "猫ではない.webp", 30)
    save(root / "dogs" / ".hidden.jpg", 40)
    save(root / ".trash" / "x.jpg", 50)
    (root / "dogs" / "notes.txt").write_text("no image")
    (root / "dogs" / "broken.jpg").write_bytes(b"not a jpeg")
    return root


def test_sub_folders_are_classes_and_other_files_are_left_out(photos):
    source = ImageFolder(photos)
    assert source.classes == ("cats", "dogs")
    assert source.paths == ["cats/deep/er/b.png", "cats/été à la plage.JPG", "dogs/broken.jpg", "dogs/猫ではない.webp"]
    assert source.labels().tolist() == [0, 0, 1, 1]
    assert source.load(0).shape == (3, 12, 20) and int(source.load(0)[0, 0, 0]) == 20
    with pytest.raises(UnreadableImage, match=r"broken\.jpg"):
        source.load(2)


def test_a_folder_with_images_in_it_has_no_classes(tmp_path):
    save(tmp_path / "a.jpg")
    save(tmp_path / "more" / "b.jpg")
    source = ImageFolder(tmp_path)
    assert source.classes == () and source.labels().tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("images", "masks"),
    [("images", "masks"), ("imgs", "gt"), ("images", "labels"), ("images", "annotations"),
     ("JPEGImages", "SegmentationClass")],
)  # fmt: skip
def test_of_images_beside_masks_only_the_images_are_read_and_have_no_classes(images, masks, tmp_path):
    for name in ("a.png", "b.png"):
        save(tmp_path / images / "sub" / name, 10)
        save(tmp_path / masks / "sub" / name, 20)
    for source in (ImageFolder(tmp_path), parse_source(str(tmp_path))):
        assert source.paths == ["sub/a.png", "sub/b.png"] and source.root == tmp_path / images
        assert source.classes == () and source.labels().tolist() == [-1, -1]
        assert int(source.load(0)[0, 0, 0]) == 10


def test_images_beside_masks_may_have_parts_for_the_splits(tmp_path):
    for part in ("training", "validation"):
        for folder in ("images", "annotations"):
            save(tmp_path / folder / part / f"{part}.png")
    for split in ("train", "val"):
        source = parse_source(str(tmp_path), split=split)
        assert [path[: len(split)] for path in source.paths] == [split] and source.classes == ()


@pytest.mark.parametrize("names", [("images", "cats"), ("masks", "cats"), ("gt", "labels")])
def test_classes_that_are_called_like_one_of_the_pair_stay_classes(names, tmp_path):
    for name in names:
        save(tmp_path / name / "a.png")
    assert ImageFolder(tmp_path).classes == tuple(sorted(names))


def test_pictures_that_commands_drew_into_a_run_below_are_not_images(photos):
    before, run = ImageFolder(photos), RunDirectory(photos / "runs" / "look")
    settle(photos)
    run.write_result("maps", {"kind": "maps"})
    save(run.figure_path("maps.png"))
    assert ImageFolder(photos).paths == before.paths and ImageFolder(photos).classes == ("cats", "dogs")
    save(photos / "figures" / "a.png")
    save(photos / "results" / "b.png")
    assert ImageFolder(photos).classes == ("cats", "dogs", "figures", "results")


def test_why_images_have_no_class_is_said(photos):
    save(photos / "stray.jpg")
    with pytest.raises(InputError, match=r"has images beside its 2 class folders, such as stray\.jpg: .* move them"):
        labelled_splits(str(photos))
    with pytest.raises(InputError, match=r"stray\.jpg is one image, without a class; give a folder"):
        labelled_splits(f"{photos}/stray.jpg")


def test_an_empty_folder_is_refused(tmp_path):
    (tmp_path / "readme.txt").write_text("nothing here")
    with pytest.raises(FileNotFoundError, match=r"no images.*\.jpg"):
        ImageFolder(tmp_path)


def test_fitted_images_have_one_size_and_remember_their_own(photos):
    image, own = ImageFolder(photos).load_fitted(0, 8, "squash")
    assert image.shape == (3, 8, 8) and own == (12, 20)


def test_the_index_is_read_back_and_notices_every_change(photos):
    ImageFolder(photos)
    settle(photos)
    ImageFolder(photos)
    index = index_file("folder", photos, None)
    stored = read_index(index)
    names = np.array(stored.arrays["names"])
    names[:3] = np.frombuffer(b"old", np.uint8)
    write_index(index, StoredIndex(stored.about, {**stored.arrays, "names": names}))
    assert "/old" in ImageFolder(photos).paths[0], "the cache was not used"
    save(photos / "cats" / "new.png")
    paths = ImageFolder(photos).paths
    assert "cats/new.png" in paths and not any("/old" in path for path in paths)
    settle(photos)
    ImageFolder(photos)
    save(photos / "birds" / "c.png")
    assert ImageFolder(photos).classes == ("birds", "cats", "dogs")


def test_a_file_that_arrives_right_after_indexing_is_seen(photos):
    for number in range(5):
        ImageFolder(photos)
        save(photos / "cats" / f"late {number}.png")
        assert f"cats/late {number}.png" in ImageFolder(photos).paths


def test_a_damaged_index_is_built_again(photos):
    ImageFolder(photos)
    settle(photos)
    paths, index = list(ImageFolder(photos).paths), index_file("folder", photos, None)
    good = index.read_bytes()
    for content in (b"", b"{", b"[]", good[:-1], good[:100], good[:8], good + b"\0", b"\0" * len(good)):
        index.write_bytes(content)
        assert list(ImageFolder(photos).paths) == paths
    for change in ({"run_folders": [7, 7]}, {"run_starts": [0, 9]}, {"run_bases": [5, 0]}, {"folder_ends": [0]}):
        stored = read_index(index)
        arrays = {name: np.array(change.get(name, part), dtype=part.dtype) for name, part in stored.arrays.items()}
        write_index(index, StoredIndex(stored.about, arrays))
        assert list(ImageFolder(photos).paths) == paths


def test_a_table_gives_the_paths_that_sorting_all_of_them_gives(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    parts = ["a", "a.b", "a b", "b", "é", "z" * 40, "b.jpg", "aa"]
    for _ in range(120):
        folder = tmp_path.joinpath(*rng.choice(parts, size=rng.integers(0, 4)))
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(IsADirectoryError):
            (folder / f"{rng.choice(parts)}{rng.choice(['.jpg', '.png', '.txt'])}").touch()
    found = list_images(tmp_path)
    files = (path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".txt")
    expected = sorted(path.relative_to(tmp_path).as_posix() for path in files)
    assert list(found) == expected and found == expected and found[-2:] == expected[-2:]
    assert [found[index] for index in rng.permutation(len(found))[:20]]  # any order
    assert list(PathTable.of(expected)) == expected
    monkeypatch.setattr(folder_index, "_BLOCK", 3)
    assert list(found) == [found[index] for index in range(len(found))] == expected
    assert found.run_lengths().sum() == len(found) == len(expected)


def test_a_digest_tells_of_every_name_and_label(photos, shards):
    def digests(place: Path) -> list[str | None]:
        source = ImageFolder(place)
        return [source.digest(), Subset(source, [0, 1]).digest()]

    seen = [*digests(photos), Subset(ImageFolder(photos), [1, 0]).digest()]
    assert digests(photos) == seen[:2]
    (photos / "cats" / "deep" / "er" / "b.png").rename(photos / "cats" / "deep" / "er" / "c.png")
    seen += digests(photos)
    (photos / "cats").rename(photos / "elks")  # another class, and another order
    seen += [*digests(photos), TarShards(f"{shards}/set-*.tar").digest()]
    assert None not in seen and len(set(seen)) == len(seen) == 8
    assert Relabelled(ImageFolder(photos), ["a", "dogs"]).digest() is None  # its labels are its own
    for source in (ImageFolder(photos), TarShards(f"{shards}/set-*.tar")):
        assert list(source.names()) == [source.name(index) for index in range(len(source))]


def test_an_index_that_another_process_has_just_compared_is_taken_as_it_is(photos):
    paths = list(ImageFolder(photos).paths)
    save(photos / "cats" / "new.png")
    with trusting_indexes():
        assert list(ImageFolder(photos).paths) == paths
    assert "cats/new.png" in ImageFolder(photos).paths


def test_a_folder_takes_four_bytes_an_image_beside_its_name(tmp_path):
    names = [f"{number:06d}.jpg" for number in range(500)]
    (tmp_path / "a").mkdir()
    for name in names:
        (tmp_path / "a" / name).touch()
    ImageFolder(tmp_path)
    assert index_file("folder", tmp_path, None).stat().st_size < 500 * (4 + 10) + 1500


def test_nothing_is_written_beside_the_data(photos, shards, tmp_path, monkeypatch):
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setenv("MIXLAB_CACHE", str(tmp_path.parent / f"{tmp_path.name} cache"))
    ImageFolder(photos)
    TarShards(f"{shards}/set-*.tar")
    assert sorted(tmp_path.rglob("*")) == before
    assert sorted(file.name[:6] for file in cache_folder().iterdir()) == ["folder", "shard-", "shard-", "shard-"]


def test_the_cache_is_where_the_user_says_and_need_not_be_writable(photos, tmp_path, monkeypatch):
    monkeypatch.delenv("MIXLAB_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "mixlab"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "mixlab"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # a user without a home
    assert cache_folder().is_absolute() and "~" not in str(cache_folder())
    (tmp_path / "a file").write_text("in the way")
    for where in (tmp_path / "a file", tmp_path / "a file" / "below"):
        monkeypatch.setenv("MIXLAB_CACHE", str(where))
        assert len(ImageFolder(photos)) == 4
    ImageFolder(photos, cache=tmp_path / "cache")
    assert len(list((tmp_path / "cache").glob("folder-*.index"))) == 1


def test_a_link_back_up_does_not_loop(photos):
    (photos / "cats" / "loop").symlink_to(photos, target_is_directory=True)
    assert len(PathTable(scan_folder(photos))) == 4


def write_shard(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for shard in range(3):
        members: dict[str, bytes] = {}
        for number in range(4):
            members[f"part/{shard}{number}.png"] = png(shard * 10 + number)
            members[f"part/{shard}{number}.cls"] = str(number % 2).encode()
        write_shard(tmp_path / f"set-{shard:03d}.tar", members)
    return tmp_path


def test_shards_are_read_in_any_order_with_their_labels(shards):
    source = TarShards(f"{shards}/set-{{000..002}}.tar")
    assert len(source) == 12 and source.classes == ("0", "1")
    assert [int(source.load(index)[0, 0, 0]) for index in (11, 0, 5)] == [23, 0, 11]
    assert source.labels().tolist() == [0, 1] * 6
    assert source.name(5) == "set-001.tar/part/11"


def test_scores_of_shards_without_labels_say_where_labels_belong(tmp_path):
    write_shard(tmp_path / "set.tar", {f"cat/{number}.png": png(number) for number in range(4)})
    with pytest.raises(ValueError, match=r"has 0 classes; .*: put a class number .*NAME.cls beside NAME.jpg"):
        labelled_splits(f"wds:{tmp_path}/set.tar")


def test_the_second_opening_reads_the_stored_index(shards, monkeypatch):
    first = TarShards(f"{shards}/set-*.tar")
    monkeypatch.setattr("mixlab.data.shards.scan_shard", lambda shard: pytest.fail(f"read {shard} again"))
    assert TarShards(f"{shards}/set-*.tar").keys == first.keys


def test_many_shards_are_indexed_by_several_processes_to_the_same_index(shards, monkeypatch):
    pattern, alone = f"{shards}/set-*.tar", TarShards(f"{shards}/set-*.tar", cache=shards / "alone")
    monkeypatch.setattr("mixlab.data.shards._SHARDS_PER_PROCESS", 1)
    monkeypatch.setattr("mixlab.data.shards.num_cores", lambda: 2)
    together = TarShards(pattern, cache=shards / "together")
    assert together.keys == alone.keys and together.labels().tolist() == alone.labels().tolist()
    assert all(torch.equal(together.load(index), alone.load(index)) for index in range(len(alone)))


def test_a_container_s_quota_limits_the_processes_that_index_shards(shards, monkeypatch):
    monkeypatch.setattr("mixlab.data.shards._SHARDS_PER_PROCESS", 1)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(64)), raising=False)
    monkeypatch.setattr("mixlab.data.cores.cgroup_quota", lambda: (1.0, "container"))
    monkeypatch.setattr("mixlab.data.shards.ProcessPoolExecutor", lambda *_, **__: pytest.fail("more than one process"))
    assert len(TarShards(f"{shards}/set-*.tar"))


def test_a_changed_shard_is_indexed_again(shards):
    TarShards(f"{shards}/set-000.tar")
    write_shard(shards / "set-000.tar", {"only.png": png(7)})
    assert TarShards(f"{shards}/set-000.tar").keys == ["only"]


def test_labels_may_stand_in_json_or_be_absent(tmp_path):
    labels = {"a.json": b'{"label": 3}', "b.json": b'{"url": "x"}'}
    write_shard(tmp_path / "x.tar", {"a.jpg": png(1), "b.jpg": png(2), "c.d.png": png(3), **labels})
    source = TarShards(str(tmp_path / "x.tar"))
    assert source.keys == ["a", "b"] and source.labels().tolist() == [3, -1]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a.jpg": b"x", "a.cls": b"cat"}, "class number"),
        ({"a.jpg": b"x", "a.cls": b"-7"}, "class -7"),
        ({"a.txt": b"x"}, "no images"),
    ],
)
def test_shards_without_proper_samples_are_refused(tmp_path, members, message):
    write_shard(tmp_path / "x.tar", members)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        TarShards(str(tmp_path / "x.tar"))


def test_a_shard_cut_short_is_an_unreadable_image_and_not_a_crash(shards):
    source = TarShards(f"{shards}/set-000.tar")
    whole = (shards / "set-000.tar").read_bytes()
    (shards / "set-000.tar").write_bytes(whole[: int(source._indexes[0].arrays["offsets"][3]) + 10])
    with pytest.raises(UnreadableImage, match="ends after 10"):
        source.load(3)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("set-{000..009}.tar", "set-003.tar"), ("set-{3..1}.tar", "backwards"), ("none-*.tar", "does not exist")],
)
def test_patterns_that_name_missing_shards_are_refused(shards, pattern, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        expand_pattern(f"{shards}/{pattern}")


def test_compressed_and_foreign_files_are_refused_with_a_way_out(tmp_path):
    (tmp_path / "a.tar.gz").write_bytes(b"x")
    (tmp_path / "b.tar").write_bytes(b"this is no tar file at all" * 50)
    with pytest.raises(ValueError, match="gunzip"):
        TarShards(str(tmp_path / "a.tar.gz"))
    with pytest.raises(ValueError, match=r"not a readable tar|b\.tar"):
        TarShards(str(tmp_path / "b.tar"))


def test_braces_list_alternatives(shards):
    found = expand_pattern(f"{shards}/set-{{002,000}}.tar")
    assert [path.name for path in found] == ["set-002.tar", "set-000.tar"]


def test_source_names_mean_what_they_say(photos, shards):
    shapes = parse_source("shapes:size=32,n=7,seed=2", split="val")
    assert isinstance(shapes, Shapes) and (shapes.size, len(shapes), shapes.seed, shapes.split) == (32, 7, 2, "val")
    assert len(parse_source("shapes")) == 2000
    assert isinstance(parse_source(str(photos)), ImageFolder)
    assert isinstance(parse_source(f"wds:{shards}/set-*.tar"), TarShards)


def test_a_folder_with_splits_gives_the_split(tmp_path):
    save(tmp_path / "train" / "a" / "1.png")
    save(tmp_path / "validation" / "b" / "2.png")
    assert parse_source(str(tmp_path)).classes == ("a",)
    assert parse_source(str(tmp_path), split="val").classes == ("b",)


@pytest.mark.parametrize("only", ["train", "val"])
def test_a_folder_with_one_split_gives_it_for_both(tmp_path, only):
    for name in "ab":
        save(tmp_path / only / name / "1.png")
    for split in ("train", "val"):
        source = parse_source(str(tmp_path), split=split)
        assert source.classes == ("a", "b") and source.root == tmp_path / only


def test_a_class_called_test_stays_a_class_among_others(tmp_path):
    for name in ("cat", "dog", "test"):
        save(tmp_path / name / "1.png")
    assert parse_source(str(tmp_path)).classes == ("cat", "dog", "test")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shapes:sise=3", "did you mean size"),
        ("shapes:size=big", "whole number"),
        ("shapes:size", "needs a value"),
        ("shapse", "not 'shapes'"),
        ("/no/such/folder", "check the path"),
    ],
)
def test_wrong_source_names_are_answered_with_a_way_out(name, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        parse_source(name)


def test_data_that_is_there_under_another_name_is_named(tmp_path):
    (tmp_path / "bigger.jpg").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match="check the path$"):  # a suffix in common is no likeness
        parse_source(f"{tmp_path}/missing.jpg")
    with pytest.raises(FileNotFoundError, match=rf"did you mean {tmp_path}/bigger.jpg\?$"):
        parse_source(f"{tmp_path}/biger.jpeg")
    (tmp_path / "link.jpg").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="check the path$"):  # not itself
        parse_source(f"{tmp_path}/link.jpg")
    (tmp_path / "shard.tar").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=rf"shards are opened as wds:{tmp_path}/shard.tar$"):
        parse_source(f"{tmp_path}/shard.tar")
    (tmp_path / "phone.HEIC").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"\.HEIC is no known suffix; convert it to one of \.avif .* \.jpg "):
        parse_images_or_masks(f"{tmp_path}/phone.HEIC")  # not taken for COCO's JSON
    (tmp_path / "labels.CSV").write_text("filename,label")
    with pytest.raises(FileNotFoundError, match=r"labels.CSV' is .*; it is a table: docs/own_images.md"):
        parse_source(f"{tmp_path}/labels.CSV")
    with pytest.raises(FileNotFoundError, match=rf"did you mean {tmp_path}\?$"):
        parse_label_maps(f"voc:{tmp_path}", split="val")


def test_a_subset_is_those_images_in_that_order():
    source = Shapes(size=16, num_images=10)
    subset = Subset(source, [7, 2])
    assert torch.equal(subset.load(0), source.load(7)) and subset.label(1) == source.label(2)
    assert subset.name(0) == source.name(7) and len(subset) == 2
    assert np.array_equal(subset.load_fitted(1, 8, "crop")[0], source.load_fitted(2, 8, "crop")[0])
    with pytest.raises(IndexError, match="0 to 9"):
        Subset(source, [10])


def test_tuning_sees_a_fifth_of_the_training_images_and_never_a_validation_image(tmp_path: Path) -> None:
    photos, _ = draw_folders(tmp_path)
    train, fifth = (part_of(parse_source(str(photos)), part, name="photos") for part in ("train", "val"))
    shutil.rmtree(photos / "val")  # what is gone cannot be read
    parts = {part: parse_source(f"heldout:{photos}", split=part) for part in ("train", "val")}
    for part, expected in (("train", train), ("val", fifth)):
        assert [parts[part].name(index) for index in range(len(expected))] == [
            expected.name(index) for index in range(len(expected))
        ]
    splits = labelled_splits(f"heldout:{photos}")
    assert (len(splits.train), len(splits.val)) == (len(train), len(fifth)) and len(fifth) > 5
    assert splits.name("val") == f"heldout:{photos} [val]"
    (photos / "train").rename(photos / "val")
    with pytest.raises(InputError, match=r"would tune on .*val, which is for validation"):
        parse_source(f"heldout:{photos}")
