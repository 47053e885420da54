"""What a Binary-AUC must be read against: the centre of the image, and a score that the centre cannot win."""

from functools import lru_cache

import torch
from torch import Tensor

from mixlab.analysis.binary_auc import Resize, count_ordered_pairs, labelled_values, rank_values
from mixlab.errors import InputError


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
    for values, positive, negative in labelled_values(maps, masks, ignore=ignore, resize=resize, threshold=threshold):
        cells, present = (part.to(maps.device) for part in _rings(*(masks if resize == "map" else maps).shape[1:]))
        ranking = rank_values(values[:, cells], positive[:, cells] & present, negative[:, cells] & present)  # (b, R, M)
        twice_won, pairs = (count.sum(-1) for count in count_ordered_pairs(ranking))
        scores.append(twice_won.double() / (2 * pairs))
    auc = torch.cat(scores)
    return torch.maximum(auc, 1 - auc) if normalize else auc


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
