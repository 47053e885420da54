"""The pictures that visitors look at: samples and uploads, decoded with care, and what models see of them."""

import hashlib
import io
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from mixlab.analysis.views import View
from mixlab.app.byte_cache import ByteCache
from mixlab.choices import Fit
from mixlab.data.decode import FORMATS, Box, UnreadableImage, decode, open_image, to_pil
from mixlab.data.mask_formats import parse_images_or_masks
from mixlab.data.masks import plain_mask
from mixlab.data.source import Source, read_first
from mixlab.errors import InputError

MAX_SIDE = 1024  # larger pictures are scaled down: no model here sees more
Pixels = NDArray[np.uint8]  # (H, W, 3), RGB
MaskValues = NDArray[np.uint8]  # (H, W): 0 background, 1 foreground, 255 ignored


@dataclass(frozen=True, eq=False)
class Picture:
    """An image to look at: a sample, perhaps with its mask, or an upload."""

    id: str
    label: str
    pixels: Pixels
    mask: MaskValues | None = None


def decode_picture(data: bytes, *, max_pixels: int) -> Pixels:
    """Bytes of an image file as RGB, the longer side at most MAX_SIDE; the header is checked before decoding."""
    _check_header(data, max_pixels)
    try:
        return _shrunk(decode(data, name="this file", draft=MAX_SIDE))
    except UnreadableImage as error:
        raise InputError(error.reason) from error


def decode_mask(data: bytes, picture: Picture, *, max_pixels: int) -> MaskValues:
    """Bytes of a mask file as a mask of the picture's size."""
    stored = _check_header(data, max_pixels)
    height, width = picture.pixels.shape[:2]
    if abs(stored.width * height - stored.height * width) > 0.02 * stored.height * width:
        raise InputError(
            f"the mask is {stored.width} x {stored.height}, the image {width} x {height}: another shape; "
            "give a mask of the same image"
        )
    try:
        mask = plain_mask(stored)
    except Exception as error:  # decoders fail in many ways on damaged files
        raise InputError(f"this file is not a mask: {error}") from error
    return np.array(Image.fromarray(mask).resize((width, height), Image.Resampling.NEAREST))


def seen_picture(pixels: Pixels, size: int, fit: Fit, multiple: int = 1) -> Pixels:
    """What is seen of a picture, as `maps` and `auc` make it; in its own shape, sides are multiples of `multiple`."""
    return View(size, fit, multiple).of_image(Image.fromarray(pixels)).permute(1, 2, 0).numpy()


def seen_mask(mask: MaskValues, size: int, fit: Fit) -> MaskValues:
    """The same part of a mask, always at size x size: the page stretches it over the picture."""
    return View(size, "squash" if fit == "whole" else fit).of_mask(mask).numpy()


def seen_part(pixels: Pixels, size: int, fit: Fit) -> Box:
    """Which part (left, top, right, bottom) of a picture that is, as shares of its sides."""
    return View(size, fit, 1).part_of((pixels.shape[1], pixels.shape[0]))


def read_samples(data: Sequence[str], count: int) -> list[Picture]:
    """The first pictures of each source that can be read, with masks where it has masks. A source without any is left
    out where there are others.
    """
    found: list[Picture] = []
    for place, source in enumerate(data):
        try:
            found += _read_source(source, count)
        except InputError as error:
            if not found and place == len(data) - 1:
                raise
            warnings.warn(str(error), stacklevel=2)
    return [replace(picture, id=f"sample-{number}") for number, picture in enumerate(found, 1)]


def _read_source(data: str, count: int) -> list[Picture]:
    source: Source[Any] = parse_images_or_masks(data)
    pictures = []
    for index, sample in read_first(data, source, count):
        image, mask = (sample, None) if isinstance(sample, Tensor) else (sample.image, sample.mask.numpy())
        pixels = _shrunk(to_pil(image))
        size = (pixels.shape[1], pixels.shape[0])
        fitted = None if mask is None else np.array(Image.fromarray(mask).resize(size, Image.Resampling.NEAREST))
        pictures.append(Picture("", source.name(index), pixels, fitted))
    return pictures


def _check_header(data: bytes, max_pixels: int) -> Image.Image:
    """The image, opened and not decoded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit is lower, and refuses
        width, height = 0, 0
        with suppress(Exception):  # no image: `open_image` says why
            width, height = Image.open(io.BytesIO(data), formats=FORMATS).size
    if width * height > max_pixels:
        raise InputError(
            f"this image has {width} x {height} = {width * height / 1e6:.0f} million pixels, "
            f"the limit is {max_pixels / 1e6:.0f} million; scale it down first"
        )
    try:
        return open_image(data, name="this file")
    except UnreadableImage as error:
        raise InputError(error.reason) from error


def _shrunk(image: Image.Image) -> Pixels:
    longest = max(image.size)
    if longest > MAX_SIDE:
        width, height = (max(1, round(side * MAX_SIDE / longest)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    return np.array(image)


class UnknownPictureError(LookupError):
    """No such picture, or no longer."""


class PictureStore:
    """Uploads live in memory, by a name made of their content: the same picture always has the same name."""

    def __init__(self, samples: Sequence[Picture], *, max_bytes: int) -> None:
        self._samples = {sample.id: sample for sample in samples}
        self._uploads: ByteCache[Picture] = ByteCache(max_bytes, size=lambda picture: picture.pixels.nbytes)

    def add(self, pixels: Pixels) -> Picture:
        digest = hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).hexdigest()[:20]
        picture = Picture(f"upload-{digest}", "your image", pixels)
        self._uploads.put(picture.id, picture)
        return picture

    def find(self, picture_id: str) -> Picture:
        picture = self._samples.get(picture_id) or self._uploads.get(picture_id)
        if picture is None:
            raise UnknownPictureError(
                f"there is no image {picture_id!r} here; uploads are forgotten when the server stops or needs the "
                "memory: upload it again, or choose a sample"
            )
        return picture


def to_png(pixels: Pixels) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG", compress_level=3)
    return buffer.getvalue()
