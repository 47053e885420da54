"""What was found in an image, and the same in COCO's results format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from mixlab.data.coco import box_as_coco, encode_mask
from mixlab.data.objects import scale_boxes


class Detections(NamedTuple):
    """What was found in one image, the surest first. Masks cover their box: `paste_masks` brings them to the image."""

    boxes: Tensor  # float (N, 4)
    scores: Tensor  # float (N,)
    classes: Tensor  # int64 (N,)
    masks: Tensor  # float (N, M, M): probabilities

    def cpu(self) -> Detections:
        return Detections(*(part.float().cpu() if part.is_floating_point() else part.cpu() for part in self))


def paste_masks(masks: Tensor, boxes: Tensor, height: int, width: int, threshold: float = 0.5) -> Tensor:
    """Masks (N, M, M) over their boxes (N, 4) -> bool (N, height, width): each pixel's centre looked up in the mask."""
    rows = torch.arange(height, device=boxes.device) + 0.5
    columns = torch.arange(width, device=boxes.device) + 0.5
    pasted = torch.zeros(len(masks), height, width, dtype=torch.bool, device=boxes.device)
    for number, (mask, box) in enumerate(zip(masks.float(), boxes.float(), strict=True)):  # one at a time: H x W each
        left, top, right, bottom = box
        x = (columns - left) / (right - left).clamp(min=1e-6) * 2 - 1  # the mask spans -1 to 1
        y = (rows - top) / (bottom - top).clamp(min=1e-6) * 2 - 1
        grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)  # (height, width, 2)
        values = grid_sample(mask[None, None], grid[None], padding_mode="border", align_corners=False)[0, 0]
        inside = (x.abs() <= 1)[None, :] & (y.abs() <= 1)[:, None]
        pasted[number] = (values >= threshold) & inside
    return pasted


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
