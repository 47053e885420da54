"""Pictures beside their images: maps and components of models, label maps and detections beside the truth."""

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
from mixlab.data.source import evenly_spaced

Images = Tensor | Sequence[Tensor]  # stacked, or each in its own shape
MOST_PARTS, FEW_PARTS = 48, 16  # all heads of the largest Mamba-2, both directions; of more, such as channels, a few
TALLEST = 2.0  # times the width of a picture: taller ones are narrower than their column
NO_TICKS: dict[str, Any] = {"xticks": (), "yticks": ()}  # axes that are off lay theirs out nevertheless


def map_pictures(images: Images, maps: Mapping[str, Images], masks: Images | None = None) -> Figure:
    """Images uint8 (3, H, W), then their masks if given, then each model's maps (h, w), dark low and bright high.

    Each map is scaled to its own range, as Binary-AUC sees only its order.
    """
    columns: dict[str, list[NDArray[np.generic]]] = {"image": [_pixels(image) for image in images]}
    if masks is not None:
        columns["mask"] = [mask.numpy() == 1 for mask in masks]
    columns |= {name: [_unit(one) for one in stack] for name, stack in maps.items()}
    return _grid_of_pictures(columns)


def part_pictures(image: Tensor, maps: Mapping[str, Tensor], part: str) -> Figure:
    """One image (3, H, W) and each model's maps (K, h, w) of heads or registers, a row per model. Of many, such as a
    head for every channel, a few that are evenly spaced.
    """
    shown = {num: num if num <= MOST_PARTS else FEW_PARTS for num in map(len, maps.values())}
    numbers = sorted({index for num, most in shown.items() for index in evenly_spaced(num, most)})
    columns: dict[str, list[NDArray[np.generic] | None]] = {"image": [_pixels(image) for _ in maps]}
    for index in numbers:
        columns[f"{part} {index}"] = [_unit(stack[index]) if index < len(stack) else None for stack in maps.values()]
    return _grid_of_pictures(columns, list(maps))


def layer_pictures(
    image: NDArray[np.uint8], maps: Mapping[str, Mapping[str, NDArray[np.float64]]], *, marked: float, label: str
) -> Figure:
    """A row for each network: the image (3, H, W), and a map (h, w) for each of its layers, all on one scale from 0,
    whose meaning is `label`. Patches above `marked` have a ring.
    """
    columns, cell = max(len(row) for row in maps.values()), 1.35
    highest = max(marked, *(float(values.max()) for row in maps.values() for values in row.values()))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(cell * (columns + 1) + 1.6, cell * len(maps) + 0.5), layout="constrained")
        axes = figure.subplots(len(maps), columns + 1, squeeze=False, subplot_kw=NO_TICKS)
        for ax in axes.flat:
            ax.set_axis_off()
        for row, (name, found) in zip(axes, maps.items(), strict=True):
            row[0].imshow(image.transpose(1, 2, 0), interpolation="nearest")
            place = {"transform": row[0].transAxes, "va": "center", "ha": "right"}
            row[0].text(-0.08, 0.5, name.replace(", ", ",\n"), fontsize=9, **place)
            for ax, (title, values) in zip(row[1:], found.items(), strict=False):
                shown = ax.imshow(values, vmin=0, vmax=highest, interpolation="nearest", cmap="magma")
                down, across = (values > marked).nonzero()
                ax.scatter(across, down, s=14, facecolors="none", edgecolors="cyan", linewidths=0.9)
                ax.set_title(title, loc="center", fontsize=8)
        figure.colorbar(shown, ax=axes[:, -1].tolist(), label=label, shrink=min(1.0, 2 / len(maps)))
    return figure


def pca_pictures(images: Images, components: Mapping[str, Sequence[PCAMaps]]) -> Figure:
    """Images, and for each model the first component, then components 2 to 4 as colours on its foreground."""
    columns: dict[str, list[NDArray[np.generic]]] = {"image": [_pixels(image) for image in images]}
    for name, found in components.items():
        columns[f"{name}\nfirst component"] = [_unit(one) for part in found for one in part.first]
        columns[f"{name}\ncomponents 2 to 4"] = [one.numpy() for part in found for one in part.colours]
    return _grid_of_pictures(columns)


def _grid_of_pictures(
    columns: Mapping[str, Sequence[NDArray[Any] | None]],
    row_names: list[str] | None = None,
    *,
    cell: float = 1.35,  # inches that a picture is wide
    below: float = 0.0,  # inches of room for a legend
) -> Figure:
    """A row has the height that its first picture needs at the width of a column."""
    first = next(iter(columns.values()))
    shapes = [(1, 1) if picture is None else picture.shape for picture in first]
    heights = [cell * min(shape[0] / shape[1], TALLEST) for shape in shapes]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(cell * len(columns) + 0.3, sum(heights) + 0.4 + below), layout="constrained")
        ratios = {"height_ratios": heights}
        axes = figure.subplots(len(first), len(columns), squeeze=False, subplot_kw=NO_TICKS, gridspec_kw=ratios)
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


_MOST_NAMES = 24
MIN_SCORE = 0.5  # of what is shown
_OBJECT_CELL = 2.2  # inches a picture
_PAIRS = 2  # in a row
_INSIDE = 0.06  # of the height: boxes that begin higher have their label inside
_FILM = 0.45

Entries = list[dict[str, Any]]  # COCO's annotations or results


def prediction_pictures(pairs: Sequence[MaskedImage], predicted: Sequence[Tensor], classes: tuple[str, ...]) -> Figure:
    """Rows of image, truth and prediction uint8 (H, W) in PASCAL VOC's palette, white where pixels are ignored; below
    them the classes that appear, most pixels first.
    """
    palette = voc_palette()
    palette[IGNORE] = 255
    truths, found = [pair.mask.numpy() for pair in pairs], [one.cpu().numpy() for one in predicted]
    columns: dict[str, list[NDArray[np.generic]]] = {
        "image": [_pixels(pair.image) for pair in pairs],
        "truth": [palette[mask] for mask in truths],
        "prediction": [palette[mask] for mask in found],
    }
    figure = _grid_of_pictures(columns, cell=1.8, below=0.5)
    counts = np.sum([np.bincount(mask.ravel(), minlength=256) for mask in (*truths, *found)], axis=0)
    counts[IGNORE] = 0
    seen = [number for number in np.argsort(-counts)[:_MOST_NAMES].tolist() if counts[number]]
    patches = [Patch(facecolor=palette[number] / 255, label=classes[number][:24]) for number in seen]
    figure.legend(handles=patches, loc="outside lower center", ncols=4, fontsize=7, frameon=False)
    return figure


def detection_pictures(
    images: Sequence[Tensor], truths: Sequence[Entries], found: Sequence[Entries], names: dict[int, str]
) -> Figure:
    """Pairs of truth and detections for images uint8 (3, H, W); `names` of COCO's categories."""
    rows = -(-len(images) // _PAIRS)
    figure = Figure(figsize=(2 * _PAIRS * _OBJECT_CELL, _OBJECT_CELL * rows + 0.3), layout="constrained")
    axes = figure.subplots(rows, 2 * _PAIRS, squeeze=False, subplot_kw=NO_TICKS)
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
