"""What is in an image, and what was found in it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import grid_sample


class Objects(NamedTuple):
    """N objects of one image. Boxes are left, top, right, bottom in pixels; edges, not pixel centres."""

    boxes: Tensor  # float (N, 4)
    classes: Tensor  # int64 (N,)
    masks: Tensor  # bool (N, H, W)


class Detections(NamedTuple):
    """What was found in one image, the surest first. Masks cover their box: `paste_masks` brings them to the image."""

    boxes: Tensor  # float (N, 4)
    scores: Tensor  # float (N,)
    classes: Tensor  # int64 (N,)
    masks: Tensor  # float (N, M, M): probabilities

    def cpu(self) -> Detections:
        return Detections(*(part.float().cpu() if part.is_floating_point() else part.cpu() for part in self))


def scale_boxes(boxes: Tensor, *, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Boxes (N, 4) of an image of size `old` (height, width) in the same image at size `new`."""
    across, down = new[1] / old[1], new[0] / old[0]
    return boxes * boxes.new_tensor([across, down, across, down])


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
