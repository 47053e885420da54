"""Detections as COCO's results format, and objects as its annotations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from mixlab.evaluation.detection.objects import Detections, paste_masks, scale_boxes


def to_results(
    found: Detections, *, image_id: int, category_ids: Sequence[int], seen: tuple[int, int], own: tuple[int, int]
) -> list[dict[str, Any]]:
    """One entry per detection. `seen` is the image's (height, width) as the network saw it, `own` its own."""
    boxes = scale_boxes(found.boxes, old=seen, new=own)
    masks = paste_masks(found.masks, boxes, *own).cpu()
    return [
        {
            "image_id": image_id,
            "category_id": category_ids[kind],
            "bbox": box_as_coco(box),
            "score": score,
            "segmentation": encode_mask(mask),
        }
        for box, score, kind, mask in zip(
            boxes.tolist(), found.scores.tolist(), found.classes.tolist(), masks, strict=True
        )
    ]


def box_as_coco(box: Sequence[float]) -> list[float]:
    """Left, top, width, height from left, top, right, bottom."""
    left, top, right, bottom = box
    return [left, top, right - left, bottom - top]


def encode_mask(mask: Tensor) -> dict[str, Any]:
    """A bool mask (H, W) as COCO's packed run lengths: down the columns, background first."""
    pixels = np.concatenate([[False], mask.numpy().T.ravel()])
    starts = np.flatnonzero(pixels[1:] != pixels[:-1])
    runs = np.diff(np.concatenate([[0], starts, [mask.numel()]]))
    return {"size": list(mask.shape), "counts": pack_runs(runs.tolist())}


def pack_runs(runs: Sequence[int]) -> str:
    """Groups of five bits, lowest first, with a flag for more; from the fourth run on, differences to two before."""
    text = []
    for place, run in enumerate(runs):
        value = run - runs[place - 2] if place > 2 else run
        more = True
        while more:
            group = value & 31
            value >>= 5
            more = value != (-1 if group & 16 else 0)  # the sign is the last group's highest bit
            text.append(chr(48 + group + (32 if more else 0)))
    return "".join(text)
