"""kNN accuracy of frozen features: every validation image is classified by a weighted vote of its nearest neighbours
among the training images, as DINO does. The vote itself is `training.knn`, which live scores use too."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mixlab.backbones.backbone import Backbone
from mixlab.choices import OUTPUT
from mixlab.data.given import AnyData
from mixlab.data.labelled import LabelledSplits, labelled_splits
from mixlab.errors import check_kind
from mixlab.evaluation.accuracy import Accuracy
from mixlab.evaluation.feature_cache import Extraction, check_batch, describe_needs, extract_features
from mixlab.evaluation.features import FeaturePlan, head_inputs
from mixlab.evaluation.machine import Machine, precision_in_use
from mixlab.evaluation.settings import KnnSettings
from mixlab.evaluation.target import Target, as_target
from mixlab.run import Measurement, Subject
from mixlab.run.protocols import KnnProtocol
from mixlab.training.distributed import from_all
from mixlab.training.knn import check_temperature, fitting_ks, knn_correct


@dataclass(frozen=True)
class KnnResult:
    """kNN accuracies of one network, for each k."""

    subject: Subject
    seed: int | None  # of the network
    protocol: KnnProtocol  # of all scores; k is theirs
    scores: dict[int, Accuracy]  # by k
    num_neighbours: int
    num_classes: int
    unreadable: dict[str, str]
    unknown_classes: dict[str, int]  # of the validation set alone: images left out
    absent_classes: tuple[str, ...]  # of the training set alone

    @property
    def measurements(self) -> list[Measurement]:
        """One for each k."""
        return [
            Measurement.of(
                "knn_top1", score.estimate, subject=self.subject, protocol=replace(self.protocol, k=k), seed=self.seed
            )
            for k, score in self.scores.items()
            if score.n
        ]

    def to_json(self) -> dict[str, Any]:
        protocol = self.protocol
        return {
            "kind": "knn",
            "subject": asdict(self.subject) | {"seed": self.seed},
            "data": protocol.data,
            "val_data": protocol.val_data,
            "image": protocol.image,
            "strategy": protocol.strategy,
            "blocks": protocol.blocks,
            "temperature": protocol.temperature,
            "label_share": protocol.label_share,
            "num_neighbours": self.num_neighbours,
            "num_classes": self.num_classes,
            "scores": [{"k": k, **score.to_json()} for k, score in self.scores.items()],
            "unreadable": self.unreadable,
            "unknown_classes": self.unknown_classes,
            "absent_classes": list(self.absent_classes),
            "measurements": [found.to_json() for found in self.measurements],
        }


def evaluate_knn(
    target: Target | Backbone,
    data: AnyData | LabelledSplits,
    settings: KnnSettings = KnnSettings(),  # noqa: B008  frozen
    *,
    machine: Machine | None = None,
) -> KnnResult:
    """kNN accuracy for each k for which the training set has enough images.

    `data` is labelled images: a name as for `--data`, a `Source`, a data set of (image, label), a mapping of "train"
    and "val", or `labelled_splits` of these.
    """
    check_kind(settings, KnnSettings, "give mixlab.KnnSettings(...)")
    check_temperature(settings.temperature)
    found, splits = as_target(target), labelled_splits(data)
    backbone, cut = found.backbone, settings.cut(splits)
    machine = machine or Machine.of(backbone)
    device, of_output = machine.world.device, settings.strategy == OUTPUT
    protocol = KnnProtocol(
        **settings.protocol(backbone, splits, device) | ({"source": None} if of_output else {}),
        blocks=None if of_output else settings.blocks,
        strategy=settings.strategy,
        temperature=settings.temperature,
    )
    view = settings.view(backbone)
    check_batch(backbone, view, (cut.train, cut.val), machine)
    inputs = head_inputs(backbone, (settings.blocks,), (settings.strategy,))
    plan = FeaturePlan.build(backbone, inputs, source=settings.read_source(backbone), image=view.size)
    extraction = Extraction(plan, view, precision_in_use(settings.precision, device), stored="float32")
    if needs := describe_needs(extraction, (cut.train, cut.val), machine):
        machine.say(needs)
    bank = extract_features(backbone, cut.train, extraction, name=splits.name("train"), machine=machine).to(device)
    queries = extract_features(backbone, cut.val, extraction, name=splits.name("val"), machine=machine)
    fitting = fitting_ks(settings.k, len(bank))
    own = queries.every(machine.world.size, machine.world.rank)
    with machine.bar("neighbours", len(own)) as step:
        right = knn_correct(
            bank,
            own,
            num_classes=len(splits.classes),
            ks=fitting,
            temperature=settings.temperature,
            device=device,
            progress=step,
        )
    parts = from_all(right)  # of each rank, which takes every size-th query
    return KnnResult(
        subject=found.subject,
        seed=found.seed,
        protocol=protocol,
        scores={k: Accuracy.of(_interleaved([part[k] for part in parts])) for k in fitting},
        num_neighbours=len(bank),
        num_classes=len(splits.classes),
        unreadable={**bank.unreadable, **queries.unreadable},
        unknown_classes=splits.unknown,
        absent_classes=splits.absent,
    )


def _interleaved(parts: list[Tensor]) -> Tensor:
    """Answers in the order of the images, from ranks that took every size-th of them."""
    together = torch.empty(sum(map(len, parts)), dtype=torch.bool)
    for rank, part in enumerate(parts):
        together[rank :: len(parts)] = part.cpu()
    return together
