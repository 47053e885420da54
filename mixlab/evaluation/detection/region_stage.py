"""One stage of heads on proposals: what it learns from, what it predicts, and the boxes it hands on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torchvision.models.detection._utils import BoxCoder
from torchvision.ops import box_iou, clip_boxes_to_image, roi_align

from mixlab.data.objects import Objects
from mixlab.evaluation.detection.heads import MASK_REGION, REGION, BoxHead, MaskHead, box_losses, mask_loss

SAMPLES = 2  # points along each side of a cell that is cut out (Mask R-CNN)

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


class Sample(NamedTuple):
    """R regions of one image, those on objects first. `owner` is the object with the largest overlap."""

    boxes: Tensor  # (R, 4)
    labels: Tensor  # int64 (R,): the object's class, or num_classes for background
    owner: Tensor  # int64 (P,): for the P regions on objects
    targets: Tensor  # (P, 4): the boxes of the owners
    is_truth: Tensor  # bool (R,): an object's own box, given as a proposal


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


def sample_regions(
    proposals: Tensor, objects: Objects, *, iou: float, number: int, share: float, num_classes: int
) -> Sample:
    """Draw `number` of the proposals (and the objects' own boxes), at most `share` of them on objects.

    A region is on an object if they overlap by at least `iou`, and background otherwise.
    """
    candidates = torch.cat([proposals, objects.boxes.to(proposals.dtype)])
    if len(objects.boxes):
        overlap, owner = box_iou(objects.boxes.to(proposals.dtype), candidates).max(dim=0)
    else:
        overlap = candidates.new_zeros(len(candidates))
        owner = torch.zeros(len(candidates), dtype=torch.int64, device=candidates.device)
    positive = draw((overlap >= iou).nonzero()[:, 0], int(number * share))
    negative = draw((overlap < iou).nonzero()[:, 0], number - len(positive))
    chosen = torch.cat([positive, negative])
    labels = torch.full((len(chosen),), num_classes, dtype=torch.int64, device=candidates.device)
    labels[: len(positive)] = objects.classes[owner[positive]]
    return Sample(
        boxes=candidates[chosen],
        labels=labels,
        owner=owner[positive],
        targets=objects.boxes[owner[positive]].to(proposals.dtype),
        is_truth=chosen >= len(proposals),
    )


def draw(numbers: Tensor, most: int) -> Tensor:
    """At most so many of the numbers, in random order."""
    return numbers[torch.randperm(len(numbers), device=numbers.device)[:most]]


def pool_regions(
    maps: Sequence[Tensor], strides: Sequence[int], finest: float, boxes: Sequence[Tensor], size: int
) -> Tensor:
    """Cut boxes, one (R_i, 4) per image, out of maps (B, C, h, w): (R, C, size, size) over all images in order.

    Boxes below twice `finest` pixels come from the first map; each doubling moves one level up (FPN, equation 1).
    torchvision's MultiScaleRoIAlign samples half a cell off (`aligned=False`), which costs high-IoU precision on small
    images; this uses the corrected operation that it is built on.
    """
    regions = with_image_number(boxes)  # (R, 5)
    side = (regions[:, 3:] - regions[:, 1:3]).clamp(min=0).prod(dim=1).sqrt()
    level = torch.floor(torch.log2(side / finest + 1e-6)).clamp(0, len(maps) - 1)
    pooled = maps[0].new_zeros(len(regions), maps[0].shape[1], size, size)
    for number, (features, stride) in enumerate(zip(maps, strides, strict=True)):
        chosen = (level == number).nonzero()[:, 0]
        cut = roi_align(
            features, regions[chosen].to(features.dtype), size, 1 / stride, sampling_ratio=SAMPLES, aligned=True
        )
        pooled = pooled.index_copy(0, chosen, cut.to(pooled.dtype))
    return pooled


def cut_masks(masks: Tensor, owner: Tensor, boxes: Tensor, *, size: int) -> Tensor:
    """What each box (R, 4) covers of its owner's mask, one of bool (N, H, W): 0 or 1, float (R, size, size)."""
    regions = torch.cat([owner[:, None].to(boxes.dtype), boxes], dim=1)
    cut = roi_align(masks[:, None].to(boxes.dtype), regions, size, 1.0, aligned=True)
    return (cut[:, 0] >= 0.5).to(boxes.dtype)


def with_image_number(boxes: Sequence[Tensor]) -> Tensor:
    """Boxes of several images as one table (R, 5) whose first column is the image's number."""
    return torch.cat(
        [torch.cat([torch.full_like(part[:, :1], number), part], dim=1) for number, part in enumerate(boxes)]
    )
