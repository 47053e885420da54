"""Training a detector on a backbone, frozen or not: a method for the one training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from mixlab.backbones.backbone import Backbone
from mixlab.data.dense_batches import ObjectBatch, ObjectReader, Resizing
from mixlab.data.loader import BatchLoader
from mixlab.data.objects import ObjectSource, parse_objects
from mixlab.data.sample_order import AspectOrder
from mixlab.data.source import at_most
from mixlab.errors import InputError
from mixlab.evaluation.dense.pyramid import Pyramid
from mixlab.evaluation.dense.recipe import DenseConfig, DenseRecipe, DenseScores
from mixlab.evaluation.detection.detector import Detector, DetectorConfig, HeadKind, ProposalConfig, to_input
from mixlab.evaluation.detection.evaluate import find_objects, score_detections
from mixlab.evaluation.detection.region_stage import RegionConfig
from mixlab.training.batches import build_batches
from mixlab.training.config import TrainConfig
from mixlab.training.distributed import World, num_workers
from mixlab.training.live_scores import Score
from mixlab.training.precision import Precise


@dataclass(frozen=True, kw_only=True)
class DetectionConfig(DenseConfig):
    """Mask R-CNN or Cascade Mask R-CNN. The defaults are theirs for photographs with a short side of 800 pixels."""

    kind: ClassVar[str] = "detect"
    title: ClassVar[str] = "detection"
    shown: ClassVar[tuple[str, ...]] = ("boxes_AP", "masks_AP")
    head: HeadKind = "mask"
    short: tuple[int, int] = (800, 800)  # pixels; with two numbers the side is drawn in steps of 32
    long: int = 1333
    flip: float = 0.5
    keep_empty: bool = True  # learn from images without objects too
    channels: int = 256  # of the FPN and the heads
    hidden: int = 1024  # of the box head
    mask_convs: int = 4
    agnostic_boxes: bool = False  # one box for all classes; in a cascade always
    agnostic_masks: bool = False
    anchor_scale: float = 8.0  # sides of anchors in strides
    finest: float = 56.0  # pixels; regions below twice that are cut from the finest map
    candidates: int = 2000  # the best anchors of an image, of which NMS keeps `proposals`
    proposals: int = 1000
    anchors: int = 256  # sampled from each image to learn proposals
    regions: int = 512  # sampled from each image to learn objects
    most: int = 100  # detections per image
    score_images: int = 500

    def __post_init__(self) -> None:
        for name in ("channels", "hidden", "candidates", "proposals", "anchors", "regions", "most", "score_images"):
            if getattr(self, name) < 1:
                raise InputError(f"method.{name} is {getattr(self, name)}; give at least 1")
        for name in ("anchor_scale", "finest"):
            if getattr(self, name) <= 0:
                raise InputError(f"method.{name} is {getattr(self, name)}; give a number above 0")
        self.resizing()

    @property
    def image(self) -> int:
        return self.short[1]

    def resizing(self) -> Resizing:
        return Resizing(short=self.short, long=self.long, flip=self.flip)

    def detector(self, num_classes: int) -> DetectorConfig:
        regions = RegionConfig(
            num_classes=num_classes,
            channels=self.channels,
            hidden=self.hidden,
            agnostic_boxes=self.agnostic_boxes or self.head == "cascade",
            agnostic_masks=self.agnostic_masks,
            mask_convs=self.mask_convs,
            finest=self.finest,
            regions=self.regions,
            most=self.most,
        )
        proposals = ProposalConfig(
            anchor_scale=self.anchor_scale,
            before=(self.candidates, self.candidates),
            after=(self.proposals, self.proposals),
            sampled=self.anchors,
        )
        return DetectorConfig(head=self.head, regions=regions, proposals=proposals)

    def build(self, backbone: Backbone, *, num_classes: int, total_steps: int, steps_per_epoch: int) -> DetectionRecipe:
        if num_classes < 1:
            raise InputError("the data lists no categories, so there is nothing to detect; add them to its JSON file")
        return DetectionRecipe(self, backbone, num_classes=num_classes)

    def open(self, data: str) -> ObjectSource:
        return parse_objects(data, keep_empty=self.keep_empty)

    def loader(self, source: ObjectSource, config: TrainConfig, *, world: World) -> BatchLoader[ObjectBatch]:
        sizes = np.array([source.load(index).size for index in range(len(source))])
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
        self, data: str, source: ObjectSource, config: TrainConfig, *, world: World, precise: Precise
    ) -> DenseScores:
        def score(network: nn.Module, stopped: Callable[[], bool]) -> Iterator[Score]:
            assert isinstance(network, Detector)
            held_out = at_most(parse_objects(data, split="val"), self.score_images)
            found = find_objects(
                network,
                held_out,
                self.resizing(),
                batch=config.part_size(world.size),
                world=world,
                precise=precise,
                workers=num_workers(config.data.workers, world),
                stopped=stopped,
            )
            for kind, figures in score_detections(held_out, found, world=world).figures.items():
                yield from ((f"{kind}_{name}", value) for name, value in figures.items() if value is not None)

        return DenseScores(self.score_every_epochs, score)


class DetectionRecipe(DenseRecipe):
    head_name = "detector"
    network: Detector

    def __init__(self, config: DetectionConfig, backbone: Backbone, *, num_classes: int) -> None:
        self.config, self.num_classes = config, num_classes
        pyramid = Pyramid(backbone, taps=config.taps, frozen=config.frozen)
        super().__init__(Detector(pyramid, config.detector(num_classes)), backbone_lr=config.backbone_lr)

    def loss(self, batch: ObjectBatch) -> tuple[Tensor, dict[str, Tensor]]:
        losses: dict[str, Tensor] = self.run(to_input(batch, self.backbone), batch.shapes(), batch.objects())
        total = torch.stack(list(losses.values())).sum()
        return total, {name: value.detach() for name, value in losses.items()}
