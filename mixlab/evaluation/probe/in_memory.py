"""A linear probe on features in memory, for one's own loop: no folder, no checkpoints, no command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from mixlab.errors import InputError
from mixlab.evaluation.features import FeatureTable
from mixlab.evaluation.probe.heads import LR_BATCH, Head, HeadGroup
from mixlab.evaluation.probe.training import CachedStream
from mixlab.evaluation.settings import LRS, WEIGHT_DECAYS
from mixlab.training.knn import LabelledFeatures, check_classes
from mixlab.training.optim import cosine


@dataclass(frozen=True)
class LinearProbe:
    """The best of some linear classifiers: logits are `features @ weight.mT + bias`."""

    accuracy: float  # on the validation features, which also chose it
    weight: Tensor  # (K, D)
    bias: Tensor  # (K,)
    lr: float
    weight_decay: float


@torch.no_grad()
def linear_probe(
    train: LabelledFeatures,
    val: LabelledFeatures,
    *,
    epochs: int = 100,
    batch: int = 1024,
    lrs: Sequence[float] = LRS,
    weight_decays: Sequence[float] = WEIGHT_DECAYS,
    seed: int = 0,
) -> LinearProbe:
    """Train a linear classifier for each learning rate and weight decay, and return the one that is best on `val`.

    The same heads, steps and order as `evaluate_linear_probe` has for cached features. Rates are for a batch of 256.
    """
    if epochs < 1 or batch < 1 or not len(train) or not len(val):
        raise InputError(f"{epochs} epochs of {len(train)} features, scored on {len(val)}; give at least 1 of each")
    if not lrs or not weight_decays or min(lrs) <= 0 or min(weight_decays) < 0:
        raise InputError(f"lr {tuple(lrs)} and wd {tuple(weight_decays)}: give some lr above 0 and some wd from 0")
    device = train.features.device
    heads = [Head(1, "output", lr, decay) for lr, decay in product(lrs, weight_decays)]
    num_classes = 1 + int(max(train.labels.max(), val.labels.max()))
    check_classes(train.labels, num_classes, "the training set")
    check_classes(val.labels, num_classes, "the validation set")
    group = HeadGroup(heads, width=train.features.shape[1], num_classes=num_classes, seed=seed, device=device)
    table = FeatureTable.from_tensors(train.features, train.labels)
    stream = CachedStream(table, batch=min(batch, len(train)), seed=seed, device=device)
    batches = stream.steps(0)
    for epoch in range(epochs):
        rate = cosine(epoch, start=1.0, end=0.0, total=epochs) * stream.batch / LR_BATCH
        for _ in range(stream.steps_per_epoch):
            group.step(*next(batches), rate)
    right = group.logits(val.features.to(device).float()).argmax(-1).cpu() == val.labels[:, None]  # (n, heads)
    scores = right.double().mean(0)
    best = int(scores.argmax())
    return LinearProbe(
        float(scores[best]), group.weight[best], group.bias[best], heads[best].lr, heads[best].weight_decay
    )
