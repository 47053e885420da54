"""The centre prior and the score that it cannot win, against pairs compared one by one."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mixlab.analysis.binary_auc import binary_auc, centre_matched_auc, centre_prior


def matched_auc_by_pairs(values: torch.Tensor, labels: torch.Tensor) -> float:
    """Share of won pairs (ties half) among cells of opposite kind whose distances in half sides are exactly equal."""
    h, w = values.shape
    won, pairs = 0.0, 0
    cells = list(itertools.product(range(h), range(w)))
    for (i, j), (k, m) in itertools.product(cells, cells):
        near, far = (((2 * a + 1 - h) * w) ** 2 + ((2 * b + 1 - w) * h) ** 2 for a, b in ((i, j), (k, m)))
        if labels[i, j] == 1 and labels[k, m] == 0 and near == far:
            pairs += 1
            won += 0.5 * ((values[i, j] > values[k, m]).item() + (values[i, j] >= values[k, m]).item())
    return won / pairs if pairs else float("nan")


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    size=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    num_values=st.integers(1, 40),
)
def test_matched_score_is_the_share_of_pairs_won_at_equal_distance(seed, size, num_values):
    generator = torch.Generator().manual_seed(seed)
    maps = torch.randint(num_values, (3, *size), generator=generator)
    masks = torch.randint(3, (3, *size), generator=generator)  # 2 is ignored
    expected = torch.tensor(
        [matched_auc_by_pairs(*pair) for pair in zip(maps, masks, strict=True)], dtype=torch.float64
    )
    scores = centre_matched_auc(maps, masks, ignore=2)
    torch.testing.assert_close(scores, expected, atol=1e-12, rtol=0, equal_nan=True)


def centred_objects(num_images: int, height: int, width: int) -> torch.Tensor:
    """Rectangles near the centre of (B, H, W), jittered, so that the centre prior does well."""
    generator = torch.Generator().manual_seed(7)
    masks = torch.zeros(num_images, height, width, dtype=torch.uint8)
    for mask in masks:
        top, left = (int(size * (0.15 + 0.3 * torch.rand((), generator=generator))) for size in (height, width))
        mask[top : top + height // 2, left : left + width // 3] = 1
    return masks


@pytest.mark.parametrize("grid", [(14, 14), (15, 15), (14, 20), (9, 16)])
def test_any_function_of_the_distance_scores_exactly_one_half(grid):
    masks = centred_objects(30, 64, 96)
    prior = centre_prior(*grid)
    assert binary_auc(prior.expand(30, -1, -1), masks).mean() > 0.7
    for function in (prior, -prior, (40 * prior).sin()):
        assert (centre_matched_auc(function.expand(30, -1, -1), masks) == 0.5).all()


def test_a_perfect_map_scores_one_and_its_negative_zero():
    masks = centred_objects(30, 28, 28)
    perfect = torch.rand(30, 28, 28, generator=torch.Generator().manual_seed(0)) + masks
    assert (centre_matched_auc(perfect, masks) == 1).all()
    assert (centre_matched_auc(-perfect, masks) == 0).all()
    assert (centre_matched_auc(-perfect, masks, normalize=True) == 1).all()


def test_adding_a_function_of_the_distance_changes_nothing():
    masks = centred_objects(30, 56, 56)
    maps = torch.randint(1000, (30, 14, 14), generator=torch.Generator().manual_seed(1)).double()
    hills = (1e4 * centre_prior(14, 14).double()).round()  # whole numbers: the sum is exact
    assert torch.equal(centre_matched_auc(maps, masks), centre_matched_auc(maps + hills, masks))
    assert (binary_auc(maps, masks) - binary_auc(maps + hills, masks)).abs().max() > 0.1


def test_chance_scores_one_half_on_average_where_the_normalised_score_does_not():
    masks = centred_objects(2000, 14, 14)
    maps = torch.rand(2000, 14, 14, generator=torch.Generator().manual_seed(2))
    assert centre_matched_auc(maps, masks).nanmean().item() == pytest.approx(0.5, abs=0.01)
    assert binary_auc(maps, masks).mean().item() > 0.52


def test_a_map_with_an_eye_for_the_object_beats_one_half_and_a_blob_in_it_no_longer_helps():
    masks = centred_objects(300, 14, 14)
    noise = torch.randn(300, 14, 14, generator=torch.Generator().manual_seed(3))
    seeing, blind = masks + noise, 8 * centre_prior(14, 14) + noise
    assert binary_auc(blind, masks).mean() > binary_auc(seeing, masks).mean()
    assert centre_matched_auc(seeing, masks).nanmean() > 0.7 > 0.55 > centre_matched_auc(blind, masks).nanmean()


def test_images_without_a_matched_pair_are_undefined():
    rings = (centre_prior(6, 6) > 0.5).to(torch.uint8)  # a centred disc: no ring holds both kinds
    assert centre_matched_auc(torch.rand(1, 6, 6), rings[None]).isnan().all()
    assert not binary_auc(torch.rand(1, 6, 6), rings[None]).isnan().any()


def test_the_map_can_be_resized_to_the_mask():
    masks = centred_objects(4, 30, 40)
    assert (centre_matched_auc(masks, masks, resize="map") == 1).all()
    assert (centre_matched_auc(centre_prior(30, 40).expand(4, -1, -1), masks, resize="map") == 0.5).all()


def test_the_prior_peaks_in_the_centre_and_equals_its_mirror_images():
    prior = centre_prior(9, 13)
    assert prior.argmax().item() == 4 * 13 + 6 and prior[4, 6].item() == 1.0
    assert torch.equal(prior, prior.flip(0)) and torch.equal(prior, prior.flip(1))
    rows, columns = torch.linspace(-1, 1, 19)[1::2], torch.linspace(-1, 1, 27)[1::2]
    torch.testing.assert_close(prior, torch.exp(-2 * (rows[:, None] ** 2 + columns**2)))


def test_a_grid_without_cells_is_refused():
    with pytest.raises(ValueError, match="0 x 5"):
        centre_prior(0, 5)


def test_maps_of_the_wrong_shape_are_refused():
    with pytest.raises(ValueError, match="maps have shape"):
        centre_matched_auc(torch.rand(4), torch.ones(4, 2, 2))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_gpu_gives_the_matched_scores_of_the_cpu():
    masks = centred_objects(30, 56, 56)
    maps = torch.randint(50, (30, 14, 14), generator=torch.Generator().manual_seed(4)).float()
    assert torch.equal(centre_matched_auc(maps.cuda(), masks.cuda()).cpu(), centre_matched_auc(maps, masks))
