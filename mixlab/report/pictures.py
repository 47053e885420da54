"""Arrays as small PNG pictures inside the page. Enlarging is left to the browser."""

import base64
import io
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

# Dark to bright, even to the eye and with any colour vision: nine points of viridis, and nine of magma.
VIRIDIS = ("440154", "472d7b", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725")
MAGMA = ("000004", "180f3d", "440f76", "721f81", "9e2f7f", "cd4071", "f1605d", "fd9668", "fcfdbf")
MIME = {".svg": "image/svg+xml", ".png": "image/png"}
LARGEST = 448  # pixels a side; larger photographs are shrunk


def photograph(image: NDArray[np.uint8]) -> str:
    """uint8 (3, H, W) as a data URI."""
    picture = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
    picture.thumbnail((LARGEST, LARGEST))
    return _uri(picture)


def mask_picture(mask: NDArray[np.integer]) -> str:
    """Foreground white, background black, ignored grey."""
    levels = np.where(mask == 1, 255, np.where(mask == 0, 0, 128)).astype(np.uint8)
    return _uri(Image.fromarray(levels))


def map_picture(values: NDArray[np.floating], colours: tuple[str, ...] = VIRIDIS) -> str:
    """(h, w) scaled to its own range, dark low and bright high."""
    known = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    span = known.max() - known.min()
    return level_picture((known - known.min()) / span if span > 0 else np.zeros_like(known), colours)


def level_picture(levels: NDArray[np.floating], colours: tuple[str, ...] = VIRIDIS) -> str:
    """(h, w) in [0, 1] in colours."""
    anchors = np.array([[int(code[i : i + 2], 16) for i in (0, 2, 4)] for code in colours], dtype=np.float64)
    places = np.linspace(0, 1, len(anchors))
    rgb = np.stack([np.interp(levels, places, anchors[:, channel]) for channel in range(3)], axis=-1)
    return _uri(Image.fromarray(rgb.round().astype(np.uint8)))


def colour_picture(colours: NDArray[np.uint8]) -> str:
    """uint8 (h, w, 3)."""
    return _uri(Image.fromarray(np.ascontiguousarray(colours)))


def file_picture(path: Path) -> str:
    """A figure file as a data URI. In an <img>, nothing inside an SVG is ever run or fetched."""
    return f"data:{MIME[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"


def shrink(levels: NDArray[np.uint8], most: int = 260) -> NDArray[np.float64]:
    """A matrix of grey levels at most so large, the brightest of each patch kept; in [0, 1]."""
    step = math.ceil(levels.shape[0] / most)
    size = math.ceil(levels.shape[0] / step) * step
    padded = np.zeros((size, size), dtype=np.uint8)
    padded[: levels.shape[0], : levels.shape[1]] = levels
    return padded.reshape(size // step, step, size // step, step).max((1, 3)) / 255


def _uri(picture: Image.Image) -> str:
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
