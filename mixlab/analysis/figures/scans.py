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
from matplotlib.patches import Rectangle
from torch import Tensor

from mixlab.analysis.figures.chart import STYLE
from mixlab.mixers import Grid
from mixlab.mixers.scan_orders import grid_order

NUM_WALKS = 4  # of every model but Vim and Mamba-Reg, which have two
CELL = 1.5  # inches a picture
SPAN = 1e-2  # the smallest weight that is shown, as a share of the largest
COLOURS = "viridis"
WORDS = {
    "forward": "the sequence",
    "h": "rows",
    "v": "columns",
    "snake": "snaking rows",
    "snake_v": "snaking columns",
    "w2": "windows of 2 x 2",
    "w7": "windows of 7 x 7",
    "skip0": "even rows and columns",
    "skip1": "odd rows, even columns",
    "skip2": "even rows, odd columns",
    "skip3": "odd rows and columns",
}


@dataclass(frozen=True)
class ScanPicture:
    scans: tuple[str, ...]
    grid: Grid
    matrix: Tensor  # (L, L): the mean of |M| over heads
    patch: int  # whose row is shown on the grid


def scan_pictures(models: Mapping[str, ScanPicture]) -> Figure:
    """A row for each model: its walks, the mean of |M| over all of them, and one row of that on the grid."""
    with mpl.rc_context(STYLE):
        columns = NUM_WALKS + 2
        figure = Figure(figsize=(columns * CELL, len(models) * CELL * 1.25), layout="constrained")
        parts = figure.subfigures(len(models), 1, squeeze=False)[:, 0]
        for (name, picture), part in zip(models.items(), parts, strict=True):
            part.suptitle(name, x=0.005, ha="left", fontsize=9, fontweight="bold")
            axes = part.subplots(1, columns)
            for axis in axes:
                axis.set_axis_off()
            for kind, axis in zip(picture.scans, axes, strict=False):
                draw_walk(axis, kind, picture.grid)
            draw_weights(axes[-2], picture.matrix, "matrix", picture)
            row = picture.matrix[picture.patch].reshape(picture.grid)
            draw_weights(axes[-1], row, "what one patch reads", picture)
        return figure


def draw_walk(axis: Axes, kind: str, grid: Grid) -> None:
    """One walk over the cells of a grid, from dark to bright, from a dot to an arrow; where it jumps, a dotted line.

    Cells that pad the grid are left out.
    """
    walk = {"forward": "h", "backward": "h_flip"}.get(kind, kind)
    tokens = grid_order(walk, grid, torch.device("cpu")).numpy()
    tokens = tokens[tokens < grid[0] * grid[1]]
    places = np.stack([tokens % grid[1], tokens // grid[1]], axis=1).astype(float)
    segments = np.stack([places[:-1], places[1:]], axis=1)
    lengths = np.linalg.norm(segments[:, 1] - segments[:, 0], axis=1)
    jumps = lengths > 1.2 * np.median(lengths)
    progress = np.linspace(0, 1, len(segments))
    colours = mpl.colormaps[COLOURS](0.95 * progress)
    cells = np.stack(np.meshgrid(range(grid[1]), range(grid[0])), axis=-1).reshape(-1, 2)
    axis.scatter(cells[:, 0], cells[:, 1], s=3, color="0.8", linewidths=0)
    axis.add_collection(LineCollection(list(segments[jumps]), colors=colours[jumps], linewidths=0.7, linestyles=":"))
    steps = LineCollection(list(segments[~jumps]), colors=colours[~jumps], linewidths=2.2, capstyle="round")
    axis.add_collection(steps)
    axis.plot(*places[0], "o", markersize=5, color=colours[0])
    before = places[-2] + 0.4 * (places[-1] - places[-2])
    axis.annotate("", xy=places[-1], xytext=before, arrowprops={"arrowstyle": "-|>", "lw": 1.6, "color": "0.15"})
    axis.set(xlim=(-0.8, grid[1] - 0.2), ylim=(grid[0] - 0.2, -0.8), aspect="equal")
    axis.set_title(in_words(kind), loc="left", fontsize=7)


def draw_weights(axis: Axes, weights: Tensor, title: str, picture: ScanPicture) -> None:
    """Weights on a logarithmic scale, all of a model on the same; on a grid, the patch that reads them has a frame."""
    largest = float(picture.matrix.max())
    axis.imshow(weights.numpy(), norm=LogNorm(largest * SPAN, largest, clip=True), interpolation="nearest")
    if weights.shape == picture.grid:
        row, column = divmod(picture.patch, picture.grid[1])
        axis.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="white", linewidth=1.5))
    axis.set_title(title, loc="left", fontsize=7)


def in_words(kind: str) -> str:
    if kind == "backward":
        return "the sequence, reversed"
    back = kind.endswith("_flip")
    return f"{WORDS[kind.removesuffix('_flip')]}{', reversed' if back else ''}"
