"""Draw the pictures of the first page, from the networks that come with mixlab: `python docs/draw_mixers.py`."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from PIL import Image

from mixlab.analysis.matrices import mean_matrix
from mixlab.data import parse_source
from mixlab.evaluation.target import Target, load_targets

GALLERY = Path(__file__).parent / "gallery"
MODELS = {
    "shipped/vit": "attention: anywhere",
    "shipped/dinovim": "Mamba: along the scan",
    "shipped/gatedconv": "convolution: nearby",
}
SIZE, GRID, PATCH = 192, 24, (9, 7)  # pixels, patches a side, and the patch on an eye


def photograph() -> NDArray[np.uint8]:
    """The cat that comes with mixlab, as a square."""
    picture = Image.fromarray(np.moveaxis(np.asarray(parse_source("photo:cat").load(0)), 0, -1))
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    return np.asarray(picture.crop((left, top, left + side, top + side)).resize((4 * SIZE, 4 * SIZE)))


@torch.no_grad()
def mean_among_patches(target: Target, image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The mean of |matrix| over the heads of the last layer, among the patches."""
    small = np.array(Image.fromarray(image).resize((SIZE, SIZE)))
    images = target.backbone.preprocess(torch.from_numpy(small).permute(2, 0, 1)[None])
    *_, (_, mixing) = target.backbone.mixings(images)
    patches = target.backbone.layout.patch_columns(GRID * GRID)
    return mean_matrix(mixing)[patches][:, patches].numpy()


def frame(axes: Axes, side: float) -> None:
    """The chosen patch, seen on dark and on light."""
    row, column = PATCH
    cell = side / GRID
    for colour, width in (("black", 4.0), ("white", 1.8)):
        axes.add_patch(Rectangle((column * cell, row * cell), cell, cell, fill=False, color=colour, linewidth=width))


def draw_tokens(image: NDArray[np.uint8]) -> None:
    """The photograph, and the same cut into 12 x 12 pieces with gaps."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.7), layout="constrained")
    left.imshow(image)
    left.set_title("an image …", fontsize=12)
    count, gap = 12, 10
    side = len(image) // count
    sheet = np.full((count * (side + gap) - gap, count * (side + gap) - gap, 3), 255, np.uint8)
    for row in range(count):
        for column in range(count):
            top, start = row * (side + gap), column * (side + gap)
            sheet[top : top + side, start : start + side] = image[
                row * side : (row + 1) * side, column * side : (column + 1) * side
            ]
    right.imshow(sheet)
    right.set_title("… is a set of patches: the tokens", fontsize=12)
    _save(figure, (left, right), "tokens.jpg")


def draw_rows(axes: list[Axes], image: NDArray[np.uint8], matrices: dict[str, NDArray[np.float32]]) -> None:
    """The photograph with its patch, then what that patch reads in each network."""
    axes[0].imshow(image)
    frame(axes[0], len(image))
    axes[0].set_title("this patch reads …", fontsize=12)
    grey = image.mean(-1)
    for place, (name, title) in zip(axes[1:], MODELS.items(), strict=True):
        row = matrices[name][PATCH[0] * GRID + PATCH[1]].reshape(GRID, GRID).copy()
        row[PATCH] = np.delete(row.ravel(), PATCH[0] * GRID + PATCH[1]).max()  # its own weight would outshine the rest
        place.imshow(grey, cmap="gray", extent=(0, GRID, GRID, 0))
        place.imshow(row, cmap="viridis", alpha=0.62, extent=(0, GRID, GRID, 0))
        frame(place, GRID)
        place.set_title(title, fontsize=12)


def draw_matrices(axes: list[Axes], matrices: dict[str, NDArray[np.float32]]) -> None:
    for place, (name, title) in zip(axes, MODELS.items(), strict=True):
        logs = np.log10(np.maximum(matrices[name], matrices[name].max() * 1e-4))
        place.imshow(logs, cmap="magma")
        place.axhline(PATCH[0] * GRID + PATCH[1], color="white", linewidth=0.8)
        place.set_title(title.partition(":")[0], fontsize=12)


def _save(figure: plt.Figure, axes: tuple[Axes, ...] | list[Axes], name: str) -> None:
    for place in axes:
        place.set_axis_off()
    figure.savefig(GALLERY / name, dpi=120, bbox_inches="tight", pad_inches=0.04)
    plt.close(figure)


if __name__ == "__main__":
    photo = photograph()
    found = {target.label: mean_among_patches(target, photo) for target in load_targets(tuple(MODELS), device="cpu")}
    draw_tokens(photo)
    figure, axes = plt.subplots(1, 4, figsize=(11, 3.1), layout="constrained")
    draw_rows(list(axes), photo, found)
    _save(figure, list(axes), "mixers.jpg")
    figure, axes = plt.subplots(1, 3, figsize=(8.4, 3.1), layout="constrained")
    draw_matrices(list(axes), found)
    _save(figure, list(axes), "mixer-matrices.jpg")
