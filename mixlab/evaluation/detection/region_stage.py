"""One stage of heads on proposals: what it learns from, what it says, and the boxes it hands on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torchvision.models.detection._utils import BoxCoder
from torchvision.ops import clip_boxes_to_image

from mixlab.evaluation.detection.heads import MASK_REGION, REGION, BoxHead, MaskHead, box_losses, mask_loss
from mixlab.evaluation.detection.objects import Objects
from mixlab.evaluation.detection.region_pooling import cut_masks
from mixlab.evaluation.detection.region_sampling import Sample, sample_regions

Sizes = Sequence[tuple[int, int]]  # (height, width) of each image, without padding
Cut = Callable[[Sequence[Tensor], int], Tensor]  # boxes of each image, cells a side -> regions (R, C, cells, cells)


@dataclass(frozen=True, kw_only=True)
class RegionConfig:
    """How proposals become objects. The numbers are those of Mask R-CNN with FPN."""

    num_classes: int
    channels: int = 256
    hidden: int = 1024
    agnostic_boxes: bool = False
    agnostic_masks: bool = False
    mask_convs: int = 4
    finest: float = 56.0  # pixels; regions below twice that are cut from the finest map
    regions: int = 512  # learnt from, of each image
    positive_share: float = 0.25
    min_score: float = 0.05
    nms: float = 0.5
    most: int = 100  # detections per image


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The overlap that makes a region an object, the units in which boxes are corrected, and how much it counts."""

    iou: float
    weights: tuple[float, float, float, float]
    loss_weight: float = 1.0


class RegionStage(nn.Module):
    def __init__(self, config: RegionConfig, stage: Stage) -> None:
        super().__init__()
        self.config, self.stage, self.coder = config, stage, BoxCoder(stage.weights)
        self.boxes = BoxHead(
            config.channels, hidden=config.hidden, num_classes=config.num_classes, agnostic=config.agnostic_boxes
        )
        self.masks = MaskHead(
            config.channels,
            num_classes=config.num_classes,
            agnostic=config.agnostic_masks,
            num_convs=config.mask_convs,
        )

    def forward(
        self, cut: Cut, proposals: Sequence[Tensor], objects: Sequence[Objects], sizes: Sizes
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Weighted losses by name, and the sampled proposals (but for the objects' own boxes) corrected."""
        samples = [self.sample(boxes, truth) for boxes, truth in zip(proposals, objects, strict=True)]
        everywhere = [sample.boxes for sample in samples]
        on_objects = [sample.boxes[: len(sample.owner)] for sample in samples]
        labels = torch.cat([sample.labels for sample in samples])
        targets = self.coder.encode_single(torch.cat([sample.targets for sample in samples]), torch.cat(on_objects))

        scores, corrections = self.boxes(cut(everywhere, REGION))
        classify, correct = box_losses(scores, corrections, labels, targets)
        logits = self.masks(cut(on_objects, MASK_REGION))
        masks = torch.cat(
            [
                cut_masks(truth.masks, sample.owner, boxes, size=logits.shape[-1])
                for truth, sample, boxes in zip(objects, samples, on_objects, strict=True)
            ]
        )
        draw = mask_loss(logits, labels[labels < self.config.num_classes], masks)
        losses = {"loss_classes": classify, "loss_boxes": correct, "loss_masks": draw}
        refined = self.refine(corrections.detach(), everywhere, sizes)
        return (
            {name: value * self.stage.loss_weight for name, value in losses.items()},
            [boxes[~sample.is_truth] for boxes, sample in zip(refined, samples, strict=True)],
        )

    def sample(self, proposals: Tensor, objects: Objects) -> Sample:
        return sample_regions(
            proposals,
            objects,
            iou=self.stage.iou,
            number=self.config.regions,
            share=self.config.positive_share,
            num_classes=self.config.num_classes,
        )

    def decode(self, corrections: Tensor, boxes: Sequence[Tensor]) -> list[Tensor]:
        """Corrections (R, K or 1, 4) of the boxes of all images, one after the other: (R_i, K or 1, 4) each."""
        decoded = self.coder.decode_single(corrections.flatten(1), torch.cat(list(boxes)))
        return list(decoded.reshape(corrections.shape).split([len(part) for part in boxes]))

    def refine(self, corrections: Tensor, boxes: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        """The corrected boxes inside their images, (R_i, 4) each, where one correction serves all classes."""
        decoded = self.decode(corrections, boxes)
        return [clip_boxes_to_image(part[:, 0], size) for part, size in zip(decoded, sizes, strict=True)]
