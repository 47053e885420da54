"""Binary-AUC accumulated over batches and processes."""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from mixlab.analysis.binary_auc import Resize, binary_auc
from mixlab.errors import InputError

# Scores are summed as whole multiples of 2^-36 (1.5e-11), so a sum does not depend on the order of images, batches or
# processes; int64 holds 134 million images.
_UNIT = 2.0**-36


class BinaryAUCReport(NamedTuple):
    """What a BinaryAUC has seen, over all processes."""

    mean: float  # over the scored images; NaN where there are none
    num_scored: int
    num_undefined: int  # images without foreground or without background, left out
    values: Tensor | None  # (B,) of every image, process by process, NaN where undefined; None unless kept


class BinaryAUC(Metric):
    """Mean `binary_auc` over images as a torchmetrics metric; the arguments are those of the function.

    compute() gives the mean as a float64 scalar, report() also the counts and, with keep_values=True, the per-image
    values (otherwise only sums are held). Any number of processes gives the single process's mean to the last bit.

    >>> metric = BinaryAUC(keep_values=True)
    >>> metric.update(torch.tensor([[[0.9, 0.1], [0.4, 0.4]]]), torch.tensor([[[1, 0], [1, 0]]]))
    >>> metric.update(torch.tensor([[[0.9, 0.1], [0.4, 0.4]]]), torch.tensor([[[1, 1], [1, 1]]]))
    >>> metric.compute()
    tensor(0.8750, dtype=torch.float64)
    >>> metric.report()
    BinaryAUCReport(mean=0.875, num_scored=1, num_undefined=1, values=tensor([0.8750,    nan], dtype=torch.float64))
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    arguments: Tensor  # (32,) of int64
    total: Tensor
    num_scored: Tensor
    num_undefined: Tensor
    values: list[Tensor]

    def __init__(
        self,
        *,
        ignore: int | float | None = None,
        normalize: bool = True,
        resize: Resize = "mask",
        threshold: float = 0.5,
        thresholds: int | Sequence[float] | Tensor | None = None,
        keep_values: bool = False,
        process_group: Any = None,
        sync_on_compute: bool = True,
    ) -> None:
        super().__init__(process_group=process_group, sync_on_compute=sync_on_compute)
        self.set_dtype(torch.float64)  # of the values that a process without images contributes
        self.ignore, self.normalize, self.resize, self.threshold = ignore, normalize, resize, threshold
        self.thresholds, self.keep_values = thresholds, keep_values
        # A MetricCollection updates only one of several metrics whose states are equal: with other arguments they never
        # are. It is the first state, so that metrics of other arguments are refused before anything is added.
        cut = None if threshold is None else float(threshold)
        choices = (ignore, normalize, resize, cut, _listed(thresholds), keep_values)
        self.add_state("arguments", default=_digest(choices), dist_reduce_fx=_the_same)
        for name in ("total", "num_scored", "num_undefined"):
            self.add_state(name, default=torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        if keep_values:
            self.add_state("values", default=[], dist_reduce_fx="cat")

    def update(self, maps: Tensor, masks: Tensor) -> None:
        """Score maps (B, h, w) against masks (B, H, W)."""
        scores = binary_auc(
            maps,
            masks,
            ignore=self.ignore,
            normalize=self.normalize,
            resize=self.resize,
            threshold=self.threshold,
            thresholds=self.thresholds,
        )
        defined = ~scores.isnan()
        self.total += (scores[defined] / _UNIT).round().long().sum()
        self.num_scored += defined.sum()
        self.num_undefined += (~defined).sum()
        if self.keep_values:
            self.values.append(scores)

    def compute(self) -> Tensor:
        """Mean over the scored images of all processes: a float64 scalar, NaN where there are none."""
        return self.total.double() * _UNIT / self.num_scored

    def report(self) -> BinaryAUCReport:
        """Mean, counts and values over all processes; like compute(), every process must call it."""
        mean = self.compute().item()
        with self.sync_context(should_sync=self.sync_on_compute):
            values = None
            if self.keep_values:
                # one tensor after a sync, else a list of one per batch
                parts = [self.values] if isinstance(self.values, Tensor) else self.values
                values = torch.cat([torch.zeros(0, dtype=torch.float64, device=self.device), *parts])
            return BinaryAUCReport(mean, int(self.num_scored), int(self.num_undefined), values)


def _listed(thresholds: int | Sequence[float] | Tensor | None) -> int | list[float] | None:
    return (
        thresholds if isinstance(thresholds, int | None) else torch.as_tensor(thresholds, dtype=torch.float64).tolist()
    )


def _digest(choices: tuple[Any, ...]) -> Tensor:
    """Whole numbers below 256 (32,), which are equal or differ by 1 at least: collections compare with a tolerance."""
    return torch.tensor(list(hashlib.sha256(repr(choices).encode()).digest()))


def _the_same(arguments: Tensor) -> Tensor:
    """Of processes or metrics (n, 32) that are added up."""
    if (arguments != arguments[0]).any():
        raise InputError("BinaryAUC of different arguments cannot be added up; give all of them the same arguments")
    return arguments[0]
