"""Binary-AUC of many maps at once against a loop over images with scikit-learn and with torchmetrics, on the CPU.

Two rows per system: on masks of 224 px, where every system also brings each mask to the grid of the map (area average,
ignored pixels left out), and on cells, where that is done beforehand for all. The loops are given their quickest form:
no validation, and one thread, since a second only gets in the way of such small tensors. scikit-learn is left out where
it is not installed.
"""

import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc

from mixlab.analysis.binary_auc import binary_auc
from mixlab.analysis.foreground import split_mask
from mixlab.bench.timing import Row, measured
from mixlab.console import console

IGNORE = 255
GRID = (14, 14)
PIXELS = 224
NUM_IMAGES = 12_419  # ImageNet-S, validation, 919 classes


def make_sample(num_images: int) -> tuple[Tensor, Tensor]:
    """Noisy maps (B, 14, 14) and masks (B, 224, 224) of uint8: an ellipse per image with an ignored rim.

    The maps lie in [0, 1]: torchmetrics puts any others through a float32 sigmoid, which merges values.
    """
    generator = torch.Generator().manual_seed(0)
    maps = torch.rand(num_images, *GRID, generator=generator)
    axis = torch.linspace(-1, 1, PIXELS)
    masks = torch.empty(num_images, PIXELS, PIXELS, dtype=torch.uint8)
    for mask, shape in zip(masks, torch.rand(num_images, 4, generator=generator), strict=True):
        top, left = shape[:2] - 0.5
        height, width = 0.2 + 0.5 * shape[2:]
        distance = ((axis - top) / height).square()[:, None] + ((axis - left) / width).square()
        mask[:] = (distance < 1).to(torch.uint8)
        mask[(distance - 1).abs() < 0.05] = IGNORE
    return maps, masks


def score_in_a_loop(maps: Tensor, masks: Tensor, auc: Callable[[Tensor, Tensor], float]) -> Tensor:
    scores = []
    for values, mask in zip(maps, masks, strict=True):
        counted = mask != IGNORE
        foreground = (mask != 0) & counted
        if mask.shape != values.shape:
            both = torch.stack([foreground, counted]).float()[None]
            cover, share = F.interpolate(both, size=GRID, mode="area")[0]
            counted, foreground = share > 0, cover >= 0.5 * share
        scores.append(auc(values[counted], foreground[counted]))
    return torch.tensor(scores, dtype=torch.float64)


def systems() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Ours first, then those that are installed."""

    def torchmetrics_auc(values: Tensor, labels: Tensor) -> float:
        return binary_auroc(values, labels.int(), validate_args=False).item()

    found: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "mixlab": partial(binary_auc, ignore=IGNORE, normalize=False),
        "torchmetrics, loop": partial(score_in_a_loop, auc=torchmetrics_auc),
    }
    try:
        from sklearn.metrics import roc_auc_score
    except ImportError:
        console.print("scikit-learn is left out: it is not installed")
        return found
    return found | {"scikit-learn, loop": partial(score_in_a_loop, auc=lambda v, labels: roc_auc_score(labels, v))}


def measure_auc(*, num_images: int = NUM_IMAGES) -> list[Row]:
    """Seconds of each system (ours: the best of five; a loop: once) and the largest difference from ours."""
    threads = torch.get_num_threads()
    maps, masks = make_sample(num_images)
    foreground, background = split_mask(masks, GRID, ignore=IGNORE)
    cells = torch.where(foreground, 1, torch.where(background, 0, IGNORE)).to(torch.uint8)
    rows: list[Row] = []
    scorers = systems()
    for label, labels in ((f"masks of {PIXELS} px, resizing included", masks), ("cells, resizing excluded", cells)):
        ours, seconds_ours = torch.empty(0), 0.0
        for system, score in scorers.items():
            torch.set_num_threads(threads if system == "mixlab" else 1)
            score(maps[:10], labels[:10])  # warm up
            times = []
            for _ in range(5 if system == "mixlab" else 1):
                start = time.perf_counter()
                scores = score(maps, labels)
                times.append(time.perf_counter() - start)
            if system == "mixlab":
                ours, seconds_ours = scores, min(times)
            difference = float((scores - ours).abs().nan_to_num().max())
            if difference > 1e-6:
                raise RuntimeError(
                    f"{system} differs from mixlab by {difference:.2g}; speed is compared at 1e-6 at most"
                )
            row = {"input": label, "system": system, "num_images": num_images, "seconds": min(times)}
            rows.append(measured(row | {"times_ours": min(times) / seconds_ours, "difference": difference}))
    torch.set_num_threads(threads)
    return rows
