"""Detection with a backbone: (Cascade) Mask R-CNN on it is trained, or was, and is scored on the validation set."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from mixlab.data.given import AnyData, Data, as_data
from mixlab.data.objects import ObjectSource, parse_objects
from mixlab.data.source import at_most
from mixlab.errors import check_kind
from mixlab.evaluation.dense_task import DensePlan, DenseRun, plan_dense, trained_run
from mixlab.evaluation.detection.evaluate import DetectionAnswers, DetectionScores, find_objects, score_detections
from mixlab.evaluation.detection.recipe import DetectionConfig, DetectionRecipe, detect, detect_64
from mixlab.evaluation.machine import Bar, no_bar
from mixlab.run import Measurement, Subject
from mixlab.run.protocols import DetectionProtocol
from mixlab.training.distributed import num_workers, once_per_machine
from mixlab.training.precision import autocast

NUM_EXAMPLES = 6
PLAN = "plan_detection(backbone, data=...)"


class DetectedExample(NamedTuple):
    image: Tensor  # uint8 (3, H, W)
    truth: list[dict[str, Any]]  # COCO's annotations
    found: list[dict[str, Any]]  # and results


@dataclass(frozen=True, kw_only=True)
class DetectionResult:
    """Average precision of a detector on a validation set, its detections, and a few examples."""

    subject: Subject
    seed: int
    protocol: DetectionProtocol
    scores: DetectionScores
    answers: DetectionAnswers = field(repr=False)
    categories: dict[int, str]  # by COCO's numbers
    epochs: int
    examples: tuple[DetectedExample, ...] = field(default=(), compare=False, repr=False)

    @property
    def measurements(self) -> list[Measurement]:
        """AP of boxes and masks, with intervals over images."""
        about: dict[str, Any] = {"subject": self.subject, "protocol": self.protocol, "seed": self.seed}
        found = []
        for metric, kind in (("box_ap", "boxes"), ("mask_ap", "masks")):
            value, (low, high) = self.scores.values[kind]["AP"], self.scores.intervals[kind] or (None, None)
            if value is not None:
                found.append(
                    Measurement(metric=metric, value=value, low=low, high=high, n=self.scores.num_images, **about)
                )
        return found

    def to_json(self) -> dict[str, Any]:
        protocol, scores = self.protocol, self.scores
        return {
            "task": "detection",
            "head": protocol.head,
            "data": protocol.val_data or protocol.data,
            "split": protocol.split,
            "n": scores.num_images,
            "num_objects": scores.num_objects,
            "num_detections": len(self.answers.results),
            **scores.values,
            "intervals": scores.intervals,
            "classes": scores.classes,
            "model": self.subject.model,
            "subject": asdict(self.subject) | {"seed": self.seed},
            "weights": protocol.initial_weights,
            "frozen": protocol.frozen,
            "steps": protocol.steps,
            "epochs": self.epochs,
            "seed": self.seed,
            "skipped": self.answers.unreadable,
            "measurements": [found.to_json() for found in self.measurements],
        }


plan_detection = partial(plan_dense, method=DetectionConfig, small=detect_64, published=detect)
"""What `fit_detection` trains; see `plan_dense`."""
plan_detection.__doc__ = plan_dense.__doc__  # for help()


def fit_detection(
    plan: DensePlan, run: str | Path, *, num_val: int | None = None, device: str | None = "auto", bar: Bar = no_bar
) -> DetectionResult:
    """Train a detector in the directory `run`, or resume there, and score it on at most `num_val` validation images.

    Raises `Stopped` after a signal, with everything saved.
    """
    check_kind(plan, DensePlan, f"give a plan: {PLAN}")
    return plan.train(run, device=device, then=partial(_score, data=plan.data, num_val=num_val, bar=bar))


def evaluate_detection(
    run: str | Path,
    data: AnyData,
    *,
    num_val: int | None = None,
    training: str | None = None,
    device: str | None = "auto",
    bar: Bar = no_bar,
) -> DetectionResult:
    """Score a detector of `fit_detection`, finished or not, on any data with the same categories.

    `training` says how its backbone was trained before, if the run does not.
    """
    check_kind(run, str | Path, f"give the directory of a run; fit_detection({PLAN}, run) trains and scores a head")
    with trained_run(run, method=DetectionConfig, training=training, device=device) as trained:
        return _score(trained, data=as_data(data), num_val=num_val, bar=bar)


def _score(trained: DenseRun, *, data: Data, num_val: int | None, bar: Bar) -> DetectionResult:
    recipe, config, world = trained.recipe, trained.config, trained.world
    method = config.method
    assert isinstance(recipe, DetectionRecipe) and isinstance(method, DetectionConfig)
    source = once_per_machine(world, lambda: parse_objects(data, split="val"))
    trained.check_classes(source, data)
    source = at_most(source, num_val)
    own_bar = bar if world.is_first else no_bar
    with own_bar("scoring", -(-len(source) // world.size)) as step:
        answers = find_objects(
            recipe.network,
            source,
            method.resizing(),
            batch=max(1, config.batch // (world.size * config.accumulate)),  # ranks need not share a batch evenly
            world=world,
            precise=autocast(config.precision, world.device),
            workers=num_workers(config.data.workers, world),
            progress=step,
        )
    return DetectionResult(
        subject=trained.target().subject,
        seed=config.seed,
        protocol=DetectionProtocol(
            **trained.protocol(data, num_val),
            head=method.head,
            image=method.image,
            short_side=method.short[1],
            long_side=method.long,
        ),
        scores=score_detections(source, answers, world=world, intervals=True),
        answers=answers,
        categories=dict(zip(source.class_ids, source.classes, strict=True)),
        epochs=config.epochs,
        examples=tuple(_examples(source, answers)) if world.is_first else (),
    )


def _examples(source: ObjectSource, answers: DetectionAnswers) -> list[DetectedExample]:
    """The first few images with objects that could be read."""
    samples = (source.load(index) for index in range(len(source)))
    chosen = list(islice((one for one in samples if one.has_objects and one.number in answers.read), NUM_EXAMPLES))
    numbers = {one.number for one in chosen}
    found: dict[int, list[dict[str, Any]]] = {number: [] for number in numbers}
    for entry in answers.results:
        if entry["image_id"] in numbers:
            found[entry["image_id"]].append(entry)
    return [DetectedExample(one.image, one.annotations(), found[one.number]) for one in chosen]
