"""Predictions beside the truth, in colours with names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray
from torch import Tensor

from mixlab.data.mask_values import IGNORE, voc_palette
from mixlab.data.masks import MaskedImage

_CELL = 1.8  # inches a picture
_NOT_COUNTED = (255, 255, 255)
_MOST_NAMES = 24


def prediction_pictures(pairs: Sequence[MaskedImage], predicted: Sequence[Tensor], classes: tuple[str, ...]) -> Figure:
    """Rows of image, truth and prediction uint8 (H, W); below them the classes that appear, most pixels first."""
    figure = Figure(figsize=(3 * _CELL, _CELL * len(pairs) + 0.9), layout="constrained")
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
