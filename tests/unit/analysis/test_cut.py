"""Normalised cuts against their definition, tried over every way to part a small image."""

from itertools import product

import pytest
import torch
from torch import Tensor

from mixlab.analysis.cut import WEAKEST, cut_maps
from mixlab.analysis.patches import is_on_border

GENERATOR = torch.Generator().manual_seed(3)


def joined_pairs(patches: Tensor) -> Tensor:
    """The graph, by a loop over pairs of patches (n, D)."""
    cosines = [[torch.cosine_similarity(a, b, dim=0) for b in patches] for a in patches]
    return torch.tensor(cosines, dtype=torch.float64).clamp(min=WEAKEST)


def quotient(values: Tensor, joined: Tensor) -> float:
    """What the cut minimises: squared differences over joined pairs, beside the spread over patches by their degree."""
    degrees = joined.sum(-1)
    values = values - (degrees * values).sum() / degrees.sum()
    return float((joined * (values[:, None] - values).square()).sum() / (degrees * values.square()).sum())


def test_no_other_values_cut_less_and_the_best_parting_of_all_has_the_sign_of_the_map() -> None:
    """An object of 1 x 3 patches in an image of 3 x 5, each patch a little off the direction of its part."""
    part = torch.zeros(3, 5, dtype=torch.long)
    part[1, 1:4] = 1
    directions = torch.tensor([[1.0, 0.2, 0.0], [0.1, 1.0, 0.3]], dtype=torch.float64)
    patches = directions[part] + 0.15 * torch.randn(3, 5, 3, generator=GENERATOR, dtype=torch.float64)
    found = cut_maps(patches[None])[0].flatten()
    joined = joined_pairs(patches.flatten(0, 1))
    least = quotient(found, joined)
    for size in (1e-3, 0.1, 10):
        other = found + size * torch.randn(15, generator=GENERATOR, dtype=torch.float64)
        assert quotient(other, joined) > least

    inside = torch.tensor([way for way in product((0.0, 1.0), repeat=15) if any(way) and not way[0]]).double()
    outside, of_all = 1 - inside, joined.sum(1)
    between = (inside @ joined * outside).sum(1)
    best = inside[(between / (inside @ of_all) + between / (outside @ of_all)).argmin()].bool()
    assert (best == part.flatten().bool()).all()
    assert ((found > 0) == best).all(), "positive inside, negative on the border"


def test_maps_are_lower_on_the_border_than_inside() -> None:
    maps = cut_maps(torch.randn(50, 5, 5, 8, generator=GENERATOR))
    border, inside = maps[:, is_on_border(maps.shape[1:])].mean(1), maps[:, ~is_on_border(maps.shape[1:])].mean(1)
    assert (border < inside).all()


@pytest.mark.parametrize("shape", [(2, 5, 4, 8), (1, 1, 1, 3), (1, 2, 2, 3)])
def test_maps_have_unit_length_and_images_do_not_see_each_other(shape: tuple[int, ...]) -> None:
    patches = torch.randn(shape, generator=GENERATOR)
    maps = cut_maps(patches)
    assert maps.shape == shape[:3] and maps.dtype == torch.float32
    expected = 1.0 if shape[1] * shape[2] > 1 else 0.0
    torch.testing.assert_close(maps.flatten(1).norm(dim=1), torch.full((shape[0],), expected))
    torch.testing.assert_close(cut_maps(patches[:1]), maps[:1])
    torch.testing.assert_close(cut_maps(7 * patches), maps, msg="only directions count")


def test_patches_that_are_all_alike_or_nothing_have_no_cut_and_nan_is_refused() -> None:
    assert not cut_maps(torch.ones(1, 4, 4, 3)).any()
    assert cut_maps(torch.zeros(1, 4, 4, 3)).isfinite().all()
    with pytest.raises(ValueError, match="NaN or infinity, which have no map"):
        cut_maps(torch.full((1, 2, 2, 3), torch.nan))
    with pytest.raises(ValueError, match=r"must be \(B, h, w, D\)"):
        cut_maps(torch.zeros(2, 2, 3))
