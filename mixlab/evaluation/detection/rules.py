"""Where detectors of one architecture differ: anchors, matching, losses, and how answers are read off.

`mmdetection` is what both papers trained with: its configurations `mask-rcnn_r50_fpn` and `cascade-mask-rcnn_r50_fpn`,
whose numbers are the same in 2.x and 3.x. `torchvision` is torchvision's proposals and losses around our heads, with
anchors in the middle of their cells: it suits images of 64 px, and runs from before there was a choice were trained so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from mixlab.choices import HeadKind

RuleSet = Literal["mmdetection", "torchvision"]
Units = tuple[float, float, float, float]  # of x, y, width and height, in which boxes are corrected


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The overlap that makes a region an object, the units in which boxes are corrected, and how much it counts."""

    iou: float
    units: Units
    loss_weight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The choices. A beta of 0 makes smooth L1 the L1 loss."""

    stages: tuple[Stage, ...]
    proposal_beta: float
    box_beta: float
    inside_only: bool = False  # proposals learn from no anchor that crosses the edge of its image
    keep_best: bool = False  # in the heads, too, an object owns the region that overlaps it most
    samples: int = 0  # points along each side of a cell of RoIAlign; 0: as many as the region covers cells of the map
    mean_of: Literal["logits", "probabilities"] = "logits"  # of the stages' class scores
    soft_edges: bool = True  # a pasted mask fades to 0 at the edge of its box
    proposals: int = 1000  # of an image, to learn from
    most_tested: int | None = 1000  # anchors of a level, proposals of an image, when detecting; None: as in training


FIRST = Stage(iou=0.5, units=(0.1, 0.1, 0.2, 0.2))  # Fast R-CNN
SECOND = Stage(iou=0.6, units=(0.05, 0.05, 0.1, 0.1), loss_weight=0.5)  # Cascade R-CNN, as the next
THIRD = Stage(iou=0.7, units=(0.033, 0.033, 0.067, 0.067), loss_weight=0.25)  # rounded as mmdetection rounds
_EXACT = replace(THIRD, units=(1 / 30, 1 / 30, 1 / 15, 1 / 15))
_CASCADE = Rules(stages=(FIRST, SECOND, THIRD), proposal_beta=1 / 9, box_beta=1.0, inside_only=True, proposals=2000)
_TORCHVISION = Rules(
    stages=(FIRST,), proposal_beta=1 / 9, box_beta=1.0, samples=2, mean_of="probabilities", soft_edges=False,
    most_tested=None,
)  # fmt: skip
RULES: dict[tuple[RuleSet, HeadKind], Rules] = {
    ("mmdetection", "mask"): Rules(stages=(FIRST,), proposal_beta=0.0, box_beta=0.0, keep_best=True),
    ("mmdetection", "cascade"): _CASCADE,
    ("torchvision", "mask"): _TORCHVISION,
    ("torchvision", "cascade"): replace(_TORCHVISION, stages=(FIRST, SECOND, _EXACT)),
}
