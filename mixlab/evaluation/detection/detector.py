"""A detector: pyramid of the backbone, FPN, proposals, heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from mixlab.backbones.backbone import Backbone
from mixlab.data.crops import normalise
from mixlab.data.dense_batches import ObjectBatch
from mixlab.data.objects import Objects
from mixlab.evaluation.dense.pyramid import Pyramid
from mixlab.evaluation.dense.recipe import DenseNetwork
from mixlab.evaluation.detection.cascade import CASCADE, SINGLE, RegionHeads
from mixlab.evaluation.detection.detections import Detections
from mixlab.evaluation.detection.heads import at_least_float32
from mixlab.evaluation.detection.region_stage import RegionConfig, Sizes
from mixlab.training.recipe import to_pixels_of

HeadKind = Literal["mask", "cascade"]
RATIOS = (0.5, 1.0, 2.0)  # of anchors, height by width: Faster R-CNN


@dataclass(frozen=True, kw_only=True)
class ProposalConfig:
    """Anchors of `anchor_scale` x stride on five levels; numbers of proposals are per image, before and after NMS."""

    anchor_scale: float = 8.0  # FPN: 32 to 512 px on strides 4 to 64
    before: tuple[int, int] = (2000, 1000)  # when training, when detecting
    after: tuple[int, int] = (1000, 1000)
    nms: float = 0.7
    sampled: int = 256
    ious: tuple[float, float] = (0.7, 0.3)  # an anchor is an object above the first, background below the second


@dataclass(frozen=True, kw_only=True)
class DetectorConfig:
    regions: RegionConfig
    proposals: ProposalConfig = field(default_factory=ProposalConfig)
    head: HeadKind = "mask"


class Detector(DenseNetwork):
    def __init__(self, pyramid: Pyramid, config: DetectorConfig) -> None:
        super().__init__()
        self.pyramid, self.strides = pyramid, list(pyramid.strides)
        channels, proposals = config.regions.channels, config.proposals
        self.neck = FeaturePyramidNetwork(pyramid.channels, channels, extra_blocks=LastLevelMaxPool())
        sides = [proposals.anchor_scale * stride for stride in (*self.strides, 2 * self.strides[-1])]
        anchors = CentredAnchors(tuple((side,) for side in sides), (RATIOS,) * len(sides))
        self.proposals = RegionProposalNetwork(
            anchors,
            PreciseHead(channels, len(RATIOS)),
            fg_iou_thresh=proposals.ious[0],
            bg_iou_thresh=proposals.ious[1],
            batch_size_per_image=proposals.sampled,
            positive_fraction=0.5,
            pre_nms_top_n=dict(zip(("training", "testing"), proposals.before, strict=True)),
            post_nms_top_n=dict(zip(("training", "testing"), proposals.after, strict=True)),
            nms_thresh=proposals.nms,
        )
        self.regions = RegionHeads(config.regions, CASCADE if config.head == "cascade" else SINGLE)

    def forward(self, images: Tensor, sizes: Sizes, objects: Sequence[Objects]) -> dict[str, Tensor]:
        """Every loss by name, for images (B, 3, H, W) padded to one size, H and W multiples of 32."""
        maps = self.maps(images)
        targets = [{"boxes": truth.boxes.to(maps[0].dtype)} for truth in objects]
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


def to_input(batch: ObjectBatch, backbone: Backbone) -> Tensor:
    """Pixels as the backbone takes them; the padding is 0, the mean colour."""
    dtype = next(backbone.parameters()).dtype
    images = to_pixels_of(backbone, normalise(batch.images).to(dtype))
    for image, (height, width) in zip(images, batch.shapes(), strict=True):
        image[:, height:] = 0
        image[:, :, width:] = 0
    return images


class CentredAnchors(AnchorGenerator):
    """Anchors around the middle of each cell; torchvision's stand on its corner."""

    def grid_anchors(self, grid_sizes: list[list[int]], strides: list[list[Tensor]]) -> list[Tensor]:
        corners: list[Tensor] = super().grid_anchors(grid_sizes, strides)
        middles = [torch.stack([x, y, x, y]) / 2 for y, x in strides]
        return [level + middle.to(level) for level, middle in zip(corners, middles, strict=True)]


class PreciseHead(RPNHead):
    """Boxes and scores in float32 at least, whatever the convolutions ran in."""

    def forward(self, x: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        scores, corrections = super().forward(x)
        return [at_least_float32(part) for part in scores], [at_least_float32(part) for part in corrections]
