"""Arrays as small PNG pictures inside the page. Enlarging is left to the browser."""

import base64
import io
from pathlib import Path

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray
from PIL import Image

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


def map_picture(values: NDArray[np.floating]) -> str:
    """(h, w) scaled to its own range, dark low and bright high."""
    known = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    span = known.max() - known.min()
    levels = (known - known.min()) / span if span > 0 else np.zeros_like(known)
    return _uri(Image.fromarray(mpl.colormaps["viridis"](levels, bytes=True)[..., :3]))


def colour_picture(colours: NDArray[np.uint8]) -> str:
    """uint8 (h, w, 3)."""
    return _uri(Image.fromarray(np.ascontiguousarray(colours)))


def file_picture(path: Path) -> str:
    """A figure file as a data URI. In an <img>, nothing inside an SVG is ever run or fetched."""
    return f"data:{MIME[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"


def _uri(picture: Image.Image) -> str:
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
