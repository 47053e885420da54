"""Semantic segmentation of a backbone: UperNet on it is trained, or was, and is scored on the validation set."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from mixlab.choices import InferenceMode
from mixlab.data.decode import UnreadableImage
from mixlab.data.given import AnyData, Data, as_data
from mixlab.data.mask_formats import parse_label_maps
from mixlab.data.masks import MaskedImage, MaskSource
from mixlab.data.source import at_most
from mixlab.errors import check_kind
from mixlab.evaluation.dense_task import DensePlan, DenseRun, plan_dense, trained_run
from mixlab.evaluation.machine import Bar, no_bar
from mixlab.evaluation.segmentation.evaluate import SegmentationScores, score_label_maps
from mixlab.evaluation.segmentation.recipe import SegmentConfig, SegmentRecipe, segment, segment_64
from mixlab.evaluation.segmentation.upernet import Predictor
from mixlab.run import Measurement, Subject
from mixlab.run.protocols import SegmentationProtocol
from mixlab.training.distributed import num_workers, once_per_machine
from mixlab.training.precision import autocast

NUM_EXAMPLES = 6
PLAN = "plan_segmentation(backbone, data=...)"


class SegmentedExample(NamedTuple):
    pair: MaskedImage
    predicted: Tensor  # uint8 (H, W)


@dataclass(frozen=True, kw_only=True)
class SegmentationResult:
    """Scores of a segmentation network on a validation set, and a few predictions."""

    subject: Subject
    seed: int
    protocol: SegmentationProtocol
    scores: SegmentationScores
    classes: tuple[str, ...]
    n: int  # images
    skipped: dict[str, str]  # images that could not be read, and why
    examples: tuple[SegmentedExample, ...] = field(default=(), compare=False, repr=False)

    @property
    def measurements(self) -> list[Measurement]:
        if math.isnan(self.scores.miou):  # no pixel was counted
            return []
        low, high = self.scores.miou_interval or (None, None)
        about: dict[str, Any] = {"subject": self.subject, "protocol": self.protocol, "seed": self.seed}
        about |= {"low": low, "high": high, "n": self.n, "by_image": self.scores.by_group}
        return [Measurement(metric="miou", value=self.scores.miou, **about)]

    def to_json(self) -> dict[str, Any]:
        protocol = self.protocol
        inference = ("mode", "short_side", "long_side", "scales", "flip", "window", "stride")
        return {
            "task": "segmentation",
            "data": protocol.val_data or protocol.data,
            "split": protocol.split,
            "n": self.n,
            **self.scores.to_json(self.classes),
            "inference": {name: getattr(protocol, name) for name in inference},
            "model": self.subject.model,
            "subject": asdict(self.subject) | {"seed": self.seed},
            "weights": protocol.initial_weights,
            "frozen": protocol.frozen,
            "steps": protocol.steps,
            "seed": self.seed,
            "skipped": self.skipped,
            "measurements": [found.to_json() for found in self.measurements],
        }


plan_segmentation = partial(plan_dense, method=SegmentConfig, small=segment_64, published=segment)
"""What `fit_segmentation` trains; see `plan_dense`."""
plan_segmentation.__doc__ = plan_dense.__doc__  # for help()


def fit_segmentation(
    plan: DensePlan,
    run: str | Path,
    *,
    inference: InferenceMode = "single",
    num_val: int | None = None,
    device: str | None = "auto",
    bar: Bar = no_bar,
) -> SegmentationResult:
    """Train UperNet in the directory `run`, or resume there, and score it on at most `num_val` validation images.

    Raises `Stopped` after a signal, with everything saved.
    """
    check_kind(plan, DensePlan, f"give a plan: {PLAN}")
    score = partial(_score, data=plan.data, mode=inference, num_val=num_val, bar=bar)
    return plan.train(run, device=device, then=score)


def evaluate_segmentation(
    run: str | Path,
    data: AnyData,
    *,
    inference: InferenceMode = "single",
    num_val: int | None = None,
    training: str | None = None,
    device: str | None = "auto",
    bar: Bar = no_bar,
) -> SegmentationResult:
    """Score a network of `fit_segmentation`, finished or not, on any data with the same classes.

    `training` says how its backbone was trained before, if the run does not.
    """
    check_kind(run, str | Path, f"give the directory of a run; fit_segmentation({PLAN}, run) trains and scores a head")
    with trained_run(run, method=SegmentConfig, training=training, device=device) as trained:
        return _score(trained, data=as_data(data), mode=inference, num_val=num_val, bar=bar)


def _score(trained: DenseRun, *, data: Data, mode: InferenceMode, num_val: int | None, bar: Bar) -> SegmentationResult:
    recipe, config, world = trained.recipe, trained.config, trained.world
    method = config.method
    assert isinstance(recipe, SegmentRecipe) and isinstance(method, SegmentConfig)
    source = once_per_machine(world, lambda: parse_label_maps(data, split="val"))
    trained.check_classes(source, data)
    source = at_most(source, num_val)
    recipe.network.eval()
    rule = method.inference(mode)
    predictor = Predictor(recipe.network, rule, precise=autocast(config.precision, world.device))
    own_bar = bar if world.is_first else no_bar
    with own_bar(f"scoring ({mode})", -(-len(source) // world.size)) as step:
        scores, skipped = score_label_maps(
            predictor, source, world=world, workers=num_workers(config.data.workers, world), step=step
        )
    target = trained.target()
    return SegmentationResult(
        subject=target.subject,
        seed=config.seed,
        protocol=SegmentationProtocol(
            **trained.protocol(data, num_val), head="upernet", image=method.crop, mode=mode, **asdict(rule)
        ),
        scores=scores,
        classes=source.classes,
        n=len(source) - len(skipped),
        skipped=skipped,
        examples=tuple(_examples(predictor, source)) if world.is_first else (),
    )


def _examples(predictor: Predictor, source: MaskSource) -> list[SegmentedExample]:
    """A few, evenly spaced, without those that cannot be read: `skipped` names them."""
    chosen, pairs = at_most(source, NUM_EXAMPLES), []
    for index in range(len(chosen)):
        with suppress(UnreadableImage):
            pairs.append(chosen.load(index))
    return [SegmentedExample(pair, predictor(pair.image[None])[0].cpu()) for pair in pairs]
