"""Pictures of maps beside their images: rows of images, columns of models or heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import hsv_to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray
from torch import Tensor

from mixlab.analysis.figures.chart import STYLE
from mixlab.analysis.pca import PCAMaps
from mixlab.data.coco import decode_segmentation
from mixlab.data.masks import IGNORE, MaskedImage, voc_palette

_CELL = 1.35  # inches a picture


def map_pictures(images: Tensor, maps: Mapping[str, Tensor], masks: Tensor | None = None) -> Figure:
    """Images uint8 (B, 3, H, W), then their masks if given, then each model's maps (B, h, w), dark low and bright high.

    Each map is scaled to its own range, as Binary-AUC sees only its order.
    """
    columns: dict[str, list[NDArray[np.generic]]] = {"image": [_pixels(image) for image in images]}
    if masks is not None:
        columns["mask"] = [mask.numpy() == 1 for mask in masks]
    columns |= {name: [_unit(one) for one in stack] for name, stack in maps.items()}
    return _grid_of_pictures(columns)


def part_pictures(image: Tensor, maps: Mapping[str, Tensor], part: str) -> Figure:
    """One image (3, H, W) and each model's maps (K, h, w) of heads or registers, a row per model."""
    count = max(len(stack) for stack in maps.values())
    columns: dict[str, list[NDArray[np.generic] | None]] = {"image": [_pixels(image) for _ in maps]}
    for index in range(count):
        columns[f"{part} {index}"] = [_unit(stack[index]) if index < len(stack) else None for stack in maps.values()]
    return _grid_of_pictures(columns, list(maps))


def pca_pictures(images: Tensor, components: Mapping[str, PCAMaps]) -> Figure:
    """Images, and for each model the first component, then components 2 to 4 as colours on its foreground."""
    columns: dict[str, list[NDArray[np.generic]]] = {"image": [_pixels(image) for image in images]}
    for name, found in components.items():
        columns[f"{name}\nfirst"] = [_unit(one) for one in found.first]
        columns[f"{name}\n2 to 4"] = [one.numpy() for one in found.colours]
    return _grid_of_pictures(columns)


def _grid_of_pictures(columns: Mapping[str, list], row_names: list[str] | None = None) -> Figure:
    num_rows = len(next(iter(columns.values())))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(_CELL * len(columns) + 0.3, _CELL * num_rows + 0.4), layout="constrained")
        axes = figure.subplots(num_rows, len(columns), squeeze=False)
        for column, (name, pictures) in enumerate(columns.items()):
            for row, picture in enumerate(pictures):
                ax = axes[row, column]
                ax.set_axis_off()
                if picture is not None:
                    ax.imshow(picture, interpolation="nearest", cmap="gray" if picture.dtype == bool else "viridis")
                if row == 0:
                    ax.set_title(name, loc="center", fontsize=8)
                if column == 0 and row_names is not None:
                    ax.text(-0.06, 0.5, row_names[row], rotation=90, va="center", ha="right", transform=ax.transAxes)
    return figure


def _pixels(image: Tensor) -> NDArray[np.generic]:
    return image.permute(1, 2, 0).numpy()


def _unit(one: Tensor) -> NDArray[np.generic]:
    values = one.double().numpy()
    span = values.max() - values.min()
    return (values - values.min()) / span if span > 0 else np.zeros_like(values)


_LABEL_CELL = 1.8  # inches a picture
_NOT_COUNTED = (255, 255, 255)
_MOST_NAMES = 24
MIN_SCORE = 0.5  # of what is shown
_OBJECT_CELL = 2.2  # inches a picture
_PAIRS = 2  # in a row
_INSIDE = 0.06  # of the height: boxes that begin higher have their label inside
_FILM = 0.45

Entries = list[dict[str, Any]]  # COCO's annotations or results


def prediction_pictures(pairs: Sequence[MaskedImage], predicted: Sequence[Tensor], classes: tuple[str, ...]) -> Figure:
    """Rows of image, truth and prediction uint8 (H, W); below them the classes that appear, most pixels first."""
    figure = Figure(figsize=(3 * _LABEL_CELL, _LABEL_CELL * len(pairs) + 0.9), layout="constrained")
    axes = figure.subplots(len(pairs), 3, squeeze=False)
    counts = np.zeros(256, dtype=np.int64)
    for row, (pair, classes_found) in enumerate(zip(pairs, predicted, strict=True)):
        truth, found = pair.mask.numpy(), classes_found.cpu().numpy()
        counts += np.bincount(truth.ravel(), minlength=256) + np.bincount(found.ravel(), minlength=256)
        pictures = {
            "image": pair.image.permute(1, 2, 0).numpy(),
            "truth": coloured(truth),
            "prediction": coloured(found),
        }
        for ax, (title, picture) in zip(axes[row], pictures.items(), strict=True):
            ax.imshow(picture, interpolation="nearest")
            ax.set_axis_off()
            if row == 0:
                ax.set_title(title, fontsize=9)
    counts[IGNORE] = 0
    seen = [number for number in np.argsort(-counts)[:_MOST_NAMES].tolist() if counts[number]]
    colours = _colours()
    patches = [Patch(facecolor=colours[number] / 255, label=classes[number][:24]) for number in seen]
    figure.legend(handles=patches, loc="outside lower center", ncols=4, fontsize=7, frameon=False)
    return figure


def coloured(mask: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Class numbers (H, W) as colours (H, W, 3); what is not counted is white."""
    return _colours()[mask]


def _colours() -> NDArray[np.uint8]:
    """PASCAL VOC's palette: no two classes look alike."""
    palette = voc_palette()
    palette[IGNORE] = _NOT_COUNTED
    return palette


def detection_pictures(
    images: Sequence[Tensor], truths: Sequence[Entries], found: Sequence[Entries], names: dict[int, str]
) -> Figure:
    """Pairs of truth and detections for images uint8 (3, H, W); `names` of COCO's categories."""
    rows = -(-len(images) // _PAIRS)
    figure = Figure(figsize=(2 * _PAIRS * _OBJECT_CELL, _OBJECT_CELL * rows + 0.3), layout="constrained")
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
            verticalalignment="bottom" if top > _INSIDE * height else "top",
            clip_on=True,
            bbox={"facecolor": colour * 0.6, "edgecolor": "none", "pad": 0.6, "alpha": 0.85},
        )


def _colour(entry: dict[str, Any], names: dict[int, str]) -> NDArray[np.float64]:
    """Bright, and far from its neighbours: the golden ratio goes around the circle of hues."""
    hue = list(names).index(entry["category_id"]) * 0.618034 % 1.0
    return np.asarray(hsv_to_rgb((hue, 0.8, 0.95)))
