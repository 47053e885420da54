"""Which proposals a head learns from, and what they should have said."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torchvision.ops import box_iou

from mixlab.evaluation.detection.objects import Objects


class Sample(NamedTuple):
    """R regions of one image, those on objects first. `owner` is the object with the largest overlap."""

    boxes: Tensor  # (R, 4)
    labels: Tensor  # int64 (R,): the object's class, or num_classes for background
    owner: Tensor  # int64 (P,): for the P regions on objects
    targets: Tensor  # (P, 4): the boxes of the owners
    is_truth: Tensor  # bool (R,): an object's own box, given as a proposal


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
