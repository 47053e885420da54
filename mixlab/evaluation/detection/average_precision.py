"""COCO's average precision of boxes and masks, by faster-coco-eval, which follows pycocotools to the digit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from mixlab.errors import naming_extras

Kind = Literal["boxes", "masks"]
NAMES = ("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large")  # in COCO's order
_IOU_OF = {"boxes": "bbox", "masks": "segm"}


def average_precision(
    truth: dict[str, Any], results: Sequence[dict[str, Any]], kind: Kind
) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """The six figures, and the AP of each category; None where there is no object to find.

    `truth` is an instances file, `results` is what a results file holds. Masks are sorted into small, medium and large
    by their own area, boxes by theirs.
    """
    with naming_extras():
        from faster_coco_eval import COCO, COCOeval_faster
    if not truth["images"] or not truth["categories"]:
        return dict.fromkeys(NAMES), {}
    kept = ("image_id", "category_id", "score", "bbox" if kind == "boxes" else "segmentation")
    objects = COCO({**truth, "annotations": [dict(entry) for entry in truth["annotations"]]})
    found = objects.loadRes([{key: entry[key] for key in kept} for entry in results])
    scoring = COCOeval_faster(objects, found, iouType=_IOU_OF[kind], rle_iou_max_workers=1)
    scoring.evaluate()
    scoring.accumulate()
    scoring.summarize()
    figures = {name: _known(value) for name, value in zip(NAMES, scoring.stats[: len(NAMES)], strict=True)}
    names = {category["id"]: str(category["name"]) for category in truth["categories"]}
    precision = np.asarray(scoring.eval["precision"])[:, :, :, 0, -1]  # (IoUs, recalls, categories), all sizes
    classes = {
        names[number]: _known(float(precision[:, :, column].mean()))
        for column, number in enumerate(scoring.params.catIds)
    }
    return figures, classes


def _known(value: float) -> float | None:
    """COCO writes -1 where there was nothing to find."""
    return None if value < 0 else float(value)
