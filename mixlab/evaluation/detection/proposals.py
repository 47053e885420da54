"""Region proposals: anchors, which of them are on objects, and what is learnt from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, smooth_l1_loss
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.ops import box_iou

from mixlab.data.dense_batches import MULTIPLE
from mixlab.evaluation.detection.rules import Rules
from mixlab.ops.precision import at_least_float32

RATIOS = (0.5, 1.0, 2.0)  # of anchors, height by width: Faster R-CNN
OBJECT_IOU, BACKGROUND_IOU = 0.7, 0.3  # an anchor's overlap with an object; in between it is neither
BACKGROUND, NEITHER = -1, -2  # instead of the number of the object that a box is on


class Proposals(RegionProposalNetwork):
    """torchvision's network with mmdetection's anchors, matching and losses.

    `targets` hold the objects' "boxes" and the image's "size", (height, width) without padding.
    """

    def __init__(self, anchors: nn.Module, head: nn.Module, *, rules: Rules, **numbers: Any) -> None:
        super().__init__(anchors, head, **numbers)
        self.rules = rules

    def assign_targets_to_anchors(
        self, anchors: list[Tensor], targets: list[dict[str, Any]]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Of each image: 1 (object), 0 (background) or -1 (not learnt from) for each anchor, and the objects' boxes."""
        labels, boxes = [], []
        for own, target in zip(anchors, targets, strict=True):
            truth = target["boxes"]
            learnt = (is_inside if self.rules.inside_only else is_on_image)(own, target["size"])
            owner = own.new_full((len(own),), NEITHER, dtype=torch.int64)
            owner[learnt] = match(own[learnt], truth, OBJECT_IOU, BACKGROUND_IOU, keep_best=True)
            labels.append((owner >= 0).to(own) - (owner == NEITHER).to(own))
            boxes.append(truth[owner.clamp(min=0)] if len(truth) else torch.zeros_like(own))
        return labels, boxes

    def compute_loss(
        self, objectness: Tensor, pred_bbox_deltas: Tensor, labels: list[Tensor], regression_targets: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Both over the number of sampled anchors; an image without one of a kind counts as if it had one."""
        drawn = self.fg_bg_sampler(labels)
        number = torch.stack([part.sum() for kind in drawn for part in kind]).clamp(min=1).sum()
        positive, negative = (torch.cat(kind).nonzero()[:, 0] for kind in drawn)
        sampled = torch.cat([positive, negative])
        classify = binary_cross_entropy_with_logits(
            objectness.flatten()[sampled], torch.cat(labels)[sampled], reduction="sum"
        )
        correct = smooth_l1_loss(
            pred_bbox_deltas[positive],
            torch.cat(regression_targets)[positive],
            beta=self.rules.proposal_beta,
            reduction="sum",
        )
        return classify / number, correct / number


def build_proposals(
    channels: int, strides: Sequence[int], *, scale: float, rules: Rules, published: bool, **numbers: Any
) -> RegionProposalNetwork:
    """Proposals for maps of these strides, with anchors of `scale` strides a side; `numbers` are torchvision's."""
    head = ProposalHead(channels, len(RATIOS))
    numbers |= {
        "fg_iou_thresh": OBJECT_IOU,
        "bg_iou_thresh": BACKGROUND_IOU,
        "positive_fraction": 0.5,
        "nms_thresh": 0.7,
    }
    if published:
        return Proposals(CornerAnchors(strides, scale), head, rules=rules, **numbers)
    anchors = CentredAnchors(tuple((scale * stride,) for stride in strides), (RATIOS,) * len(strides))
    return RegionProposalNetwork(anchors, head, **numbers)


def match(boxes: Tensor, objects: Tensor, positive: float, negative: float, *, keep_best: bool) -> Tensor:
    """The object (G, 4) that each box (N, 4) is on, `BACKGROUND` or `NEITHER`: int64 (N,).

    A box is on the object that it overlaps most if that is at least `positive`, and background below `negative`. With
    `keep_best` an object also owns the boxes that overlap it most, if by `negative` or more; of two, the last one does.
    """
    if not len(objects) or not len(boxes):
        return torch.full((len(boxes),), BACKGROUND, device=boxes.device)
    overlaps = box_iou(objects, boxes)  # (G, N)
    most, owner = overlaps.max(dim=0)
    owner = torch.where(most >= positive, owner, torch.where(most < negative, BACKGROUND, NEITHER))
    if not keep_best:
        return owner
    best = overlaps.amax(dim=1, keepdim=True)  # (G, 1)
    numbers = torch.arange(len(objects), dtype=torch.int32, device=boxes.device)[:, None]
    claimed = torch.where((overlaps == best) & (best >= negative), numbers, -1).amax(dim=0)
    return torch.where(claimed >= 0, claimed.to(owner), owner)


def is_on_image(anchors: Tensor, size: Sequence[int]) -> Tensor:
    """Whether anchors stand on cells of the image, padded to whole cells of the coarsest map: bool (N,)."""
    height, width = (side + -side % MULTIPLE for side in size)
    x, y = ((anchors[:, :2] + anchors[:, 2:]) / 2).unbind(dim=1)
    return (x < width - 0.5) & (y < height - 0.5)  # corners of cells are whole numbers


def is_inside(anchors: Tensor, size: Sequence[int]) -> Tensor:
    """Whether anchors lie in the image entirely: bool (N,)."""
    left, top, right, bottom = anchors.unbind(dim=1)
    return (left >= 0) & (top >= 0) & (right < size[1]) & (bottom < size[0])


class CornerAnchors(nn.Module):
    """Three anchors of one area on the top left corner of each cell, sides not rounded, as mmdetection has them."""

    def __init__(self, strides: Sequence[int], scale: float) -> None:
        super().__init__()
        self.strides, self.scale = tuple(strides), scale

    def forward(self, images: ImageList, maps: Sequence[Tensor]) -> list[Tensor]:
        """The anchors (N, 4) of each image: level by level, row by row, the ratios of a cell together."""
        every = torch.cat([self._level(part, stride) for part, stride in zip(maps, self.strides, strict=True)])
        return [every] * len(images.image_sizes)

    def _level(self, maps: Tensor, stride: int) -> Tensor:
        height, width = maps.shape[-2:]
        half = maps.new_tensor([(ratio**-0.5, ratio**0.5) for ratio in RATIOS]) * (self.scale * stride / 2)
        y, x = (torch.arange(side, device=maps.device, dtype=maps.dtype) * stride for side in (height, width))
        rows, columns = torch.meshgrid(y, x, indexing="ij")
        corners = torch.stack([columns, rows], dim=-1).reshape(-1, 1, 2)
        return torch.cat([corners - half, corners + half], dim=-1).reshape(-1, 4)


class CentredAnchors(AnchorGenerator):
    """Anchors around the middle of each cell; torchvision's stand on its corner."""

    def grid_anchors(self, grid_sizes: list[list[int]], strides: list[list[Tensor]]) -> list[Tensor]:
        corners: list[Tensor] = super().grid_anchors(grid_sizes, strides)
        middles = [torch.stack([x, y, x, y]) / 2 for y, x in strides]
        return [level + middle.to(level) for level, middle in zip(corners, middles, strict=True)]


class ProposalHead(RPNHead):
    """Boxes and scores in float32 at least, whatever the convolutions ran in."""

    def forward(self, x: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        scores, corrections = super().forward(x)
        return [at_least_float32(part) for part in scores], [at_least_float32(part) for part in corrections]
