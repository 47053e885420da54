"""What one patch reads, over the image; and mixing matrices beside it."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from mixlab.analysis.figures.chart import STYLE
from mixlab.analysis.figures.ranks import shrunk

SIDE = 384  # pixels on the longer side of a drawn reading
WIDEST = 2.0  # of the columns with the image, in heights; or its inverse
_STRENGTH = 0.62  # of the colours over the image, as on the page


def framed(image: NDArray[np.uint8], cell: Sequence[int], grid: Sequence[int]) -> Image.Image:
    """An image (3, H, W) with a frame around one patch of its grid, seen on dark and on light."""
    picture = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
    return _frame(picture.resize(_size_of(image)), cell, grid)


def reading_over(image: NDArray[np.uint8], reading: NDArray[np.floating], cell: Sequence[int]) -> Image.Image:
    """The weights (h, w) with which the patch at `cell` reads, over the image (3, H, W) in grey: dark low, bright high.

    Its own weight would outshine the rest: it is drawn as the strongest of the others.
    """
    known = np.nan_to_num(reading.astype(np.float64), posinf=0.0, neginf=0.0)
    own = np.ravel_multi_index((cell[0], cell[1]), known.shape)
    others = np.delete(known.ravel(), own) if known.size > 1 else known.ravel()
    low, high = others.min(), others.max()
    levels = np.clip((known - low) / (high - low), 0, 1) if high > low else np.zeros_like(known)
    colours = Image.fromarray(mpl.colormaps["viridis"](levels, bytes=True)[..., :3])
    grey = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0))).convert("L").convert("RGB")
    parts = grey.resize(_size_of(image)), colours.resize(_size_of(image), Image.Resampling.NEAREST)
    return _frame(Image.blend(*parts, _STRENGTH), cell, known.shape)


def mixing_pictures(
    image: NDArray[np.uint8],
    models: Sequence[tuple[Mapping[str, Any], NDArray[np.uint8], NDArray[np.floating]]],
) -> Figure:
    """A row for each model: the image (3, H, W) with a patch, what that patch reads (h, w), and the matrices of some
    heads as grey levels (n, L, L)."""
    columns, cell = max(len(levels) for _, levels, _ in models), 2.1
    widths = [min(max(image.shape[2] / image.shape[1], 1 / WIDEST), WIDEST)] * 2 + [1] * columns
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(cell * sum(widths) + 1.1, cell * len(models) + 0.35), layout="constrained")
        ratios = {"width_ratios": widths}
        axes = figure.subplots(len(models), columns + 2, squeeze=False, gridspec_kw=ratios)
        for ax in axes.flat:
            ax.set_axis_off()
        for row, (about, levels, reading) in zip(axes, models, strict=True):
            row[0].imshow(framed(image, about["patch"], reading.shape))
            place = {"transform": row[0].transAxes, "va": "center", "ha": "right"}
            row[0].text(-0.06, 0.5, f"{about['label']}\nlayer {about['layer']}", fontsize=10, **place)
            row[1].imshow(reading_over(image, reading, about["patch"]))
            row[1].set_title("what it reads", loc="center", fontsize=8)
            for ax, head, one in zip(row[2:], about["heads"], levels, strict=False):
                ax.imshow(shrunk(one), cmap="magma", vmin=0, vmax=255, interpolation="nearest")
                ax.set_title(f"head {head} (0 to {about['num_heads'] - 1})", loc="center", fontsize=8)
    return figure


def _size_of(image: NDArray[np.uint8]) -> tuple[int, int]:
    """(width, height) of a drawn image (3, H, W)."""
    _, height, width = image.shape
    scale = SIDE / max(height, width)
    return round(scale * width), round(scale * height)


def _frame(picture: Image.Image, cell: Sequence[int], grid: Sequence[int]) -> Image.Image:
    high, wide = picture.height / grid[0], picture.width / grid[1]
    left, top = cell[1] * wide, cell[0] * high
    pen = ImageDraw.Draw(picture)
    for outside, colour, width in ((3, "black", 7), (1, "white", 3)):
        box = (left - outside, top - outside, left + wide + outside - 1, top + high + outside - 1)
        pen.rectangle(box, outline=colour, width=width)
    return picture
