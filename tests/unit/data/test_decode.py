"""Every kind of file that people have becomes upright 8-bit RGB, or a typed error."""

import io
import os
import pickle
import random
import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from mixlab.data import SkippedImages, TooManyUnreadableError, UnreadableImage, decode
from mixlab.data.decode import decode_fitted, decode_pixels, decode_reduced, fit_image, to_pil, to_rgb, to_tensor

RAMP = np.linspace(0, 255, 24 * 16).astype(np.uint8).reshape(16, 24)
COLOUR = np.stack([RAMP, 255 - RAMP, np.full_like(RAMP, 90)], axis=-1)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "GIF"])
def test_lossless_formats_come_back_exactly(kind):
    image = Image.fromarray(COLOUR if kind != "GIF" else np.stack([RAMP // 64 * 64] * 3, axis=-1))
    assert np.array_equal(np.asarray(decode(encoded(image, kind))), np.asarray(image))


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "JPEG2000"])
def test_lossy_formats_come_back_closely(kind):
    image = Image.fromarray(COLOUR).resize((96, 64))
    got = np.asarray(decode(encoded(image, kind, quality=95))).astype(int)
    assert np.abs(got - np.asarray(image)).mean() < 6


def test_grey_one_bit_and_palette_images_become_rgb():
    grey = Image.fromarray(RAMP)
    assert np.array_equal(np.asarray(decode(encoded(grey, "PNG"))), np.stack([RAMP] * 3, axis=-1))
    bits = np.asarray(decode(encoded(grey.convert("1"), "PNG")))
    assert set(np.unique(bits)) <= {0, 255}
    palette = Image.fromarray(COLOUR).quantize(16)
    assert np.array_equal(np.asarray(decode(encoded(palette, "PNG"))), np.asarray(palette.convert("RGB")))


def test_sixteen_bit_samples_keep_their_upper_eight_bits():
    deep = (RAMP.astype(np.uint16) << 8) + 77
    got = np.asarray(decode(encoded(Image.fromarray(deep), "PNG")))
    assert np.array_equal(got, np.stack([RAMP] * 3, axis=-1))


def test_a_dark_sixteen_bit_image_stays_dark():
    got = np.asarray(decode(encoded(Image.fromarray(np.full((4, 4), 200, np.uint16)), "PNG")))
    assert got.max() == 0


def test_transparent_pixels_show_white():
    rgba = np.dstack([COLOUR, np.where(np.arange(24) < 12, 255, 0) * np.ones((16, 1), int)]).astype(np.uint8)
    got = np.asarray(decode(encoded(Image.fromarray(rgba), "PNG")))
    assert np.array_equal(got[:, :12], COLOUR[:, :12])
    assert (got[:, 12:] == 255).all()


def test_a_palette_with_a_transparent_colour_shows_white_there():
    image = Image.fromarray(np.array([[0, 1], [1, 0]], np.uint8)).convert("P")
    image.putpalette([10, 20, 30, 200, 100, 50])
    got = np.asarray(decode(encoded(image, "PNG", transparency=0)))
    assert got.tolist() == [[[255, 255, 255], [200, 100, 50]], [[200, 100, 50], [255, 255, 255]]]


def test_cmyk_jpegs_become_rgb():
    cmyk = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    red = np.asarray(decode(encoded(cmyk, "JPEG", quality=95))).mean(axis=(0, 1))
    assert red[0] > 200 and red[1] < 60 and red[2] < 60


@pytest.mark.parametrize("orientation", range(9))
def test_the_cameras_rotation_is_applied_as_pil_does(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(COLOUR), "PNG", exif=exif)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    assert np.array_equal(np.asarray(decode(data)), expected)


def test_damaged_camera_notes_do_not_damage_the_picture():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(Image.fromarray(COLOUR).resize((64, 48)), "JPEG", exif=exif)
    place = data.index(b"Exif")
    damaged = data[: place + 6] + b"\xff" * 12 + data[place + 18 :]
    assert decode(damaged).size == (64, 48)


def png_header(width: int, height: int) -> bytes:
    """A tiny file that claims to be a large image."""
    chunks = (b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), b"IDAT" + zlib.compress(b"\0" * 99))
    framed = (struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"hello, I am a text file" * 20, "not an image"),
        (encoded(Image.fromarray(COLOUR).resize((200, 200)), "JPEG")[:900], "cannot be decoded"),
        (encoded(Image.fromarray(COLOUR), "PNG")[:60], "cannot be decoded"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n", "not an image"),
        (png_header(12_000, 9_000), "pixels"),
        (png_header(100_000, 90_000), "cannot be decoded"),
    ],
    ids=["empty", "text", "cut-jpeg", "cut-png", "postscript", "too-large", "bomb"],
)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_what_is_not_a_whole_image_is_a_typed_error(data, reason):
    with pytest.raises(UnreadableImage, match=reason) as caught:
        decode(data, name="holiday/photo 1.jpg")
    assert caught.value.path == "holiday/photo 1.jpg"


def test_a_missing_file_is_a_typed_error(tmp_path):
    with pytest.raises(UnreadableImage, match="does not exist"):
        decode(tmp_path / "gone.jpg")


JPEGS = [
    encoded(Image.fromarray(COLOUR).resize((67, 45)), "JPEG", quality=quality, subsampling=subsampling, **more)
    for quality, subsampling, more in (
        (95, 0, {}),
        (75, 2, {}),
        (40, 1, {"progressive": True}),
        (80, 2, {"optimize": True}),
    )
] + [encoded(Image.fromarray(RAMP).resize((50, 33)), "JPEG")]
MUTATED = 20_000 if os.environ.get("MIXLAB_FAULTS") == "all" else 300


def pixels_or_none(data: bytes, decoder) -> np.ndarray | None:
    try:
        return np.asarray(decoder(data))
    except UnreadableImage:
        return None


def test_torchvision_and_pillow_give_the_same_bits_of_every_kind_of_jpeg():
    for data in JPEGS:
        assert np.array_equal(decode_pixels(data), np.asarray(decode(data)))  # `decode` is Pillow's alone


def test_of_damaged_jpegs_those_are_refused_that_pillow_refuses_and_others_have_its_pixels(capfd):
    chance, refused = random.Random(0), 0
    for _ in range(MUTATED):
        data = bytearray(chance.choice(JPEGS))
        for _ in range(chance.choice((1, 2, 5, 20))):
            data[chance.randrange(len(data) if chance.random() < 0.6 else min(700, len(data)))] = chance.randrange(256)
        damaged = bytes(data[: chance.randrange(len(data))] if chance.random() < 0.2 else data)
        ours, theirs = pixels_or_none(damaged, decode_pixels), pixels_or_none(damaged, decode)
        assert (ours is None) == (theirs is None)
        assert ours is None or np.array_equal(ours, theirs)
        refused += ours is None
    assert 0.1 < refused / MUTATED < 0.9


def test_a_jpeg_that_may_be_reduced_is_reduced_while_it_is_decoded():
    big = encoded(Image.fromarray(COLOUR).resize((400, 300)), "JPEG")
    pixels, own = decode_reduced(big, lambda height, width: 4)
    assert pixels.shape == (75, 100, 3) and own == (300, 400)


def test_a_draft_is_never_smaller_than_asked():
    big = encoded(Image.fromarray(COLOUR).resize((1000, 700)), "JPEG")
    draft = decode(big, draft=150)
    assert min(draft.size) >= 150 and draft.size != (1000, 700)


@pytest.mark.parametrize("shape", [(1001, 703), (703, 1001)], ids=str)
@pytest.mark.parametrize("fit", ["crop", "squash"])
def test_a_jpeg_decoded_at_a_fraction_of_its_size_is_fitted_as_the_whole_one(shape, fit, monkeypatch):
    rows, columns = np.mgrid[0 : shape[1], 0 : shape[0]]
    waves = np.stack([np.sin(rows / 31), np.cos(columns / 37), np.sin((rows + columns) / 43)], axis=-1)
    big = encoded(Image.fromarray((127 + 120 * waves).astype(np.uint8)), "JPEG", quality=95)
    whole = np.asarray(fit_image(decode(big), size=150, fit=fit))
    sizes = []
    monkeypatch.setattr(
        sys.modules["mixlab.data.decode"], "to_rgb", lambda image: (sizes.append(image.size), to_rgb(image))[1]
    )
    fitted, own = decode_fitted(big, 150, fit)
    assert own == (shape[1], shape[0])
    assert sizes == [(-(-shape[0] // 4), -(-shape[1] // 4))]  # a quarter, rounded up
    assert np.abs(np.asarray(fitted).astype(int) - whole).max() <= 4


@pytest.mark.parametrize("kind", ["TIFF", "PNG", "JPEG"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_a_turned_picture_is_upright_by_every_way_to_read_it(kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(COLOUR).resize((48, 32)), kind, exif=exif)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    np.testing.assert_array_equal(np.asarray(decode(data)), upright)
    np.testing.assert_array_equal(decode_pixels(data), upright)
    fitted, own = decode_fitted(data, 32, "crop")
    np.testing.assert_array_equal(np.asarray(fitted), np.asarray(fit_image(decode(data), size=32, fit="crop")))
    assert own == upright.shape[:2]


def test_squash_keeps_everything_and_crop_keeps_the_middle():
    image = Image.fromarray(np.hstack([np.full((10, 10, 3), v, np.uint8) for v in (0, 128, 255)]))
    squashed = np.asarray(fit_image(image, size=30, fit="squash"))
    cropped = np.asarray(fit_image(image, size=10, fit="crop"))
    assert squashed[5, 2, 0] < 10 and squashed[5, 27, 0] > 245
    assert np.abs(cropped.astype(int) - 128).max() <= 1
    with pytest.raises(ValueError, match="squash"):
        fit_image(image, size=10, fit="stretch")


def test_tensors_and_pictures_convert_back_and_forth():
    tensor = to_tensor(Image.fromarray(COLOUR))
    assert tensor.shape == (3, 16, 24)
    assert np.array_equal(np.asarray(to_pil(tensor)), COLOUR)


def test_the_error_survives_the_way_from_a_worker():
    error = pickle.loads(pickle.dumps(UnreadableImage("a.jpg", "broken")))
    assert (error.path, error.reason, str(error)) == ("a.jpg", "broken", "a.jpg: broken")


def test_skipped_files_are_named_counted_once_and_limited():
    skipped = SkippedImages(total=300, limit=0.01)
    assert skipped.summary() == "no image was skipped"
    for number in range(3):
        assert skipped.add(UnreadableImage(f"{number}.jpg", "broken"))
    assert not skipped.add(UnreadableImage("0.jpg", "broken"))
    assert len(skipped) == 3 and "2.jpg (broken)" in skipped.summary()
    with pytest.raises(TooManyUnreadableError, match=r"4 of 300 .* 1\.00%"):
        skipped.add(UnreadableImage("3.jpg", "broken"))
    with pytest.raises(ValueError, match="share"):
        SkippedImages(total=10, limit=5)
