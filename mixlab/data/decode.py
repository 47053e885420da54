"""Image files to upright 8-bit RGB, or a typed error."""

from __future__ import annotations

import io
import os
import stat
import zlib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from mixlab.errors import InputError

# PIL's EPS reader runs an outside program; only formats that are pure data are opened.
Image.init()
FORMATS = tuple({"JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF"} & Image.OPEN.keys())
SUFFIXES = frozenset((".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff",
                      ".ppm", ".pgm", ".pbm", ".jp2", ".avif"))  # fmt: skip
Box = tuple[float, float, float, float]  # left, top, right, bottom
Reduction = Callable[[int, int], int]  # from an image's height and width: to 1/r of its size, or 1
MAX_PIXELS = 89_478_485  # PIL's own limit against decompression bombs: about 256 MB of RGB
MAX_BYTES = 2**30  # of a file; MAX_PIXELS with transparency and 16 bits are 0.7 GB

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SWAPPED = (5, 6, 7, 8)  # turns that exchange height and width


class UnreadableImage(InputError):  # noqa: N818 - it names the thing
    """One file that is not a whole, decodable image (or mask)."""

    def __init__(self, path: str | Path, reason: str) -> None:
        self.path, self.reason = printable(path), printable(reason)
        super().__init__(self.path, self.reason)  # as arguments, so that the error survives pickling between workers

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def decode(data: str | Path | bytes, *, name: str | None = None, draft: int | None = None) -> Image.Image:
    """Decode a file or its bytes to an upright 8-bit RGB image.

    `draft` allows a JPEG to be decoded at a fraction of its size, never below `draft` pixels on a side.
    Transparent pixels are laid over white; 16-bit samples keep their upper 8 bits; animations give their first frame.
    """
    label = _label(data, name)
    return _upright(open_image(data, name=label), label, draft)[0]


def decode_fitted(
    data: str | Path | bytes, size: int, fit: str, *, name: str | None = None
) -> tuple[Image.Image, tuple[int, int]]:
    """As `decode`, brought to size x size as by `fit_image`; and the own (height, width) of the upright image.

    A JPEG is decoded at a half, a quarter or an eighth of its size where that leaves `size` pixels on a side.
    """
    label = _label(data, name)
    image = open_image(data, name=label)
    width, height = image.size
    fit_box((width, height), fit, size)  # which checks both
    upright, orientation = _upright(image, label, size)
    if orientation in _SWAPPED:
        width, height = height, width
    factor = round(max(width, height) / max(upright.size))  # sides are rounded up: what is kept may end within a pixel
    left, top, right, bottom = (edge / factor for edge in fit_box((width, height), fit, size))
    return _resized(upright, size, (left, top, right, bottom)), (height, width)


def _label(data: str | Path | bytes, name: str | None) -> str:
    return name if name is not None else ("<bytes>" if isinstance(data, bytes) else str(data))


def _upright(image: Image.Image, label: str, draft: int | None) -> tuple[Image.Image, int]:
    """The pixels of an opened file as `decode` gives them, and the orientation that they had."""
    try:
        if draft is not None:
            image.draft("RGB", (draft, draft))
        pixels = to_rgb(image)
        orientation = read_orientation(image)  # after decoding, as in `upright_rgb`
        return turn_upright(pixels, orientation), orientation
    except Exception as error:  # as many kinds as there are decoders: AVIF's raises RuntimeError
        raise UnreadableImage(label, _reason(error)) from error


def decode_pixels(data: str | Path | bytes, *, name: str | None = None) -> NDArray[np.uint8]:
    """As `decode`, at full size, (H, W, 3)."""
    return decode_reduced(data, lambda height, width: 1, name=name)[0]


def decode_reduced(
    data: str | Path | bytes, reduction: Reduction, *, name: str | None = None
) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """As `decode`, (H, W, 3), at 1/r of its size, r as `reduction` says; and the own (height, width) of the upright
    image.

    JPEGs at full size go through torchvision's decoder, the rest through Pillow's, which skips work where it reduces.
    """
    label = _label(data, name)
    content = data if isinstance(data, bytes) else _read_file(data, label)
    image = open_image(content, name=label)
    try:
        width, height = image.size
        factor = reduction(height, width)
        is_upright = read_orientation(image) not in _TURNS
        if factor == 1 and is_upright and (pixels := _jpeg_pixels(content, image)) is not None:
            return pixels, (height, width)
        if factor > 1:
            image.draft("RGB", (-(-width // factor), -(-height // factor)))  # JPEG: by 2, 4 or 8, for less work
        rest = factor // round(width / image.width)
        reduced = to_rgb(image).reduce(rest) if rest > 1 else to_rgb(image)
        orientation = read_orientation(image)  # after decoding: PIL turns a TIFF while it decodes
        own = (width, height) if orientation in _SWAPPED else (height, width)
        return np.asarray(turn_upright(reduced, orientation)), own
    except Exception as error:
        raise UnreadableImage(label, _reason(error)) from error


@cache
def _torchvision_decoder() -> Callable[[Tensor], Tensor] | None:
    try:  # deprecated in torchvision 0.29: once it is gone, Pillow decodes everything
        from torchvision.io import ImageReadMode, decode_jpeg  # takes a moment
    except ImportError:
        return None
    return partial(decode_jpeg, mode=ImageReadMode.RGB)


def _jpeg_pixels(content: bytes, image: Image.Image) -> NDArray[np.uint8] | None:
    """A JPEG's pixels, (H, W, 3), from torchvision, 1.1 to 1.3 times as fast as Pillow; None where that should decide.

    The same bits: both use libjpeg-turbo with the same settings. Whatever torchvision refuses is left to Pillow; what
    Pillow opens and then refuses, torchvision refused too in 20,000 attempts (`test_decode.py`).
    """
    decode_jpeg = _torchvision_decoder()
    if decode_jpeg is None or image.format != "JPEG" or image.mode not in ("RGB", "L"):
        return None
    try:
        found = decode_jpeg(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    except RuntimeError:
        return None
    pixels: NDArray[np.uint8] = found.permute(1, 2, 0).numpy()
    return pixels if pixels.shape == (image.height, image.width, 3) else None


def open_image(data: str | Path | bytes, *, name: str) -> Image.Image:
    """Open a file as PIL sees it, without decoding: for callers that need its own mode or orientation."""
    content = data if isinstance(data, bytes) else _read_file(data, name)
    if not content:
        raise UnreadableImage(name, "the file is empty")
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except Exception as error:
        raise UnreadableImage(name, _reason(error)) from error
    if image.width * image.height > MAX_PIXELS:
        raise UnreadableImage(name, f"{image.width} x {image.height} pixels, more than the limit of {MAX_PIXELS:,}")
    if image.format == "PNG" and (place := _wrong_checksum(content)) is not None:
        raise UnreadableImage(name, f"the checksum of its pixels at byte {place:,} is wrong: the file is damaged")
    return image


def read_orientation(image: Image.Image) -> int:
    """How the camera was held: EXIF's number from 1 (upright) to 8; 1 where there is none or it cannot be read."""
    try:
        return int(image.getexif().get(0x0112, 1))
    except Exception:  # damaged notes do not damage the picture
        return 1


def turn_upright(image: Image.Image, orientation: int) -> Image.Image:
    turn = _TURNS.get(orientation)
    if turn is None:
        return image
    turned = image.transpose(turn)
    turned.info = {}  # Pillow copies the notes of the camera, by which whoever reads them next would turn it again
    return turned


def upright_rgb(image: Image.Image) -> Image.Image:
    """A PIL image as `decode` gives the file that it comes from."""
    pixels = to_rgb(image)
    return turn_upright(pixels, read_orientation(image))  # after decoding: PIL turns a TIFF while it decodes


def to_rgb(image: Image.Image) -> Image.Image:
    """Any PIL mode to 8-bit RGB."""
    if image.mode == "RGB":
        image.load()
        return image
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_to_8_bits(np.asarray(image))).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def fit_image(image: Image.Image, *, size: int, fit: str) -> Image.Image:
    """Bring an image to size x size: `squash` keeps all of it, `crop` and `square` its shape: they cut the sides."""
    return _resized(image, size, fit_box(image.size, fit, size))


def _resized(image: Image.Image, size: int, box: Box) -> Image.Image:
    return image if image.size == (size, size) else image.resize((size, size), Image.Resampling.BICUBIC, box=box)


def fit_box(image: tuple[int, int], fit: str, size: int) -> Box:
    """The part (left, top, right, bottom) of a (width, height) image that `fit` keeps at size x size.

    `crop` is torchvision's `Resize(size)` and `CenterCrop(size)` in one: both round to whole pixels.
    """
    if size < 1:
        raise InputError(f"an image of {size} px does not exist; give a size of at least 1")
    width, height = image
    if not width or not height:
        raise InputError(f"an image of {width} x {height} pixels has nothing to show; give one of at least 1 x 1")
    if fit == "squash":
        return (0.0, 0.0, float(width), float(height))
    if fit in ("crop", "square"):
        left, right = _middle(width, min(image), size)
        top, bottom = _middle(height, min(image), size)
        return (left, top, right, bottom)
    raise InputError(f"fit {fit!r} is unknown; choose 'squash' (the whole image), 'square' or 'crop' (its middle)")


def load_size(size: int, crop_share: float) -> int:
    """The side to which an image is brought before its middle `size` pixels, `crop_share` of each side, are cut out."""
    if size < 1 or not 0 < crop_share <= 1:
        raise InputError(
            f"a view of {size} px that keeps {crop_share} of each side: give at least 1 px and a share above 0 and up "
            "to 1, such as 0.875"
        )
    return max(size, round(size / crop_share))


def cut_middle(images: Tensor, size: int) -> Tensor:
    """The middle (..., size, size) of images (..., S, S)."""
    first = (images.shape[-1] - size) // 2
    return images[..., first : first + size, first : first + size]


def _middle(side: int, shorter: int, size: int) -> tuple[float, float]:
    """Where the middle `size` pixels of a side begin and end, once the shorter side is resized to `size`."""
    resized = int(size * side / shorter)
    first = round((resized - size) / 2)
    return first * side / resized, (first + size) * side / resized


def to_tensor(image: Image.Image | NDArray[np.uint8]) -> Tensor:
    """An RGB image as uint8 (3, H, W)."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def to_three_channels(pixels: Tensor | NDArray[np.uint8]) -> Tensor | None:
    """Pixels as (3, H, W), from a tensor (3, H, W), an array (H, W, 3), or grey: a tensor (1, H, W), an array
    (H, W, 1), or (H, W); None of any other shape.
    """
    if isinstance(pixels, np.ndarray):
        pixels = torch.from_numpy(pixels.copy())  # a tensor must not share what cannot be written to
        pixels = pixels.permute(2, 0, 1) if pixels.ndim == 3 else pixels
    pixels = pixels[None] if pixels.ndim == 2 else pixels
    return pixels.expand(3, -1, -1).contiguous() if pixels.ndim == 3 and pixels.shape[0] in (1, 3) else None


def to_pil(image: Tensor) -> Image.Image:
    """A uint8 (3, H, W) tensor as an RGB image."""
    return Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())


def printable(text: object) -> str:
    """Text that every file and terminal takes: of a name that is not UTF-8, the other bytes are shown as \\udcXX."""
    return str(text).encode(errors="backslashreplace").decode()


def _read_file(path: str | Path, name: str) -> bytes:
    """The bytes of a regular file. Pipes and devices are not opened: reading one may wait forever, or never end."""
    try:
        about = os.stat(path)  # noqa: PTH116
        if stat.S_ISREG(about.st_mode) and about.st_size <= MAX_BYTES:
            with open(path, "rb", opener=_open_at_once) as file:
                return file.read(about.st_size)
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        raise UnreadableImage(name, _reason(error)) from error
    if stat.S_ISREG(about.st_mode):
        raise UnreadableImage(name, f"{about.st_size:,} bytes, more than the limit of {MAX_BYTES:,}")
    raise UnreadableImage(name, f"{_KINDS.get(stat.S_IFMT(about.st_mode), 'something else')}, not a regular file")


_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # in case it became a pipe a moment ago


def _wrong_checksum(png: bytes) -> int | None:
    """Where the first chunk of pixels begins whose checksum is wrong; PIL does not compare these."""
    place = 8
    while place + 12 <= len(png):
        end = place + 8 + int.from_bytes(png[place : place + 4], "big")
        kind = png[place + 4 : place + 8]
        if kind == b"IDAT" and end + 4 <= len(png):  # one that is cut short is refused when it is decoded
            if zlib.crc32(memoryview(png)[place + 4 : end]) != int.from_bytes(png[end : end + 4], "big"):
                return place
        elif kind == b"IEND":
            return None
        place = end + 4
    return None


def _to_8_bits(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind == "f":
        values = np.nan_to_num(values) * (255.0 if values.max(initial=0.0) <= 1.0 else 1.0)
    elif values.dtype == np.uint16 or values.max(initial=0) > 255:
        values = values >> 8
    return np.clip(values, 0, 255).astype(np.uint8)


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format"
    if isinstance(error, FileNotFoundError):
        return "the file does not exist"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read ({error.strerror})"
    return f"cannot be decoded ({type(error).__name__}: {error})"
