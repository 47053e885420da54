"""Pictures of maps beside their images: rows of images, columns of models or heads."""

from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from mixlab.analysis.figures.chart import STYLE
from mixlab.analysis.pca import PCAMaps

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
