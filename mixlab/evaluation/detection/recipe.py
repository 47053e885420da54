"""Detection as a method of the training loop; its recipes for COCO, as published, and for `shapes`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from mixlab.backbones.backbone import Backbone
from mixlab.data.dense_batches import ObjectBatch, ObjectReader, Resizing
from mixlab.data.given import Data
from mixlab.data.loader import BatchLoader
from mixlab.data.objects import ObjectSource, parse_objects
from mixlab.data.sample_order import AspectOrder
from mixlab.data.skipped import RemovedImage
from mixlab.data.source import at_most
from mixlab.errors import InputError, few
from mixlab.evaluation.dense_recipe import DenseConfig, DenseRecipe, DenseScores, published_drop_path
from mixlab.evaluation.detection.detector import Detector, to_input
from mixlab.evaluation.detection.evaluate import find_objects, score_detections
from mixlab.evaluation.detection.regions import DetectorConfig
from mixlab.evaluation.pyramid import Pyramid
from mixlab.training.batches import build_batches
from mixlab.training.config import (
    CheckpointConfig,
    DataConfig,
    LogConfig,
    ModelConfig,
    OptimConfig,
    TrainConfig,
    check_numbers,
)
from mixlab.training.distributed import World, num_workers, once_per_machine
from mixlab.training.live_scores import Score
from mixlab.training.precision import Precise


@dataclass(frozen=True, kw_only=True)
class DetectionConfig(DetectorConfig, DenseConfig):
    """Mask R-CNN or Cascade Mask R-CNN. The defaults are theirs for photographs with a short side of 800 pixels."""

    kind: ClassVar[str] = "detect"
    title: ClassVar[str] = "detection"
    label: ClassVar[str] = "Detection"
    command: ClassVar[str] = "detect"
    shown: ClassVar[tuple[str, ...]] = ("boxes_AP", "masks_AP")
    earlier: ClassVar[Mapping[str, Any]] = {**DenseConfig.earlier, "rules": "torchvision"}
    short: tuple[int, int] = (800, 800)  # pixels; with two numbers the side is drawn in steps of 32
    long: int = 1333
    flip: float = 0.5
    keep_empty: bool = True  # learn from images without objects too
    score_images: int = 500

    def __post_init__(self) -> None:
        counts = ("channels", "hidden", "candidates", "proposals", "anchors", "regions", "most", "score_images")
        above_zero = ("anchor_scale", "finest")
        check_numbers(self, "method.", at_least=dict.fromkeys(counts, 1), above_zero=above_zero)
        self.resizing()

    @property
    def image(self) -> int:
        return self.short[1]

    def resizing(self) -> Resizing:
        return Resizing(short=self.short, long=self.long, flip=self.flip)

    def as_begun(self, stored: Mapping[str, Any]) -> Self:
        begun = super().as_begun(stored)
        if "rules" in stored:
            return begun
        return replace(begun, rules=self.earlier["rules"], proposals=stored.get("proposals"))

    def build(self, backbone: Backbone, *, num_classes: int, total_steps: int, steps_per_epoch: int) -> DetectionRecipe:
        if num_classes < 1:
            raise InputError("the data lists no categories, so there is nothing to detect; add them to its JSON file")
        return DetectionRecipe(self, backbone, num_classes=num_classes)

    def open(self, data: Data) -> ObjectSource:
        """What cannot be scored in the end is refused before it is trained on."""
        val, train = parse_objects(data, split="val"), parse_objects(data, keep_empty=self.keep_empty)
        if val.classes != train.classes:
            alone = few(sorted(set(val.classes) ^ set(train.classes))) or "none, but the numbers of others"
            raise InputError(
                f"{data}: the {len(val.classes)} categories of the validation set are not the {len(train.classes)} of "
                f"the training set (only one of them has: {alone}); give both files the same list"
            )
        return train

    def loader(self, source: ObjectSource, config: TrainConfig, *, world: World) -> BatchLoader[ObjectBatch]:
        sizes = np.array([_size(source, index) for index in range(len(source))])
        order = None
        if len(source) >= config.batch:  # otherwise `build_batches` says what is wrong
            order = AspectOrder(
                len(source),
                config.part_size(world.size),
                config.seed,
                world.rank,
                world.size,
                tall=sizes[:, 0] > sizes[:, 1],
                group=config.batch,
            )
        reader = ObjectReader(source, self.resizing(), augment=True, seed=config.seed)
        return build_batches(reader, config, world=world, order=order)

    def scores(
        self, data: Data, source: ObjectSource, config: TrainConfig, *, world: World, precise: Precise
    ) -> DenseScores:
        def score(network: nn.Module, stopped: Callable[[], bool]) -> Iterator[Score]:
            assert isinstance(network, Detector)
            held_out = once_per_machine(world, lambda: parse_objects(data, split="val"))
            val_source = at_most(held_out, self.score_images)
            found = find_objects(
                network,
                val_source,
                self.resizing(),
                batch=config.part_size(world.size),
                world=world,
                precise=precise,
                workers=num_workers(config.data.workers, world),
                stopped=stopped,
            )
            for kind, values in score_detections(val_source, found, world=world).values.items():
                yield from ((f"{kind}_{name}", value) for name, value in values.items() if value is not None)

        return DenseScores(self.score_every_epochs, score)


def _size(source: ObjectSource, index: int) -> tuple[int, int]:
    try:
        return source.load(index).size
    except RemovedImage:
        return (0, 0)


class DetectionRecipe(DenseRecipe):
    head_name = "detector"
    network: Detector

    def __init__(self, config: DetectionConfig, backbone: Backbone, *, num_classes: int) -> None:
        self.config, self.num_classes = config, num_classes
        pyramid = Pyramid(backbone, taps=config.taps, frozen=config.frozen)
        detector = Detector(pyramid, config, num_classes=num_classes)
        super().__init__(detector, backbone_lr=config.backbone_lr, drop_path=config.drop_path)

    def loss(self, batch: ObjectBatch) -> tuple[Tensor, dict[str, Tensor]]:
        losses: dict[str, Tensor] = self.run(to_input(batch, self.backbone), batch.shapes(), batch.objects())
        total = torch.stack(list(losses.values())).sum()
        return total, {name: value.detach() for name, value in losses.items()}


def detect(model: ModelConfig) -> TrainConfig:
    """The 1x schedule on COCO: 12 epochs of 16 images of 1333 x 800, a tenth of the rate after 8 and 11.

    Cascade Mask R-CNN as Dino-Mamba, "Object Detection and Instance Segmentation Settings"; Mask R-CNN for MambaOut and
    models of timm, as MambaOut §4.3. Both are mmdetection's, in every number (`rules`).
    """
    single = model.name.startswith(("mambaout", "timm/"))
    decay = 0.05 if single else 0.1
    return TrainConfig(
        method=DetectionConfig(
            head="mask" if single else "cascade",
            drop_path=published_drop_path(model.name),
            keep_empty=False,
            score_every_epochs=1,
        ),
        model=model,
        optim=OptimConfig(
            lr=1e-4,
            lr_batch=16,
            decay="drops",
            drop_epochs=(8, 11),
            warmup_steps=500,
            warmup_start=1e-3,
            weight_decay=decay,
            weight_decay_end=decay,
        ),
        epochs=12,
        batch=16,
        checkpoint=CheckpointConfig(every_steps=1000),
        log=LogConfig(every_steps=50),
    )


def detect_64(model: ModelConfig) -> TrainConfig:
    """A small detector for images of about 64 px, without a GPU: minutes on two cores for `shapes`."""
    return TrainConfig(
        method=DetectionConfig(
            rules="torchvision",  # anchors around the middle of cells fit small objects better
            short=(64, 64),
            long=128,
            channels=32,
            hidden=128,
            mask_convs=2,
            anchor_scale=2.5,  # 10 to 40 px on the levels that count
            finest=10.0,
            candidates=200,
            proposals=50,
            anchors=64,
            regions=16,
            most=20,
        ),
        model=model,
        optim=OptimConfig(
            lr=1.5e-3, lr_batch=8, min_lr=1e-5, warmup_steps=100, weight_decay=0.05, weight_decay_end=0.05, clip=3.0
        ),
        data=DataConfig(size=64, workers=0),
        steps=2000,
        batch=8,  # many small steps learn faster than few large ones
        precision="fp32",
        checkpoint=CheckpointConfig(every_steps=500, keep=2),
        log=LogConfig(every_steps=20, tensorboard=False),
    )
