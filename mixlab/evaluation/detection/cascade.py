"""Heads on proposals, in one stage or several: one is Mask R-CNN, three of rising quality Cascade Mask R-CNN.

Each stage learns from regions that overlap an object by at least its own IoU, and hands its corrected boxes to the
next. When detecting, class scores are the mean over the stages, boxes are the last stage's, and masks are the mean over
the mask heads, each looking at the final boxes (Cai and Vasconcelos, 2019, §5).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torchvision.ops import batched_nms, clip_boxes_to_image

from mixlab.data.objects import Objects
from mixlab.errors import InputError
from mixlab.evaluation.detection.detections import Detections
from mixlab.evaluation.detection.heads import MASK_REGION, REGION, pick
from mixlab.evaluation.detection.region_stage import Cut, RegionConfig, RegionStage, Sizes, Stage, pool_regions

SINGLE = (Stage(iou=0.5, weights=(10.0, 10.0, 5.0, 5.0)),)  # Fast R-CNN
CASCADE = (
    Stage(iou=0.5, weights=(10.0, 10.0, 5.0, 5.0)),
    Stage(iou=0.6, weights=(20.0, 20.0, 10.0, 10.0), loss_weight=0.5),
    Stage(iou=0.7, weights=(30.0, 30.0, 15.0, 15.0), loss_weight=0.25),
)
THINNEST = 0.01  # pixels; detections below are nothing


class RegionHeads(nn.Module):
    def __init__(self, config: RegionConfig, stages: Sequence[Stage]) -> None:
        super().__init__()
        if len(stages) > 1 and not config.agnostic_boxes:
            raise InputError(
                f"{len(stages)} stages hand boxes on, which must not depend on a class: set agnostic_boxes"
            )
        self.config = config
        self.stages = nn.ModuleList(RegionStage(config, stage) for stage in stages)

    def forward(
        self,
        maps: Sequence[Tensor],
        strides: Sequence[int],
        proposals: list[Tensor],
        sizes: Sizes,
        objects: Sequence[Objects],
    ) -> dict[str, Tensor]:
        """The losses of every stage, already weighted."""
        cut = self._cut(maps, strides)
        found: dict[str, Tensor] = {}
        for number, stage in enumerate(self._stages(), start=1):
            losses, proposals = stage(cut, proposals, objects, sizes)
            suffix = f"_{number}" if len(self.stages) > 1 else ""
            found |= {f"{name}{suffix}": value for name, value in losses.items()}
        return found

    @torch.no_grad()
    def detect(
        self, maps: Sequence[Tensor], strides: Sequence[int], proposals: list[Tensor], sizes: Sizes
    ) -> list[Detections]:
        """The objects of each image, the surest first, in the pixels of the input."""
        cut = self._cut(maps, strides)
        shares: list[Tensor] = []
        for number, stage in enumerate(self._stages(), start=1):
            scores, corrections = stage.boxes(cut(proposals, REGION))
            shares.append(scores.softmax(dim=1)[:, :-1])
            if number < len(self.stages):
                proposals = stage.refine(corrections, proposals, sizes)
        every = stage.decode(corrections, proposals)  # (R_i, K or 1, 4)
        mean = torch.stack(shares).mean(dim=0).split([len(boxes) for boxes in proposals])  # (R_i, K)
        found = [
            self._select(scores, clip_boxes_to_image(boxes, size))
            for scores, boxes, size in zip(mean, every, sizes, strict=True)
        ]
        regions, classes = cut([boxes for boxes, _, _ in found], MASK_REGION), torch.cat([kind for *_, kind in found])
        drawn = [pick(stage.masks(regions), classes).sigmoid() for stage in self._stages()]
        masks = torch.stack(drawn).mean(dim=0).split([len(boxes) for boxes, _, _ in found])
        return [Detections(*one, part) for one, part in zip(found, masks, strict=True)]

    def _cut(self, maps: Sequence[Tensor], strides: Sequence[int]) -> Cut:
        return partial(pool_regions, maps, strides, self.config.finest)

    def _stages(self) -> Iterable[RegionStage]:
        return cast("Iterable[RegionStage]", self.stages)

    def _select(self, scores: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What is sure enough and not doubled, out of (R, K) and (R, K or 1, 4): n boxes, scores, classes."""
        region, kind = (scores > self.config.min_score).nonzero(as_tuple=True)
        sure, own = scores[region, kind], pick(boxes[region], kind)
        solid = ((own[:, 2:] - own[:, :2]) > THINNEST).all(dim=1)
        sure, own, kind = sure[solid], own[solid], kind[solid]
        kept = batched_nms(own, sure, kind, self.config.nms)[: self.config.most]
        return own[kept], sure[kept], kind[kept]
