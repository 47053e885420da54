"""Segmentation metrics: one confusion matrix over the whole set, exact for any number of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mixlab.data.dense_batches import WholeReader
from mixlab.data.loader import BatchLoader
from mixlab.data.masks import IGNORE, MaskedImage, MaskSource
from mixlab.data.sample_order import SampleOrder
from mixlab.errors import InputError
from mixlab.evaluation.segmentation.upernet import Predictor
from mixlab.statistics import bootstrap_groups
from mixlab.training.distributed import World, entries_of_all, from_all
from mixlab.training.stopping import never, until_stopped


@dataclass(frozen=True)
class SegmentationScores:
    """Shares in [0, 1]; NaN for a class that the set does not have."""

    matrix: NDArray[np.int64]  # (K, K): pixels by (truth, prediction)
    iou: NDArray[np.float64]  # (K,): NaN where neither truth nor prediction has the class
    accuracy: NDArray[np.float64]  # (K,): NaN where the truth has no such pixel
    pixels: NDArray[np.int64]  # (K,): of the truth
    miou: float
    macc: float
    aacc: float
    miou_interval: tuple[float, float] | None  # 95 %, over images
    by_group: NDArray[np.float64]  # (G,): the share of each group of images in the mIoU, which is their mean

    def to_json(self, classes: tuple[str, ...]) -> dict[str, Any]:
        rows = zip(classes, self.iou, self.accuracy, self.pixels, strict=True)
        return {
            "miou": _number(self.miou),
            "miou_interval": self.miou_interval,
            "macc": _number(self.macc),
            "aacc": _number(self.aacc),
            "classes": [
                {"name": name, "iou": _number(iou), "accuracy": _number(accuracy), "pixels": int(pixels)}
                for name, iou, accuracy, pixels in rows
            ],
        }


class ConfusionMatrix:
    """Counts of pixels by (truth, prediction); pixels whose truth is IGNORE are left out.

    Images may be counted in several groups, which `scores_of` resamples for an interval.
    """

    def __init__(self, num_classes: int, *, num_groups: int = 1, device: torch.device | None = None) -> None:
        self.num_classes = num_classes
        self.matrices = torch.zeros(num_groups, num_classes, num_classes, dtype=torch.int64, device=device)

    def update(self, predicted: Tensor, truth: Tensor, *, group: int = 0) -> None:
        """Class numbers of the same shape."""
        if predicted.shape != truth.shape:
            raise InputError(f"predictions {tuple(predicted.shape)} and truth {tuple(truth.shape)} differ in shape")
        counted = truth != IGNORE
        true, guessed = truth[counted].long(), predicted[counted].long()
        pairs = true * self.num_classes + guessed
        for what, values in (("truth", true), ("a prediction", guessed)):
            if len(values) and not 0 <= int(values.min()) <= int(values.max()) < self.num_classes:
                raise InputError(
                    f"{what} holds classes from {int(values.min())} to {int(values.max())}; there are 0 to "
                    f"{self.num_classes - 1}, and {IGNORE} for what is not counted"
                )
        counts = torch.bincount(pairs, minlength=self.num_classes**2)
        self.matrices[group] += counts.reshape(self.num_classes, self.num_classes)

    def compute(self) -> NDArray[np.int64]:
        """The counts of all processes, (G, K, K)."""
        total: NDArray[np.int64] = np.sum(from_all(self.matrices.cpu().numpy()), axis=0)
        return total


def scores_of(matrices: NDArray[np.int64]) -> SegmentationScores:
    """The usual scores of counts (G, K, K) by (truth, prediction), over all groups."""
    matrix = matrices.sum(axis=0)
    right, true, guessed = np.diag(matrix), matrix.sum(axis=1), matrix.sum(axis=0)
    iou, accuracy = _share(right, true + guessed - right), _share(right, true)
    overall = float(right.sum() / matrix.sum()) if matrix.any() else float("nan")
    miou, by_group = _mean(iou), shares_of_groups(matrices)
    return SegmentationScores(matrix, iou, accuracy, true, miou, _mean(accuracy), overall, interval(matrices), by_group)


def shares_of_groups(matrices: NDArray[np.int64]) -> NDArray[np.float64]:
    """What each group of counts (G, K, K) does to the mIoU, as if that were a mean over groups: its influence function.

    A class's IoU I / U changes by (i - IoU u) / U with the counts i and u of a group. So these numbers have the mIoU as
    their mean and its variance over groups (the delta method), and two networks are compared on them in pairs. NaN of a
    group without a pixel.
    """
    correct = matrices.diagonal(axis1=1, axis2=2)  # (G, K)
    either = matrices.sum(axis=1) + matrices.sum(axis=2) - correct
    known = either.sum(axis=0) > 0
    union = either.sum(axis=0)[known]
    iou = correct.sum(axis=0)[known] / union
    counted = matrices.any(axis=(1, 2))
    influence = counted.sum() * ((correct[:, known] - iou * either[:, known]) / union).mean(axis=1)
    return np.where(counted, iou.mean() + influence, np.nan) if known.any() else np.full(len(matrices), np.nan)


def interval(matrices: NDArray[np.int64]) -> tuple[float, float] | None:
    """The 95 % interval of the mIoU, by drawing groups of counts (G, K, K) with replacement; None of fewer than two.

    A class that no drawn group has keeps its IoU in all of them. Left out, a rare class that scores 0 would raise every
    draw without it, and the interval would lie above the mIoU.
    """
    matrices = matrices[matrices.any(axis=(1, 2))]
    correct = matrices.diagonal(axis1=1, axis2=2)  # (G, K)
    either = matrices.sum(axis=1) + matrices.sum(axis=2) - correct
    whole = _share(correct.sum(axis=0), either.sum(axis=0))

    def mious(draws: NDArray[np.int64]) -> NDArray[np.float64]:
        right, union = draws @ correct, draws @ either  # (R, K)
        shares = np.divide(right, union, out=np.tile(whole, (len(draws), 1)), where=union > 0)
        return np.array([_mean(row) for row in shares])

    return bootstrap_groups(len(matrices), mious)


def _share(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)


def _mean(values: NDArray[np.float64]) -> float:
    """The mean without NaN."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


BATCH = 16
MOST_PIXELS = 2**20  # in one pass
MOST_GROUPS = 200  # of images, for the interval


def score_label_maps(
    predictor: Predictor,
    source: MaskSource,
    *,
    world: World,
    workers: int = 0,
    step: Callable[[int], None] = lambda count: None,
    stopped: Callable[[], bool] = never,
) -> tuple[SegmentationScores, dict[str, str]]:
    """Scores over all images of all processes, and what could not be read, by name.

    `step` is told how many more images of this process are done; `stopped` is as in `Scores`.
    """
    num_groups = min(MOST_GROUPS, len(source))
    matrix = ConfusionMatrix(len(source.classes), num_groups=num_groups, device=world.device)
    loader = BatchLoader(
        WholeReader(source),
        SampleOrder.in_turn(len(source), BATCH, world.rank, world.size),
        num_workers=workers,
        unreadable="drop",
        skip_limit=1.0,
    )
    passes = ((batch, places) for batch in loader for places in same_size(batch.pairs))
    for batch, places in until_stopped(passes, stopped):
        images, masks = (
            torch.stack([getattr(batch.pairs[place], part) for place in places]).to(world.device)
            for part in ("image", "mask")
        )
        for place, found, truth in zip(places, predictor(images), masks, strict=True):
            matrix.update(found, truth, group=int(batch.indexes[place]) % num_groups)
        step(len(places))
    return scores_of(matrix.compute()), entries_of_all(loader.skipped.reasons)


def same_size(pairs: Sequence[MaskedImage]) -> Iterator[list[int]]:
    """The places of pairs of one size together, as many as go into one pass."""
    groups: dict[torch.Size, list[int]] = {}
    for place, pair in enumerate(pairs):
        groups.setdefault(pair.mask.shape, []).append(place)
    for shape, group in groups.items():
        most = max(MOST_PIXELS // shape.numel(), 1)
        yield from (group[first : first + most] for first in range(0, len(group), most))
