"""A detector: pyramid of the backbone, FPN, proposals, and heads in one or more stages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torchvision.models.detection.image_list import ImageList
from torchvision.ops import FeaturePyramidNetwork, batched_nms, clip_boxes_to_image
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from mixlab.backbones.backbone import Backbone
from mixlab.data.crops import normalise
from mixlab.data.dense_batches import ObjectBatch
from mixlab.data.objects import Objects
from mixlab.evaluation.dense_recipe import DenseNetwork
from mixlab.evaluation.detection.proposals import build_proposals
from mixlab.evaluation.detection.regions import (
    MASK_REGION,
    REGION,
    Cut,
    DetectorConfig,
    RegionStage,
    Sizes,
    pick,
    pool_regions,
)
from mixlab.evaluation.pyramid import Pyramid
from mixlab.ops.precision import at_least_float32
from mixlab.training.recipe import to_pixels_of

MIN_SCORE, NMS_IOU = 0.05, 0.5  # of detections: Mask R-CNN
THINNEST = 0.01  # pixels; detections below are nothing


class Detections(NamedTuple):
    """Detections of one image, highest score first. Masks cover their box; `paste_masks` puts them into the image."""

    boxes: Tensor  # float (N, 4)
    scores: Tensor  # float (N,)
    classes: Tensor  # int64 (N,)
    masks: Tensor  # float (N, M, M): probabilities


class RegionHeads(nn.Module):
    """Heads on proposals, in one stage (Mask R-CNN) or three of rising quality (Cascade Mask R-CNN).

    Each stage learns from regions that overlap an object by at least its own IoU, and hands its corrected boxes to the
    next. When detecting, class scores are the mean over the stages (of their logits by mmdetection's rules), boxes are
    the last stage's, and masks are the mean over the mask heads, each looking at the final boxes (Cai and Vasconcelos,
    2019, §5).
    """

    def __init__(self, config: DetectorConfig, num_classes: int) -> None:
        super().__init__()
        self.config, self.rules = config, config.chosen_rules()
        self.stages = nn.ModuleList(RegionStage(config, stage, num_classes) for stage in self.rules.stages)

    def forward(
        self, maps: Sequence[Tensor], strides: Sequence[int], proposals: list[Tensor], sizes: Sizes,
        objects: Sequence[Objects],
    ) -> dict[str, Tensor]:  # fmt: skip
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
        """The objects of each image, highest score first, in pixels of the input."""
        cut = self._cut(maps, strides)
        every_score: list[Tensor] = []
        for number, stage in enumerate(self._stages(), start=1):
            scores, corrections = stage.boxes(cut(proposals, REGION))
            every_score.append(scores)
            if number < len(self.stages):
                proposals = stage.refine(corrections, proposals, sizes)
        every = stage.decode(corrections, proposals)  # (R_i, K or 1, 4)
        mean = self._mean(torch.stack(every_score)).split([len(boxes) for boxes in proposals])  # (R_i, K)
        found = [
            self._select(scores, clip_boxes_to_image(boxes, size))
            for scores, boxes, size in zip(mean, every, sizes, strict=True)
        ]
        regions, classes = cut([boxes for boxes, _, _ in found], MASK_REGION), torch.cat([kind for *_, kind in found])
        drawn = [pick(stage.masks(regions), classes).sigmoid() for stage in self._stages()]
        masks = torch.stack(drawn).mean(dim=0).split([len(boxes) for boxes, _, _ in found])
        return [Detections(*one, part) for one, part in zip(found, masks, strict=True)]

    def _cut(self, maps: Sequence[Tensor], strides: Sequence[int]) -> Cut:
        return partial(pool_regions, maps, strides, self.config.finest, self.rules.samples)

    def _stages(self) -> Iterable[RegionStage]:
        return cast("Iterable[RegionStage]", self.stages)

    def _mean(self, scores: Tensor) -> Tensor:
        """Shares (R, K) of the classes from the scores (stages, R, K + 1), background last."""
        if self.rules.mean_of == "logits":
            return scores.mean(dim=0).softmax(dim=1)[:, :-1]
        return scores.softmax(dim=2).mean(dim=0)[:, :-1]

    def _select(self, scores: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Score threshold and NMS: from (R, K) and (R, K or 1, 4) to n boxes, scores and classes."""
        region, kind = (scores > MIN_SCORE).nonzero(as_tuple=True)
        kept_scores, own = scores[region, kind], pick(boxes[region], kind)
        solid = ((own[:, 2:] - own[:, :2]) > THINNEST).all(dim=1)
        kept_scores, own, kind = kept_scores[solid], own[solid], kind[solid]
        kept = batched_nms(own, kept_scores, kind, NMS_IOU)[: self.config.most]
        return own[kept], kept_scores[kept], kind[kept]


class Detector(DenseNetwork):
    def __init__(self, pyramid: Pyramid, config: DetectorConfig, *, num_classes: int) -> None:
        super().__init__()
        self.pyramid, self.strides = pyramid, list(pyramid.strides)
        self.neck = FeaturePyramidNetwork(pyramid.channels, config.channels, extra_blocks=LastLevelMaxPool())
        rules = config.chosen_rules()
        candidates, proposals = config.candidates, config.proposals or rules.proposals
        most = max(candidates, proposals) if rules.most_tested is None else rules.most_tested
        self.proposals = build_proposals(
            config.channels,
            (*self.strides, 2 * self.strides[-1]),
            scale=config.anchor_scale,
            rules=rules,
            published=config.rules == "mmdetection",
            batch_size_per_image=config.anchors,
            pre_nms_top_n={"training": candidates, "testing": min(candidates, most)},
            post_nms_top_n={"training": proposals, "testing": min(proposals, most)},
        )
        self.regions = RegionHeads(config, num_classes)
        if config.rules == "mmdetection":
            self._initialise()

    def forward(self, images: Tensor, sizes: Sizes, objects: Sequence[Objects]) -> dict[str, Tensor]:
        """Every loss by name, for images (B, 3, H, W) padded to one size, H and W multiples of 32."""
        maps = self.maps(images)
        targets = [
            {"boxes": truth.boxes.to(maps[0].dtype), "size": size} for truth, size in zip(objects, sizes, strict=True)
        ]
        proposals, losses = self.proposals(ImageList(images, list(sizes)), dict(enumerate(maps)), targets)
        named = {"loss_objectness": losses["loss_objectness"], "loss_proposals": losses["loss_rpn_box_reg"]}
        return named | self.regions(maps[:-1], self.strides, proposals, sizes, objects)

    @torch.no_grad()
    def detect(self, images: Tensor, sizes: Sizes) -> list[Detections]:
        """What is in each image, in the pixels of the input. In evaluation mode only."""
        maps = self.maps(images)
        proposals, _ = self.proposals(ImageList(images, list(sizes)), dict(enumerate(maps)))
        return self.regions.detect(maps[:-1], self.strides, proposals, sizes)

    def maps(self, images: Tensor) -> list[Tensor]:
        """Five levels of one width; the last, for proposals alone, is the fourth at half its size."""
        named = {str(number): features for number, features in enumerate(self.pyramid(images))}
        return [at_least_float32(features) for features in self.neck(named).values()]

    def _initialise(self) -> None:
        """As mmdetection does, where the parts themselves do not."""
        spread: list[nn.Conv2d | nn.Linear] = [part for part in self.neck.modules() if isinstance(part, nn.Conv2d)]
        for stage in cast("Iterable[RegionStage]", self.regions.stages):
            spread += [part for part in stage.boxes.hidden if isinstance(part, nn.Linear)]
            nn.init.kaiming_normal_(stage.masks.predict.weight, mode="fan_out", nonlinearity="relu")
        for part in spread:
            nn.init.xavier_uniform_(part.weight)
            nn.init.zeros_(part.bias)  # type: ignore[arg-type]


def to_input(batch: ObjectBatch, backbone: Backbone) -> Tensor:
    """Pixels as the backbone takes them; the padding is 0, the mean colour."""
    dtype = next(backbone.parameters()).dtype
    images = to_pixels_of(backbone, normalise(batch.images).to(dtype))
    for image, (height, width) in zip(images, batch.shapes(), strict=True):
        image[:, height:] = 0
        image[:, :, width:] = 0
    return images
