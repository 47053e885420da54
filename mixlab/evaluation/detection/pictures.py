"""Detections beside the truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import hsv_to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from torch import Tensor

from mixlab.data.coco import decode_segmentation

MIN_SCORE = 0.5  # of what is shown
_CELL = 2.2  # inches a picture
_PAIRS = 2  # in a row
_LABEL = 0.06  # of the height: boxes that begin higher have their label inside
_FILM = 0.45

Entries = list[dict[str, Any]]  # COCO's annotations or results


def detection_pictures(
    images: Sequence[Tensor], truths: Sequence[Entries], found: Sequence[Entries], names: dict[int, str]
) -> Figure:
    """Pairs of truth and detections for images uint8 (3, H, W); `names` of COCO's categories."""
    rows = -(-len(images) // _PAIRS)
    figure = Figure(figsize=(2 * _PAIRS * _CELL, _CELL * rows + 0.3), layout="constrained")
    axes = figure.subplots(rows, 2 * _PAIRS, squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    pairs = axes.reshape(-1, 2)
    for (left, right), image, truth, answers in zip(pairs, images, truths, found, strict=False):
        sure = [entry for entry in answers if entry["score"] >= MIN_SCORE]
        for ax, entries in ((left, truth), (right, sure)):
            draw_objects(ax, image.permute(1, 2, 0).numpy(), entries, names)
    for left, right in pairs[: min(_PAIRS, len(images))]:
        left.set_title("truth", fontsize=9)
        right.set_title(f"found, score ≥ {MIN_SCORE}", fontsize=9)
    return figure


def draw_objects(ax: Axes, image: NDArray[np.uint8], entries: Entries, names: dict[int, str]) -> None:
    """The image with masks as a colour film, boxes, and what they are."""
    height, width = image.shape[:2]
    film = np.zeros((height, width, 4))
    for entry in entries:
        film[decode_segmentation(entry["segmentation"], height, width)] = [*_colour(entry, names), _FILM]
    ax.imshow(image, interpolation="nearest")
    ax.imshow(film, interpolation="nearest")
    for entry in entries:
        left, top, across, down = entry["bbox"]
        colour = _colour(entry, names)
        ax.add_patch(Rectangle((left - 0.5, top - 0.5), across, down, fill=False, edgecolor=colour, linewidth=1.2))
        score = f" {entry['score']:.2f}" if "score" in entry else " crowd" if entry.get("iscrowd") else ""
        ax.text(
            max(left, 0),
            top,
            f"{names[entry['category_id']]}{score}",
            fontsize=5.5,
            color="white",
            verticalalignment="bottom" if top > _LABEL * height else "top",
            clip_on=True,
            bbox={"facecolor": colour * 0.6, "edgecolor": "none", "pad": 0.6, "alpha": 0.85},
        )


def _colour(entry: dict[str, Any], names: dict[int, str]) -> NDArray[np.float64]:
    """Bright, and far from its neighbours: the golden ratio goes around the circle of hues."""
    hue = list(names).index(entry["category_id"]) * 0.618034 % 1.0
    return np.asarray(hsv_to_rgb((hue, 0.8, 0.95)))
