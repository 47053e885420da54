"""kNN accuracy of frozen features: every validation image is classified by a weighted vote of its nearest neighbours
among the training images, as DINO does. The vote itself is `training.knn`, which live scores ask too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from mixlab.backbones.backbone import Backbone
from mixlab.data.labelled import LabelledSplits, label_subset, labelled_splits
from mixlab.data.source import at_most
from mixlab.evaluation.accuracy import Accuracy
from mixlab.evaluation.feature_cache import Extraction, extract_features
from mixlab.evaluation.features import OUTPUT, FeaturePlan, head_inputs, published_source
from mixlab.evaluation.machine import CROP_SHARE, CentreView, Machine, PrecisionChoice, precision_in_use
from mixlab.evaluation.target import Target, as_target
from mixlab.run import Measurement, Subject
from mixlab.run.protocols import KnnProtocol
from mixlab.training.distributed import from_all
from mixlab.training.knn import KS, TEMPERATURE, fitting_ks, knn_correct


@dataclass(frozen=True)
class KnnResult:
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
                "knn_top1",
                score.estimate,
                subject=self.subject,
                protocol=replace(self.protocol, k=k),
                seed=self.seed,
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
    data: str | LabelledSplits,
    *,
    ks: Sequence[int] = KS,
    temperature: float = TEMPERATURE,
    strategy: str = OUTPUT,
    blocks: int = 1,
    source: Literal["auto", "branch", "stream"] = "auto",
    label_share: float = 1.0,
    label_seed: int = 0,
    num_train: int | None = None,
    num_val: int | None = None,
    image: int | None = None,
    crop_share: float = CROP_SHARE,
    precision: PrecisionChoice = "auto",
    machine: Machine | None = None,
) -> KnnResult:
    """Accuracy for each k in `ks` that the training set has enough images for.

    `data` is labelled images: a name as the commands take it, or `labelled_splits` of one. `strategy` and `blocks` say
    which features are compared: what the backbone returns ("output"), or a pooling (`features.STRATEGIES`) of its last
    `blocks` layers out of `source`. `label_share` of each class are neighbours, chosen by `label_seed`.
    """
    found, splits = as_target(target), labelled_splits(data) if isinstance(data, str) else data
    backbone = found.backbone
    machine = machine or Machine.of(backbone)
    device, size = machine.world.device, image or backbone.image
    chosen_source = published_source(backbone) if source == "auto" else source
    plan = FeaturePlan.build(backbone, head_inputs(backbone, (blocks,), (strategy,)), source=chosen_source, image=size)
    in_use = precision_in_use(precision, device)
    extraction = Extraction(plan, CentreView(size, crop_share), in_use, stored="float32")
    train = label_subset(at_most(splits.train, num_train), label_share, seed=label_seed)
    bank = extract_features(backbone, train, extraction, name=splits.name("train"), machine=machine).to(device)
    val = at_most(splits.val, num_val)
    queries = extract_features(backbone, val, extraction, name=splits.name("val"), machine=machine)
    fitting = fitting_ks(ks, len(bank))
    own = queries.every(machine.world.size, machine.world.rank)
    with machine.bar("neighbours", len(own)) as step:
        right = knn_correct(
            bank,
            own,
            num_classes=len(splits.classes),
            ks=fitting,
            temperature=temperature,
            device=device,
            progress=step,
        )
    counts = from_all({k: int(hits.sum()) for k, hits in right.items()})
    protocol = KnnProtocol(
        data=splits.data,
        val_data=splits.val_data,
        num_images=num_val,
        image=size,
        crop_share=crop_share,
        fit=extraction.view.fit,
        precision=in_use,
        source=None if strategy == OUTPUT else chosen_source,
        blocks=None if strategy == OUTPUT else blocks,
        strategy=strategy,
        label_share=label_share,
        label_seed=label_seed if label_share < 1 else None,
        num_train=num_train,
        temperature=temperature,
    )
    return KnnResult(
        subject=found.subject,
        seed=found.seed,
        protocol=protocol,
        scores={k: Accuracy(sum(part[k] for part in counts), len(queries)) for k in fitting},
        num_neighbours=len(bank),
        num_classes=len(splits.classes),
        unreadable={**bank.unreadable, **queries.unreadable},
        unknown_classes=splits.unknown,
        absent_classes=splits.absent,
    )
