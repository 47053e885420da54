"""For one's own loop: features of images in memory, and a linear probe on them. No folder, no checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from mixlab.backbones.backbone import Backbone
from mixlab.backbones.wrapped import as_backbone
from mixlab.choices import OUTPUT
from mixlab.data.given import AnyData, as_data
from mixlab.data.images import parse_source
from mixlab.errors import InputError
from mixlab.evaluation.feature_cache import Extraction, check_batch, extract_features
from mixlab.evaluation.features import FeaturePlan, FeatureTable, head_inputs
from mixlab.evaluation.machine import CentreView, Machine, precision_in_use
from mixlab.evaluation.probe.heads import LR_BATCH, Head, HeadGroup, check_rates
from mixlab.evaluation.probe.result import best_head
from mixlab.evaluation.probe.training import CachedStream
from mixlab.evaluation.settings import LRS, WEIGHT_DECAYS
from mixlab.training.knn import LabelledFeatures, check_classes, check_features
from mixlab.training.schedules import cosine


def labelled_features(
    model: Backbone,
    data: AnyData,
    *,
    strategy: str = OUTPUT,
    blocks: int = 1,
    image: int | None = None,
    machine: Machine | None = None,
) -> LabelledFeatures:
    """Features of every readable image, for `knn_accuracy` and `linear_probe`; the label of unlabelled images is -1.

    By default, features are what the model returns; `strategy` and `blocks` as in `KnnSettings`. Images are centre
    crops of `image` px, the model's own size by default. The model keeps its train or eval mode.
    """
    model = as_backbone(model)
    machine, was_training = machine or Machine.of(model), model.training
    view = CentreView(image or model.image, model.crop_share)
    given = as_data(data)
    source = parse_source(given)
    check_batch(model, view, [source], machine)
    model.eval()
    try:
        plan = FeaturePlan.build(model, head_inputs(model, (blocks,), (strategy,)), source="stream", image=view.size)
        extraction = Extraction(plan, view, precision_in_use("auto", machine.world.device), stored="float32")
        table = extract_features(model, source, extraction, name=str(given), machine=machine)
    finally:
        model.train(was_training)
    return LabelledFeatures(table.all().to(machine.world.device), table.labels)


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
    check_features(train, val)
    if epochs < 1 or batch < 1 or not len(train) or not len(val):
        raise InputError(f"{epochs} epochs of {len(train)} features, scored on {len(val)}; give at least 1 of each")
    check_rates(lrs, weight_decays)
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
    right = (group.logits(val.features.to(device).float()).argmax(-1).cpu() == val.labels[:, None]).mT  # (heads, n)
    best = best_head(right, group.finite())
    return LinearProbe(
        float(right[best].double().mean()),
        group.weight[best],
        group.bias[best],
        heads[best].lr,
        heads[best].weight_decay,
    )
