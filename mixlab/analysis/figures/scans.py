"""Scan orders as walks over a grid, beside the matrices that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from torch import Tensor

from mixlab.analysis.figures.chart import STYLE
from mixlab.mixers import Grid
from mixlab.mixers.scan_orders import SEQUENCE, grid_order

NUM_WALKS = 4  # of every model but Vim and Mamba-Reg, which have two
CELL = 1.5  # inches a picture
SPAN = 1e-2  # the smallest weight that is shown, as a share of the largest


@dataclass(frozen=True)
class ScanPicture:
    scans: tuple[str, ...]
    grid: Grid
    matrix: Tensor  # (L, L): the mean of |M| over heads


def scan_pictures(models: Mapping[str, ScanPicture]) -> Figure:
    """A row for each model: its walks, from dark to bright, a dot where each begins; then the mean of |M| over all."""
    with mpl.rc_context(STYLE):
        size = ((NUM_WALKS + 1) * CELL, len(models) * CELL * 1.12)
        figure = Figure(figsize=size, layout="constrained")
        rows = figure.subplots(len(models), NUM_WALKS + 1, squeeze=False)
        for (name, picture), axes in zip(models.items(), rows, strict=True):
            for axis in axes:
                axis.set_axis_off()
            for kind, axis in zip(picture.scans, axes, strict=False):
                draw_walk(axis, kind, picture.grid)
            axes[0].set_title(f"{name}\n{picture.scans[0]}", loc="left", fontsize=8)
            weight = picture.matrix.abs().numpy()
            axes[-1].imshow(weight, norm=LogNorm(weight.max() * SPAN, weight.max(), clip=True), interpolation="nearest")
            axes[-1].set_title("mean |M|", loc="left", fontsize=8)
        return figure


def draw_walk(axis: Axes, kind: str, grid: Grid) -> None:
    """One walk over the cells of a grid; cells that pad it are left out."""
    walk = {"forward": "h", "backward": "h_flip"}.get(kind, kind) if kind in SEQUENCE else kind
    tokens = grid_order(walk, grid, torch.device("cpu")).numpy()
    tokens = tokens[tokens < grid[0] * grid[1]]
    places = np.stack([tokens % grid[1], tokens // grid[1]], axis=1).astype(float)
    steps = LineCollection(list(np.stack([places[:-1], places[1:]], axis=1)), cmap="viridis", linewidths=1.6)
    steps.set_array(np.arange(len(places) - 1))
    axis.add_collection(steps)
    axis.plot(*places[0], "o", markersize=4, color="black")
    axis.set(xlim=(-0.7, grid[1] - 0.3), ylim=(grid[0] - 0.3, -0.7), aspect="equal")
    axis.set_title(kind, loc="left", fontsize=8)
