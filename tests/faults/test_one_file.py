"""One bad file never stops a job: pipes, devices, links to themselves, broken bytes, names that are not UTF-8."""

import io
import json
import os
import struct
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import command
from PIL import Image

from mixlab.backbones.weights import save_weights
from mixlab.backbones.zoo import create_model
from mixlab.data import ImageFolder, SkippedImages, TooManyUnreadableError, UnreadableImage
from mixlab.data.masks import PairedMasks, plain_mask

NOISE = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)


def encoded(kind: str, pixels: np.ndarray = NOISE) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def with_wrong_checksum(png: bytes, kind: bytes = b"IDAT") -> bytes:
    """The same pixels; four bytes of one checksum are inverted."""
    place = png.index(kind)
    (length,) = struct.unpack(">I", png[place - 4 : place])
    end = place + 4 + length
    return png[:end] + bytes(255 - value for value in png[end : end + 4]) + png[end + 4 :]


def broken_avif() -> bytes:
    """An AVIF file on which its decoder raises RuntimeError: found by inverting bytes until it does."""
    whole = encoded("AVIF")
    for place in range(len(whole) // 2, len(whole)):
        damaged = whole[:place] + bytes([255 - whole[place]]) + whole[place + 1 :]
        try:
            Image.open(io.BytesIO(damaged), formats=["AVIF"]).load()
        except RuntimeError:
            return damaged
        except Exception:
            continue
    pytest.skip("this decoder of AVIF raises no RuntimeError")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six photographs and eight traps, all called like images; one photograph has a name that is not UTF-8."""
    place = tmp_path / "photos"
    place.mkdir()
    for number in range(5):
        (place / f"{number}.png").write_bytes(encoded("PNG"))
    (place / os.fsdecode(b"caf\xe9.png")).write_bytes(encoded("PNG"))
    os.mkfifo(place / "pipe.jpg")
    (place / "zero.jpg").symlink_to("/dev/zero")
    (place / "itself.jpg").symlink_to("itself.jpg")
    (place / "nowhere.jpg").symlink_to("gone.jpg")
    (place / "broken.avif").write_bytes(broken_avif())
    (place / "checksum.png").write_bytes(with_wrong_checksum(encoded("PNG")))
    (place / os.fsdecode(b"\xff\xfe.jpg")).write_bytes(b"no image")
    with (place / "huge.jpg").open("wb") as file:
        file.truncate(2**40)  # sparse: takes no room on disk
    return place


REASONS = {
    "pipe.jpg": "a pipe, not a regular file",
    "zero.jpg": "a device, not a regular file",
    "itself.jpg": "cannot be read (Too many levels of symbolic links)",
    "nowhere.jpg": "the file does not exist",
    "broken.avif": "cannot be decoded (RuntimeError",
    "checksum.png": "the checksum of its pixels at byte 33 is wrong",
    r"\udcff\udcfe.jpg": "not an image",
    "huge.jpg": "1,099,511,627,776 bytes, more than the limit",
}


def test_every_trap_is_skipped_by_name_with_its_reason_and_the_rest_is_read(folder: Path, tmp_path: Path) -> None:
    source = ImageFolder(folder, cache=tmp_path / "cache")
    again = ImageFolder(folder, cache=tmp_path / "cache")  # by its stored index
    assert [again.name(index) for index in range(len(again))] == [source.name(index) for index in range(len(source))]
    read, reasons = [], {}
    for index in range(len(source)):
        source.name(index).encode()  # can be printed and stored
        try:
            assert source.load(index).shape == (3, 48, 64)
            read.append(source.name(index))
        except UnreadableImage as error:
            reasons[source.name(index)] = error.reason
    assert sorted(read) == ["0.png", "1.png", "2.png", "3.png", "4.png", r"caf\udce9.png"]
    assert reasons.keys() == REASONS.keys()
    for name, start in REASONS.items():
        assert reasons[name].startswith(start), reasons[name]


def test_a_command_over_traps_stores_and_prints_every_name(folder: Path, tmp_path: Path, capsys: Any) -> None:
    save_weights(
        create_model("vit_tiny", dim=32, depth=1, head_dim=16, patch=8, image=32), tmp_path / "vit.safetensors"
    )
    run = tmp_path / "run"
    command("maps")(tmp_path / "vit.safetensors", data=folder, run=run, image=32, num_images=14, device="cpu", json="-")
    printed = capsys.readouterr()
    stored = json.loads(next((run / "results").glob("maps*.json")).read_text(encoding="utf-8"))
    assert json.loads(printed.out)
    assert stored["images"] == [*(f"{number}.png" for number in range(5)), r"caf\udce9.png"]
    assert "skipped 8: " in printed.err and "checksum.png" in printed.err


def test_flipped_pixels_of_a_label_map_are_noticed(tmp_path: Path) -> None:
    """Stored without compression, a changed byte is a changed label: only the checksum can tell."""
    labels = np.zeros((8, 8), dtype=np.uint8)
    for place in ("images", "masks"):
        (tmp_path / place).mkdir()
    Image.fromarray(NOISE[:8, :8]).save(tmp_path / "images" / "a.png")
    buffer = io.BytesIO()
    Image.fromarray(labels).save(buffer, "PNG", compress_level=0)
    data = bytearray(buffer.getvalue())
    place = data.index(b"IDAT") + 4 + 7 + 3  # zlib's header and a block's, then the second pixel of the first row
    data[place] = 255
    (tmp_path / "masks" / "a.png").write_bytes(data)
    source = PairedMasks(tmp_path / "images", tmp_path / "masks", plain_mask, every_image=True)
    with pytest.raises(UnreadableImage, match="checksum"):
        source.load(0)


def test_of_two_files_with_one_stem_the_one_left_out_is_named(tmp_path: Path) -> None:
    for place, names in (("images", ("a.png", "a.jpg")), ("masks", ("a.png",))):
        (tmp_path / place).mkdir()
        for name in names:
            Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(tmp_path / place / name)
    source = PairedMasks(tmp_path / "images", tmp_path / "masks", plain_mask, every_image=True)
    assert len(source) == 1 and source.unpaired == (str(tmp_path / "images" / "a.png"),)


@pytest.mark.parametrize(("limit", "bad", "stops"), [(0.01, 1, False), (0.01, 2, True), (0, 1, True), (0.2, 4, False)])
def test_one_file_of_few_never_stops_a_job(limit: float, bad: int, stops: bool) -> None:
    skipped = SkippedImages(20, limit)
    with pytest.raises(TooManyUnreadableError) if stops else nullcontext():
        for number in range(bad):
            skipped.add(UnreadableImage(f"{number}.jpg", "broken"))
