"""Heads on proposals: one stage with its sampling, losses, predictions, and boxes for the next stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, smooth_l1_loss
from torchvision.models.detection._utils import BoxCoder
from torchvision.ops import clip_boxes_to_image, roi_align

from mixlab.choices import HeadKind
from mixlab.data.objects import Objects
from mixlab.evaluation.detection.proposals import match
from mixlab.evaluation.detection.rules import RULES, Rules, RuleSet, Stage
from mixlab.ops.precision import at_least_float32

REGION = 7  # cells along the side of a region for the box head, Fast R-CNN
MASK_REGION = 14  # for the mask head, whose output is twice that: Mask R-CNN, figure 4


class BoxHead(nn.Module):
    """Two hidden layers, then class scores and box corrections: one box per class, or one for all (`agnostic`)."""

    def __init__(self, channels: int, *, hidden: int, num_classes: int, agnostic: bool) -> None:
        super().__init__()
        self.num_classes, self.num_boxes = num_classes, 1 if agnostic else num_classes
        self.hidden = nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels * REGION * REGION, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
        )
        self.classify = nn.Linear(hidden, num_classes + 1)
        self.correct = nn.Linear(hidden, 4 * self.num_boxes)
        nn.init.normal_(self.classify.weight, std=0.01)  # Fast R-CNN
        nn.init.normal_(self.correct.weight, std=0.001)
        nn.init.zeros_(self.classify.bias)
        nn.init.zeros_(self.correct.bias)

    def forward(self, regions: Tensor) -> tuple[Tensor, Tensor]:
        """Regions (R, C, 7, 7) -> scores (R, K + 1), background last, and corrections (R, K or 1, 4)."""
        features = self.hidden(regions)
        corrections = self.correct(features).unflatten(1, (self.num_boxes, 4))
        return at_least_float32(self.classify(features)), at_least_float32(corrections)


class MaskHead(nn.Module):
    """Four convolutions, a doubling of the size, and a mask per class, or one for all (`agnostic`)."""

    def __init__(self, channels: int, *, num_classes: int, agnostic: bool, num_convs: int) -> None:
        super().__init__()
        self.num_masks = 1 if agnostic else num_classes
        layers: list[nn.Module] = []
        for _ in range(num_convs):
            layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(inplace=True)]
        layers += [nn.ConvTranspose2d(channels, channels, 2, stride=2), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers)
        self.predict = nn.Conv2d(channels, self.num_masks, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        nn.init.normal_(self.predict.weight, std=0.001)  # Mask R-CNN starts undecided

    def forward(self, regions: Tensor) -> Tensor:
        """Regions (R, C, 14, 14) -> mask logits (R, K or 1, 28, 28)."""
        return at_least_float32(self.predict(self.layers(regions)))


def box_losses(
    scores: Tensor, corrections: Tensor, labels: Tensor, targets: Tensor, *, beta: float
) -> tuple[Tensor, Tensor]:
    """Cross-entropy over R regions; smooth L1 against `targets` (P, 4) of those on objects, over R too (Fast R-CNN)."""
    positive = (labels < scores.shape[1] - 1).nonzero()[:, 0]
    own = pick(corrections[positive], labels[positive])
    number = max(len(labels), 1)
    classify = cross_entropy(scores, labels, reduction="sum") / number
    return classify, smooth_l1_loss(own, targets, beta=beta, reduction="sum") / number


def mask_loss(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy of the mask of each region's own class against 0-or-1 targets (P, M, M)."""
    own = pick(logits, labels)
    return binary_cross_entropy_with_logits(own, targets, reduction="sum") / max(targets.numel(), 1)


def pick(per_class: Tensor, classes: Tensor) -> Tensor:
    """Of (R, K or 1, ...), what belongs to each region's class: (R, ...)."""
    column = classes if per_class.shape[1] > 1 else torch.zeros_like(classes)
    return per_class[torch.arange(len(classes), device=classes.device), column]


POSITIVE_SHARE = 0.25  # of sampled regions that are on objects, at most (Fast R-CNN)

Sizes = Sequence[tuple[int, int]]  # (height, width) of each image, without padding
Cut = Callable[[Sequence[Tensor], int], Tensor]  # boxes of each image, cells a side -> regions (R, C, cells, cells)


@dataclass(frozen=True, kw_only=True)
class DetectorConfig:
    """The parts of a detector. The defaults are those of Mask R-CNN with FPN in mmdetection."""

    head: HeadKind = "mask"
    rules: RuleSet = "mmdetection"  # see `rules`
    channels: int = 256  # of the FPN and the heads
    hidden: int = 1024  # of the box head
    mask_convs: int = 4
    agnostic_boxes: bool = False  # one box for all classes; in a cascade always
    agnostic_masks: bool = False
    anchor_scale: float = 8.0  # sides of anchors in strides: 32 to 512 px on strides 4 to 64
    finest: float = 56.0  # pixels; regions smaller than twice that are pooled from the finest map
    candidates: int = 2000  # the best anchors of a level, of which NMS keeps `proposals` of an image
    proposals: int | None = None  # None: 1,000, and 2,000 for a cascade by mmdetection's rules
    anchors: int = 256  # sampled from each image to learn proposals
    regions: int = 512  # sampled from each image to learn objects
    most: int = 100  # detections per image

    def chosen_rules(self) -> Rules:
        return RULES[self.rules, self.head]


class Sample(NamedTuple):
    """R regions of one image, those on objects first. `owner` is the object with the largest overlap."""

    boxes: Tensor  # (R, 4)
    labels: Tensor  # int64 (R,): the object's class, or num_classes for background
    owner: Tensor  # int64 (P,): for the P regions on objects
    targets: Tensor  # (P, 4): the boxes of the owners
    is_truth: Tensor  # bool (R,): an object's own box, given as a proposal


class RegionStage(nn.Module):
    def __init__(self, config: DetectorConfig, stage: Stage, num_classes: int) -> None:
        super().__init__()
        self.stage, self.rules, self.num_classes = stage, config.chosen_rules(), num_classes
        x, y, width, height = stage.units
        self.coder = BoxCoder((1 / x, 1 / y, 1 / width, 1 / height))
        self.sample = partial(
            sample_regions,
            iou=stage.iou,
            number=config.regions,
            share=POSITIVE_SHARE,
            num_classes=num_classes,
            keep_best=self.rules.keep_best,
        )
        one_box = config.agnostic_boxes or config.head == "cascade"  # handed on, it must not depend on a class
        self.boxes = BoxHead(config.channels, hidden=config.hidden, num_classes=num_classes, agnostic=one_box)
        self.masks = MaskHead(
            config.channels, num_classes=num_classes, agnostic=config.agnostic_masks, num_convs=config.mask_convs
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
        classify, correct = box_losses(scores, corrections, labels, targets, beta=self.rules.box_beta)
        logits = self.masks(cut(on_objects, MASK_REGION))
        masks = torch.cat(
            [
                cut_masks(truth.masks, sample.owner, boxes, size=logits.shape[-1])
                for truth, sample, boxes in zip(objects, samples, on_objects, strict=True)
            ]
        )
        draw = mask_loss(logits, labels[labels < self.num_classes], masks)
        losses = {"loss_classes": classify, "loss_boxes": correct, "loss_masks": draw}
        refined = self.refine(corrections.detach(), everywhere, sizes)
        return (
            {name: value * self.stage.loss_weight for name, value in losses.items()},
            [boxes[~sample.is_truth] for boxes, sample in zip(refined, samples, strict=True)],
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
    proposals: Tensor,
    objects: Objects,
    *,
    iou: float,
    number: int,
    share: float,
    num_classes: int,
    keep_best: bool = False,
) -> Sample:
    """Draw `number` of the proposals (and the objects' own boxes), at most `share` of them on objects.

    A region is on an object if they overlap by at least `iou`, and background otherwise; see `match`.
    """
    truth = objects.boxes.to(proposals.dtype)
    themselves = torch.arange(len(truth), device=proposals.device)
    owner = torch.cat([match(proposals, truth, iou, iou, keep_best=keep_best), themselves])
    candidates = torch.cat([proposals, truth])
    positive = draw((owner >= 0).nonzero()[:, 0], int(number * share))
    negative = draw((owner < 0).nonzero()[:, 0], number - len(positive))
    chosen = torch.cat([positive, negative])
    labels = torch.full((len(chosen),), num_classes, dtype=torch.int64, device=candidates.device)
    labels[: len(positive)] = objects.classes[owner[positive]]
    return Sample(
        boxes=candidates[chosen],
        labels=labels,
        owner=owner[positive],
        targets=truth[owner[positive]],
        is_truth=chosen >= len(proposals),
    )


def draw(numbers: Tensor, most: int) -> Tensor:
    """At most `most` of the numbers, in random order."""
    return numbers[torch.randperm(len(numbers), device=numbers.device)[:most]]


def pool_regions(
    maps: Sequence[Tensor], strides: Sequence[int], finest: float, samples: int, boxes: Sequence[Tensor], size: int
) -> Tensor:
    """Cut boxes, one (R_i, 4) per image, out of maps (B, C, h, w): (R, C, size, size) over all images in order.

    Boxes below twice `finest` pixels come from the first map; each doubling moves one level up (FPN, equation 1).
    `samples` points are read along each side of a cell; 0: as many as the region covers cells of the map there.
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
            features, regions[chosen].to(features.dtype), size, 1 / stride, sampling_ratio=samples, aligned=True
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
