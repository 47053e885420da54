"""From a mask to foreground and background: which pixels count, and how a mask comes to the grid of a map."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from mixlab.errors import InputError

_PIXELS_AT_ONCE = 1 << 22  # bounds the working memory, and keeps a CPU in its cache


def split_mask(
    masks: Tensor, grid: tuple[int, int], *, ignore: int | float | None = None, threshold: float = 0.5
) -> tuple[Tensor, Tensor]:
    """Foreground and background of masks (B, H, W) on a grid (h, w): two (B, h, w) of bool.

    A pixel is ignored where it equals `ignore`, else foreground where it is not zero. Floating masks may be soft: a
    value in [0, 1] is the share of the pixel that is foreground; whole numbers are labels as in an integer mask.
    A cell's window is that of torch's "area" interpolation, rows floor(i H / h) up to ceil((i + 1) H / h) and columns
    alike. Its share is the mean foreground over the pixels of the window that are not ignored, in double precision.
    The cell is foreground where share >= threshold, background where share < threshold, and neither where every
    pixel is ignored.

    >>> mask = torch.tensor([[[1, 1, 0, 0], [0, 0, 0, 0], [9, 9, 0, 7], [9, 9, 9, 9]]])
    >>> foreground, background = split_mask(mask, (2, 2), ignore=9)
    >>> foreground.int().tolist(), background.int().tolist()
    ([[[1, 0], [0, 1]]], [[[0, 1], [0, 0]]])
    """
    if masks.ndim != 3 or 0 in masks.shape[1:]:
        raise InputError(f"masks have shape {tuple(masks.shape)}; they must be (B, H, W): add or squeeze a dimension")
    if not 0 < threshold <= 1:
        raise InputError(f"threshold is {threshold}; a share of foreground must be above 0 and at most 1: try 0.5")
    masks, ignore = _checked_labels(masks, ignore)
    num_at_once = max(1, _PIXELS_AT_ONCE // masks.shape[1:].numel())
    # one pair of buffers for all parts: fresh memory costs a CPU more than the comparison that fills it
    buffers = torch.empty((2, min(num_at_once, len(masks)), *masks.shape[1:]), dtype=torch.uint8, device=masks.device)
    shares = torch.cat([_foreground_share(part, grid, ignore, buffers) for part in masks.split(num_at_once)])
    return shares >= threshold, shares < threshold  # NaN, where all is ignored, is in neither


def masks_on_grid(masks: Tensor, grid: tuple[int, int], *, ignore: int) -> Tensor:
    """The same as labels, uint8 (B, h, w) of 0, 1 and `ignore`: to score many maps against the same masks."""
    foreground, background = split_mask(masks, grid, ignore=ignore)
    return torch.where(foreground, 1, torch.where(background, 0, ignore)).to(torch.uint8)


def _checked_labels(masks: Tensor, ignore: int | float | None) -> tuple[Tensor, int | float | None]:
    """The masks in a dtype that can be compared, and the ignore value as that dtype holds it."""
    if masks.is_complex():
        raise TypeError(f"masks are {masks.dtype}; they must be bool, integer or floating")
    if ignore is not None and (ignore == 0 or not math.isfinite(ignore)):
        raise InputError(
            f"ignore is {ignore}; it must be a number that a mask can hold, and not 0, which is background: "
            "give another value, such as 255, to the pixels to leave out"
        )
    if masks.dtype == torch.bool:
        return masks.view(torch.uint8), ignore if ignore == 1 else None
    if masks.dtype in (torch.uint16, torch.uint32, torch.uint64):
        masks = masks.to(torch.int64)  # torch compares few of the wide unsigned types
    if ignore is None or masks.is_floating_point():
        return masks, ignore
    limits = torch.iinfo(masks.dtype)
    if ignore != int(ignore) or not limits.min <= ignore <= limits.max:
        raise InputError(
            f"ignore={ignore} cannot occur in {masks.dtype} masks (whole numbers from {limits.min} to {limits.max}); "
            "load the masks in a wider dtype, or pass ignore=None"
        )
    return masks, int(ignore)


def _foreground_share(masks: Tensor, grid: tuple[int, int], ignore: int | float | None, buffers: Tensor) -> Tensor:
    """Share of foreground among the pixels that count: (B, H, W) -> (B, h, w) of float64, NaN where none counts."""
    # flags are uint8, 0 or 1: a CPU compares into it ten times faster than into bool
    zero, counted = buffers[:, : len(masks)]
    counts = _window_areas(masks, grid)
    if ignore is not None:
        counts = _window_sums(torch.ne(masks, ignore, out=counted), grid)
    if not _is_soft(masks, ignore):
        return (counts - _window_sums(torch.eq(masks, 0, out=zero), grid)) / counts
    cover = masks.double().abs().clamp_(max=1)  # labels above 1 cover their pixel
    return _window_sums(cover if ignore is None else cover * counted, grid) / counts


def _is_soft(masks: Tensor, ignore: int | float | None) -> bool:
    """Whether a floating mask holds shares between 0 and 1 beside whole labels."""
    if not masks.is_floating_point():
        return False
    label = masks == masks.round()
    if ignore is not None:
        label |= masks == ignore
    allowed = (label | ((masks >= 0) & (masks <= 1))) & masks.isfinite()
    if not allowed.all():
        raise InputError(
            f"a floating mask holds {masks[~allowed][0].item()}; soft masks lie in [0, 1], labels are whole numbers: "
            "rescale or clamp the mask, or set such pixels to the `ignore` value"
        )
    return not bool(label.all())


def _window_areas(masks: Tensor, grid: tuple[int, int]) -> Tensor:
    """Number of pixels in the window of each cell, (h, w) of float64."""
    sides = []
    for size, cells in zip(masks.shape[1:], grid, strict=True):
        first = torch.arange(cells, device=masks.device)
        sides.append(-(-(first + 1) * size // cells) - first * size // cells)
    return (sides[0][:, None] * sides[1]).double()


def _window_sums(pixels: Tensor, grid: tuple[int, int]) -> Tensor:
    """Sum of the pixels (B, H, W) in the window of each cell -> (B, h, w) of float64, exact for 0/1 pixels of uint8."""
    (B, H, W), (h, w) = pixels.shape, grid
    if grid == (H, W):
        return pixels.double()
    flags = pixels.dtype == torch.uint8
    if flags and H % h == 0 and W % w == 0 and W % 8 == 0 and H // h <= 255:
        # Eight 0/1 pixels are added as one 64-bit word: no column of a window counts past 255, so no byte carries.
        columns = pixels.view(torch.int64).view(B, h, H // h, W // 8).sum(2)
        return columns.view(torch.uint8).view(B, h, w, W // w).sum(-1).double()
    means = F.adaptive_avg_pool2d(pixels.double()[:, None], grid)[:, 0]
    sums = means * _window_areas(pixels, grid)
    return sums.round() if flags else sums
