"""What maps of patches share: which patches are fit for a map, and which lie on the border of the image."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mixlab.errors import InputError, check_kind


def check_patches(patches: Tensor) -> None:
    check_kind(patches, Tensor, "give the patches (B, h, w, D) of features")
    if not patches.is_floating_point():
        raise InputError(f"patches are {patches.dtype}; give floats")
    if patches.ndim != 4 or 0 in patches.shape:
        raise InputError(f"patches have shape {tuple(patches.shape)}; they must be (B, h, w, D) and not empty")
    if not patches.isfinite().all():
        raise InputError("patches hold NaN or infinity, which have no map; check the weights and images")


def is_on_border(grid: Sequence[int], device: torch.device | None = None) -> Tensor:
    """True on the outermost patches of a grid (h, w): bool (h, w)."""
    border = torch.ones(*grid, dtype=torch.bool, device=device)
    border[1:-1, 1:-1] = False
    return border
