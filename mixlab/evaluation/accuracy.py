"""Accuracies with their intervals, and the accuracy of a classifier that was just trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from mixlab.data.images import parse_source
from mixlab.data.labelled import align, is_held_out
from mixlab.data.source import ImageSource, Subset
from mixlab.evaluation.machine import CentreView
from mixlab.evaluation.target import load_target
from mixlab.run import Measurement, provenance
from mixlab.run.protocols import AccuracyProtocol
from mixlab.statistics import Estimate, accuracy_interval, wilson_interval
from mixlab.training.distributed import from_all, num_workers, once_per_machine

if TYPE_CHECKING:
    from mixlab.training.loop import Trainer


@dataclass(frozen=True)
class Accuracy:
    """`correct` of `n` images.

    >>> Accuracy(90, 100).to_json()["top1"]
    0.9
    """

    correct: int
    n: int
    answers: NDArray[np.bool_] | None = field(default=None, compare=False, repr=False)  # of each image, in their order

    @classmethod
    def of(cls, answers: ArrayLike) -> Accuracy:
        """Of answers (n,), True if correct, which it keeps: networks are compared image by image."""
        given = np.asarray(answers, dtype=bool)
        return cls(int(given.sum()), len(given), given)

    @property
    def estimate(self) -> Estimate:
        """The share with Wilson's 95 % interval."""
        return wilson_interval(self.correct, self.n) if self.answers is None else accuracy_interval(self.answers)

    def to_json(self) -> dict[str, Any]:
        """The share and its interval, which are None where no image was scored, and the counts."""
        found = self.estimate if self.n else None
        values = (None, None, None) if found is None else (found.value, found.low, found.high)
        return dict(zip(("top1", "low", "high"), values, strict=True)) | {"correct": self.correct, "n": self.n}


def write_accuracy(trainer: Trainer) -> None:
    """Evaluate what was just trained, split across ranks; the first rank writes results/accuracy.json.

    Nothing where the data has no validation set: then the network was trained on all images.
    """
    world, config = trainer.world, trainer.config
    val = once_per_machine(world, lambda: parse_source(trainer.data, split="val"))
    if not is_held_out(trainer.data, val, trainer.source):
        return
    splits = align(trainer.source, val)  # by the classes of the network, also where images were removed since
    view = CentreView(config.method.image, trainer.recipe.exported().crop_share)
    shares = 1 if config.sharding == "fsdp" else world.size  # a network in shards needs every rank in every pass
    own = Subset(splits.val, range(world.rank % shares, len(splits.val), shares))
    parts = from_all(_answers(trainer, own, view))[:shares]  # of each rank, which takes every `shares`-th image
    answers = {shares * index + rank: right for rank, part in enumerate(parts) for index, right in part.items()}
    found = Accuracy.of([answers[number] for number in sorted(answers)])
    if not world.is_first or found.n == 0:
        return
    target = load_target(str(trainer.folder.path), device="cpu")  # as exported, whole and as others will find it
    protocol = AccuracyProtocol(
        data=str(trainer.data),
        split="val",
        image=view.size,
        crop_share=view.crop_share,
        fit=view.fit,
        precision=config.precision,
    )
    measurement = Measurement.of("top1", found.estimate, subject=target.subject, protocol=protocol, seed=config.seed)
    result = {
        "kind": "accuracy",
        "subject": target.describe(),
        "data": str(trainer.data),
        "image": view.size,
        "num_classes": len(splits.classes),
        "score": found.to_json(),
        "measurements": [measurement.to_json()],
        "provenance": provenance(seed=config.seed, device=str(world.device)),
    }
    name, shown = trainer.folder.write("accuracy", result), found.estimate
    trainer.progress.say(
        f"accuracy {shown.value:.4g} [{shown.low:.4g}, {shown.high:.4g}] on {found.n:,} validation images, in "
        f"{trainer.folder.path / 'results' / name}.json"
    )


@torch.no_grad()
def _answers(trainer: Trainer, source: ImageSource, view: CentreView) -> dict[int, bool]:
    """Whether the trained network classifies each image that could be read correctly, by its number."""
    recipe, device = trainer.recipe, trainer.world.device
    backbone = recipe.exported()
    recipe.network.eval()
    found: dict[int, bool] = {}
    workers = num_workers(trainer.config.data.workers, trainer.world)
    for batch in view.loader(source, batch=256, workers=workers) if len(source) else ():
        images = backbone.preprocess(view.crop(batch.images.to(device)))
        with trainer.update.precise():
            logits = recipe.network(images)
        right = logits.argmax(-1).cpu() == batch.labels
        found |= dict(zip(batch.indexes.tolist(), right.tolist(), strict=True))
    return found
