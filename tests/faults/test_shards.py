"""Shards that are damaged, cut or joined say so: refused by name, or all images are there."""

import io
import os
import random
import tarfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mixlab.data import UnreadableImage
from mixlab.data.index_file import StoredIndex, read_index, write_index
from mixlab.data.shards import TarShards
from mixlab.errors import InputError
from mixlab.recipes import find_recipe
from mixlab.training.distributed import World
from mixlab.training.live_scores import KnnScores
from mixlab.training.supervised import SupervisedConfig

ALL = os.environ.get("MIXLAB_FAULTS") == "all"
NUM_IMAGES = 3


def png(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((4, 4, 3), value, dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def tar_of(members: dict[str, bytes], *, form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, data in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(data)
            tar.addfile(about, io.BytesIO(data))
    return buffer.getvalue()


def samples(start: int = 0) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for number in range(start, start + NUM_IMAGES):
        found |= {f"{number:03d}.png": png(number), f"{number:03d}.cls": b"1"}
    return found


class Shard:
    """A shard on disk whose bytes are written anew for every attempt."""

    def __init__(self, folder: Path) -> None:
        self.file, self.cache = folder / "set.tar", folder / "cache"

    def read(self, content: bytes) -> TarShards:
        self.file.write_bytes(content)
        for index in self.cache.glob("*"):
            index.unlink()
        return TarShards(str(self.file), cache=self.cache)

    def assert_whole_or_refused(self, content: bytes, what: str) -> str:
        """The outcome: refused, whole, or with images that cannot be read; never fewer, never other pixels."""
        try:
            source = self.read(content)
        except (InputError, FileNotFoundError) as error:
            assert str(self.file) in str(error), what
            return "refused"
        assert len(source) + len(source.unpaired) >= NUM_IMAGES, f"{what}: {len(source)} images without a word"
        outcome = "whole"
        for index in range(len(source)):
            try:
                assert (source.load(index) == int(source.keys[index])).all(), f"{what}: other pixels"
            except UnreadableImage:
                outcome = "unreadable images"
        return outcome


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    return Shard(tmp_path)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_shard_cut_at_any_byte_is_refused_until_its_last_image_is_whole(shard: Shard, form: int) -> None:
    whole = tar_of(samples(), form=form)
    end = len(whole) - whole[::-1].index(b"1")  # the last byte that is not zero: the last label
    blocks = -(-end // 512) * 512  # with its padding
    near = [cut + step for cut in range(0, blocks + 1, 512) for step in (-1, 0, 1)]
    for cut in range(blocks + 512) if ALL else sorted({*near, *random.Random(0).sample(range(blocks), 40)} - {-1}):
        assert shard.assert_whole_or_refused(whole[:cut], f"cut at {cut}") == "refused"
    for cut in (blocks + 512, blocks + 700, blocks + 1024, len(whole)):
        assert len(shard.read(whole[:cut])) == NUM_IMAGES


def test_a_changed_byte_is_refused_or_costs_one_image_by_name(shard: Shard) -> None:
    whole = tar_of(samples())
    end = len(whole) - whole[::-1].index(b"1")
    chance = random.Random(1)
    places = range(end) if ALL else [*range(0, 512, 7), *chance.sample(range(end), 150)]
    outcomes = {}
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << chance.randrange(8)
        outcomes[place] = shard.assert_whole_or_refused(bytes(damaged), f"byte {place}")
    assert outcomes[0] == "refused", "a changed name does not fit its header's checksum"
    assert set(outcomes.values()) == {"refused", "unreadable images", "whole"}  # whole: in padding, or another label


def test_joined_shards_and_leftover_bytes_are_refused_with_the_place(shard: Shard) -> None:
    whole = tar_of(samples())
    with pytest.raises(InputError, match=r"set\.tar has leftover bytes from 10,240 on.*Give each a file of its own"):
        shard.read(whole + tar_of(samples(start=NUM_IMAGES)))
    with pytest.raises(InputError, match=r"leftover bytes"):
        shard.read(whole + bytes(3_000_000) + b"x")
    assert len(shard.read(whole + bytes(3_000_000))) == NUM_IMAGES  # padding is none


def test_a_damaged_header_between_images_is_refused_with_its_place(shard: Shard) -> None:
    whole = tar_of(samples())
    place = whole.index(b"001.png")
    with pytest.raises(InputError, match=rf"damaged header at byte {place:,}"):
        shard.read(whole[:place] + b"?" * 512 + whole[place + 512 :])


def test_a_header_that_leads_backwards_does_not_loop(shard: Shard) -> None:
    whole = bytearray(tar_of(samples(), form=tarfile.GNU_FORMAT))
    place = whole.index(b"001.png")
    header = whole[place : place + 512]
    header[124:136] = (-1024).to_bytes(12, "big", signed=True)  # GNU's numbers of 256: a size below zero
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    whole[place : place + 512] = header
    with pytest.raises(InputError, match=r"set\.tar is not a readable tar file"):
        shard.read(bytes(whole))


def test_samples_without_an_image_or_with_a_second_one_are_named(shard: Shard) -> None:
    members = {**samples(), "lonely.cls": b"2", "other.heic": b"?", "views.left.png": png(9)}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in [*members.items(), ("000.png", png(77)), ("000.jpg", png(8))]:
            about = tarfile.TarInfo(name)
            about.size = len(data)
            tar.addfile(about, io.BytesIO(data))
        link = tarfile.TarInfo("linked.png")
        link.type, link.linkname = tarfile.LNKTYPE, "000.png"
        tar.addfile(link)
    names = ("000.png", "lonely", "other", "views", "linked")
    with pytest.warns(UserWarning, match=r"5 samples have no image, or a second file .*set.tar/lonely"):
        source = shard.read(buffer.getvalue())
    assert len(source) == NUM_IMAGES and source.unpaired == tuple(f"set.tar/{name}" for name in names)
    with pytest.warns(UserWarning, match="5 samples"):  # also by the stored index
        TarShards(str(shard.file), cache=shard.cache)


@pytest.mark.parametrize(
    "change",
    [{"num_samples": 2}, {"offsets": [-1] * 3}, {"left_out": 7}, {"stamp": [1, 2, 3]}, {"sizes": [2**31] * 3},
     {"ends": [9, 1, 1]}, {"labels": []}],
)  # fmt: skip
def test_an_index_with_another_count_or_form_is_made_again(shard: Shard, change: dict[str, Any]) -> None:
    shard.read(tar_of(samples()))
    (index,) = shard.cache.glob("shard-*.index")
    about, arrays = read_index(index) or pytest.fail("it was not written")
    changed = {name: np.resize(change[name], len(change[name])).astype(part.dtype) if name in change else np.array(part)
               for name, part in arrays.items()}  # fmt: skip
    write_index(index, StoredIndex(about | {name: change[name] for name in change if name in about}, changed))
    assert len(TarShards(str(shard.file), cache=shard.cache)) == NUM_IMAGES
    assert TarShards(str(shard.file), cache=shard.cache).load(NUM_IMAGES - 1).shape[0] == 3


def test_a_pipe_among_the_shards_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.tar")
    with pytest.raises(InputError, match=r"a\.tar is not a regular file"):
        TarShards(f"{tmp_path}/*.tar", cache=tmp_path / "cache")


@pytest.mark.parametrize("label", ["1e999", "3.7", "[]", "null", '"cat"', "[" * 100_000])
def test_labels_that_are_no_whole_number_are_refused_by_name(shard: Shard, label: str) -> None:
    with pytest.raises(InputError, match=r"set\.tar/000\.json holds no class number"):
        shard.read(tar_of({"000.png": png(0), "000.json": b'{"label": ' + label.encode() + b"}"}))


def test_two_classes_of_one_sample_are_refused_and_one_beside_none_counts(shard: Shard) -> None:
    with pytest.raises(InputError, match="000.json holds class 2, another file of the same sample holds 1; keep one"):
        shard.read(tar_of(samples() | {"000.json": b'{"label": 2}'}))
    for unnamed in ({"000.json": b'{"caption": "a cat"}'} | samples(), samples() | {"000.json": b'{"label": 1}'}):
        assert shard.read(tar_of(unnamed)).labels().tolist() == [1] * NUM_IMAGES


def test_a_sample_without_a_class_is_refused_before_supervised_training_and_not_scored_on(shard: Shard) -> None:
    members = samples() | {"002.cls": b"0"}
    members.pop("001.cls")
    source = shard.read(tar_of(members))
    assert source.labels().tolist() == [1, -1, 0]
    with pytest.raises(InputError, match="1 of the 3 images of wds:.*set.tar have no label"):
        SupervisedConfig().open(f"wds:{shard.file}")
    config, world = find_recipe("dino_vit_tiny64"), World(torch.device("cpu"))
    scores = KnnScores(f"wds:{shard.file}", source, config, world=world, precise=nullcontext)
    numbers = {part.label(index) for part in (scores.bank, scores.queries) for index in range(len(part))}
    assert numbers == {0, 1}
