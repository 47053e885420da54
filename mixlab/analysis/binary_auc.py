"""Binary-AUC: how well an activation map ranks the foreground of a mask above its background.

RNN as Linear Transformer, section 4.1 (equations 18 to 21), as a batched rank statistic; and its baselines: a blob in
the centre of the image, and a score that does not depend on distance from the centre.
"""

import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mixlab.analysis.foreground import split_mask
from mixlab.errors import InputError, check_kind

Resize = Literal["mask", "map"]
_VALUES_AT_ONCE = 1 << 18  # bounds the working memory to a few dozen MB


class RocCurves(NamedTuple):
    """Points of one ROC curve per image, from (0, 0) to (1, 1): a cell is active where its value >= threshold."""

    false_positive_rate: Tensor  # (B, T)
    true_positive_rate: Tensor  # (B, T)
    thresholds: Tensor  # (B, T), falling, the first infinite


def binary_auc(
    maps: Tensor,
    masks: Tensor,
    *,
    ignore: int | float | None = None,
    normalize: bool = True,
    resize: Resize = "mask",
    threshold: float = 0.5,
    thresholds: int | Sequence[float] | Tensor | None = None,
) -> Tensor:
    """Area under the ROC curve of maps (B, h, w) against masks (B, H, W): (B,) of float64, NaN where undefined.

    Any mask value but zero and `ignore` is foreground; ignored pixels are left out. An image without foreground or
    without background has no AUC: it is NaN, to be left out and counted.
    resize="mask", as in the paper, resizes the mask to the grid of the map: area average, foreground from `threshold`
    on (`split_mask` says exactly how). resize="map" resizes the map to the mask: bilinear, half-pixel centres, smoothed
    first where the map is the larger one.
    thresholds=None is exact: every distinct value is a threshold and ties count half. Otherwise the map (after any
    resizing, all cells) is scaled to [0, 1] and cut at the given thresholds, an integer T meaning T even steps from 0
    to 1; the trapezoids run from (0, 0) to (1, 1), so values between the same two thresholds are ties.
    normalize=True gives max(AUC, 1 - AUC) per image, which lifts chance above 0.5 (see `centre_matched_auc`).

    >>> maps = torch.tensor([[[0.9, 0.1], [0.4, 0.4]], [[0.1, 0.2], [0.3, 0.4]]])
    >>> masks = torch.tensor([[[1, 0], [1, 0]], [[1, 1], [1, 1]]])
    >>> binary_auc(maps, masks).tolist()
    [0.875, nan]
    >>> binary_auc(-maps, masks, normalize=False).tolist()
    [0.125, nan]
    """
    levels = _checked_thresholds(thresholds, maps)
    scores = []
    for values, positive, negative in _labelled_values(maps, masks, ignore=ignore, resize=resize, threshold=threshold):
        twice_won, pairs = _count_ordered_pairs(_rank_values(values, positive, negative, levels=levels))
        scores.append(twice_won.double() / (2 * pairs))  # 0 / 0: NaN
    auc = torch.cat(scores)
    if resize == "mask" and auc.isnan().all():
        _warn_of_coarse_grid(maps, masks, ignore)
    return torch.maximum(auc, 1 - auc) if normalize else auc


def _warn_of_coarse_grid(maps: Tensor, masks: Tensor, ignore: int | float | None) -> None:
    """Say so where no map can be scored although the masks have an object: the maps have too few cells."""
    foreground, background = split_mask(masks, (masks.shape[1], masks.shape[2]), ignore=ignore)
    if (foreground.flatten(1).any(1) & background.flatten(1).any(1)).any():
        warnings.warn(
            f"maps of {maps.shape[1]} x {maps.shape[2]} cells are too small to score: on that grid every mask is "
            'foreground or background alone; use larger images, an earlier layer, or resize="map"',
            stacklevel=3,
        )


def roc_curves(
    maps: Tensor,
    masks: Tensor,
    *,
    ignore: int | float | None = None,
    resize: Resize = "mask",
    threshold: float = 0.5,
    thresholds: int | Sequence[float] | Tensor | None = None,
) -> RocCurves:
    """The curves whose area is the raw `binary_auc` of the same arguments; NaN rates where an image is undefined.

    Exact curves have one point per cell and one more (tied cells repeat a point, so that images share a shape);
    curves over T fixed thresholds have T + 2 points, the thresholds being on the scaled map.

    >>> curves = roc_curves(torch.tensor([[[3.0, 1.0], [2.0, 2.0]]]), torch.tensor([[[1, 0], [1, 0]]]))
    >>> curves.false_positive_rate.tolist(), curves.true_positive_rate.tolist()
    ([[0.0, 0.0, 0.5, 0.5, 1.0]], [[0.0, 0.5, 1.0, 1.0, 1.0]])
    >>> curves.thresholds.tolist()
    [[inf, 3.0, 2.0, 2.0, 1.0]]
    """
    levels = _checked_thresholds(thresholds, maps)
    parts = []
    for values, positive, negative in _labelled_values(maps, masks, ignore=ignore, resize=resize, threshold=threshold):
        ranking = _rank_values(values, positive, negative, levels=levels)
        rates = [1 - below.double() / below[:, -1:] for below in (ranking.negatives_below, ranking.positives_below)]
        undefined = (rates[0] + rates[1]).isnan().any(dim=1, keepdim=True)
        rates = [rate.masked_fill(undefined, torch.nan) for rate in rates]
        cuts = F.pad(ranking.cuts.double(), (0, 1), value=torch.inf)
        parts.append([part.flip(-1) for part in (*rates, cuts)])
    return RocCurves(*(torch.cat(part) for part in zip(*parts, strict=True)))


def centre_prior(height: int, width: int) -> Tensor:
    """A fixed blob in the middle of the image, (h, w) of float32: exp(-2 (u^2 + v^2)), u and v from -1 to 1 across.

    That is a Gaussian whose standard deviation is a quarter of each side. AUC sees only its order: the nearer the
    centre, the higher. Equal distances have equal values to the last bit.

    >>> centre_prior(2, 4)
    tensor([[0.1969, 0.5353, 0.5353, 0.1969],
            [0.1969, 0.5353, 0.5353, 0.1969]])
    """
    distances = _centre_distances(height, width).double()
    return torch.exp(-2 * distances / (height * width) ** 2).float()


def centre_matched_auc(
    maps: Tensor,
    masks: Tensor,
    *,
    ignore: int | float | None = None,
    normalize: bool = False,
    resize: Resize = "mask",
    threshold: float = 0.5,
) -> Tensor:
    """AUC among pairs at the same distance from the centre, for maps (B, h, w) and masks (B, H, W): (B,) of float64.

    Binary-AUC lacks a baseline. Photographers centre their subjects, so a blob that never looked at the image scores
    0.82 to 0.88 on real photos, and any map that is merely stronger in the middle inherits that. And max(AUC, 1 - AUC)
    picks the better sign after seeing each mask, so maps that know nothing pass 0.5 too (14 x 14, on ECSSD, Pets and
    VOC: noise 0.54, smooth noise 0.63, luminance 0.75 to 0.80). Here the cells are grouped into rings of exactly equal
    distance from the centre, u^2 + v^2 with u and v in half sides (on a square grid mirror images and transposes share
    a ring, on others mirror images). With U_r the number of foreground/background pairs within ring r that the
    foreground wins, ties counting half, and m_r the number of such pairs, the score is sum U_r / sum m_r: the chance
    that of two cells equally far from the centre, one on and one off the object, the map prefers the one on it. A map
    that is any function of the distance scores exactly 0.5; adding such a function to a map changes nothing (but for
    rounding); a map that ranks all foreground above all background scores 1, its negative 0; and a map that knows
    nothing of the object beyond the distance scores 0.5 on average. The price is noise: an image of 14 x 14 cells has a
    few hundred such pairs, not thousands, so read the mean over images with its bootstrap interval. The sign is kept
    unless normalize=True, for the reason above; an image without a matched pair is NaN.
    The other arguments are those of `binary_auc`.

    >>> mask = torch.tensor([[[0, 0, 0, 0], [0, 1, 1, 0], [0, 1, 0, 0], [0, 1, 1, 0]]])
    >>> centre_matched_auc(centre_prior(4, 4)[None], mask), centre_matched_auc(mask, mask)
    (tensor([0.5000], dtype=torch.float64), tensor([1.], dtype=torch.float64))
    """
    scores = []
    for values, positive, negative in _labelled_values(maps, masks, ignore=ignore, resize=resize, threshold=threshold):
        cells, present = (part.to(maps.device) for part in _rings(*(masks if resize == "map" else maps).shape[1:]))
        flags = (kind[:, cells] & present for kind in (positive, negative))
        ranking = _rank_values(values[:, cells], *flags)  # (b, R, M)
        twice_won, pairs = (count.sum(-1) for count in _count_ordered_pairs(ranking))
        scores.append(twice_won.double() / (2 * pairs))
    auc = torch.cat(scores)
    return torch.maximum(auc, 1 - auc) if normalize else auc


def _labelled_values(
    maps: Tensor, masks: Tensor, *, ignore: int | float | None, resize: Resize, threshold: float
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Values, foreground and background flags (b, n), a few images at a time; a cell with neither flag is left out."""
    maps, size = _checked_maps(maps, masks), (masks.shape[-2], masks.shape[-1])
    if resize not in ("mask", "map"):
        raise InputError(f'resize is {resize!r}; it names what is resized: "mask" or "map"')
    grid = size if resize == "map" else (maps.shape[-2], maps.shape[-1])
    num_at_once = max(1, _VALUES_AT_ONCE // (grid[0] * grid[1]))
    for values, labels in zip(maps.split(num_at_once), masks.split(num_at_once), strict=True):
        positive, negative = split_mask(labels, grid, ignore=ignore, threshold=threshold)
        yield _resize_maps(values, grid).flatten(1), positive.flatten(1), negative.flatten(1)


class _Ranking(NamedTuple):
    """How many positives and negatives lie below each of T rising cuts, and below infinity."""

    cuts: Tensor  # (..., T)
    positives_below: Tensor  # (..., T + 1) of whole numbers
    negatives_below: Tensor  # (..., T + 1)


def _rank_values(values: Tensor, positive: Tensor, negative: Tensor, *, levels: Tensor | None = None) -> _Ranking:
    """Rank values (..., n) along the last axis, exactly or, scaled to [0, 1], by the levels (T,) they reach."""
    if levels is not None:
        return _rank_by_levels(values, positive, negative, levels)
    if values.device.type == "cpu":
        order = torch.from_numpy(np.argsort(values.numpy(), axis=-1))  # vectorised: a sixth of torch's time on a CPU
    else:
        order = values.argsort(dim=-1)
    ordered = values.gather(-1, order)
    last_of_ties = F.pad(ordered[..., 1:] != ordered[..., :-1], (0, 1), value=True)
    below = []
    for kind in (positive, negative):
        upto = kind.gather(-1, order).cumsum(-1, dtype=torch.int32)
        below.append(F.pad(upto.mul_(last_of_ties).cummax(-1).values, (1, 0)))  # ties wait for their last
    return _Ranking(ordered, below[0], below[1])


def _rank_by_levels(values: Tensor, positive: Tensor, negative: Tensor, levels: Tensor) -> _Ranking:
    halves = values.double() / 2  # so that the widest range of float64 does not overflow
    low, high = halves.aminmax(dim=-1, keepdim=True)
    scaled = torch.where(high > low, (halves - low) / (high - low), 0)
    reached = torch.bucketize(scaled, levels, right=True)  # (..., n), from 0 to T levels
    bins = (*values.shape[:-1], len(levels) + 1)
    below = []
    for kind in (positive, negative):
        counts = torch.zeros(bins, dtype=torch.int64, device=values.device).scatter_add_(-1, reached, kind.long())
        below.append(F.pad(counts.cumsum(-1), (1, 0)))
    return _Ranking(F.pad(levels, (1, 0), value=-torch.inf).expand(bins), below[0], below[1])


def _count_ordered_pairs(ranking: _Ranking) -> tuple[Tensor, Tensor]:
    """Twice the number of pairs that the positive wins, ties counting once, and the number of pairs: (...) of int64."""
    positives, negatives = ranking.positives_below, ranking.negatives_below
    twice_won = (positives.diff(dim=-1).long() * (negatives[..., 1:] + negatives[..., :-1])).sum(-1)
    return twice_won, positives[..., -1].long() * negatives[..., -1]


def _resize_maps(maps: Tensor, grid: tuple[int, int]) -> Tensor:
    if (maps.shape[-2], maps.shape[-1]) == grid:
        return maps
    shrinks = maps.shape[-2] > grid[0] or maps.shape[-1] > grid[1]
    real = maps if maps.is_floating_point() else maps.double()
    return F.interpolate(real[:, None], size=grid, mode="bilinear", align_corners=False, antialias=shrinks)[:, 0]


def _checked_maps(maps: Tensor, masks: Tensor) -> Tensor:
    """The maps without gradient, in a dtype that can be sorted without merging values."""
    for given in (maps, masks):
        check_kind(given, Tensor, "give maps and masks as tensors")
    if maps.ndim != 3 or 0 in maps.shape[1:]:
        raise InputError(f"maps have shape {tuple(maps.shape)}; they must be (B, h, w): one map per image")
    if masks.ndim != 3 or len(maps) != len(masks):
        raise InputError(
            f"maps {tuple(maps.shape)} and masks {tuple(masks.shape)} do not pair up; they must be (B, h, w) and "
            "(B, H, W): repeat the masks to score several maps per image"
        )
    if maps.device != masks.device:
        raise InputError(f"maps are on {maps.device} and masks on {masks.device}; move one of them with .to(device)")
    if maps.is_complex() or maps.dtype == torch.uint64:
        raise TypeError(f"maps are {maps.dtype}; they must be real numbers that torch can order: convert them first")
    maps = maps.detach()
    if not maps.is_floating_point():
        return maps if maps.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32) else maps.long()
    maps = maps if maps.dtype == torch.float64 else maps.float()
    if maps.sum().isfinite():  # quick: no sum with NaN or infinity in it is finite
        return maps
    wrong = (~maps.isfinite()).flatten(1).any(dim=1).nonzero().flatten().tolist()
    if wrong:
        raise InputError(
            f"{len(wrong)} of {len(maps)} maps hold NaN or infinity (first: map {wrong[0]}), which have no rank; "
            "leave these maps out, or replace the values with torch.nan_to_num"
        )
    return maps


def _checked_thresholds(thresholds: int | Sequence[float] | Tensor | None, maps: Tensor) -> Tensor | None:
    """Rising thresholds (T,) of float64 on the maps' device, or None for the exact curve."""
    if thresholds is None:
        return None
    if isinstance(thresholds, int):
        if thresholds < 2:
            raise InputError(f"thresholds={thresholds}; even steps from 0 to 1 need at least 2: try 101")
        return torch.linspace(0, 1, thresholds, dtype=torch.float64, device=maps.device)
    levels = torch.as_tensor(thresholds, dtype=torch.float64, device=maps.device)
    if levels.ndim != 1 or not len(levels) or not ((levels >= 0) & (levels <= 1)).all():
        raise InputError(f"thresholds are {thresholds}; they must be numbers in [0, 1], or a count such as 101")
    return levels.sort().values


def _centre_distances(height: int, width: int) -> Tensor:
    """u^2 + v^2 in whole units of 1 / (h w)^2, (h, w) of int64: whole, so that equal distances are equal."""
    if height < 1 or width < 1:
        raise InputError(f"a grid of {height} x {width} has no cells; height and width must be at least 1")
    rows, columns = (2 * torch.arange(size) + 1 - size for size in (height, width))
    return (rows * width).square()[:, None] + (columns * height).square()


@lru_cache(maxsize=8)
def _rings(height: int, width: int) -> tuple[Tensor, Tensor]:
    """Cells of each ring of two or more, as a padded table of flat indices (R, M), and which entries are cells."""
    _, ring, sizes = _centre_distances(height, width).flatten().unique(return_inverse=True, return_counts=True)
    order = ring.argsort(stable=True)
    starts = sizes.cumsum(0) - sizes
    offsets = torch.arange(int(sizes.max()))
    present = offsets < sizes[:, None]
    cells = order[(starts[:, None] + offsets).clamp(max=len(order) - 1)]
    return cells[sizes > 1], present[sizes > 1]
