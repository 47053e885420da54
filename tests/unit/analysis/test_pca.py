"""Principal component maps: the components of scikit-learn, with signs that stay."""

import numpy as np
import pytest
import torch
from sklearn import decomposition

from mixlab.analysis.isolation import isolation_maps
from mixlab.analysis.pca import first_components, fit_pca, pca_maps


def scene(seed: int = 0, num: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """Features (B, 8, 8, 12) with an object in the middle along one strong direction, and its mask."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.zeros(8, 8, dtype=torch.bool)
    mask[2:6, 3:6] = True
    direction = torch.randn(12, generator=generator)
    features = torch.randn(num, 8, 8, 12, generator=generator) * torch.linspace(1, 0.1, 12)
    return features + 10 * mask[..., None] * direction / direction.norm(), mask.expand(num, 8, 8)


def test_components_are_those_of_scikit_learn_up_to_sign() -> None:
    patches, _ = scene()
    pca, shares = fit_pca(patches)
    oracle = decomposition.PCA(4, svd_solver="full").fit(patches.flatten(0, 2).double().numpy())
    cosines = (pca.directions.numpy() * oracle.components_).sum(-1)
    np.testing.assert_allclose(np.abs(cosines), 1, atol=1e-9)
    np.testing.assert_allclose(shares.numpy(), oracle.explained_variance_ratio_, atol=1e-12)
    np.testing.assert_allclose(pca.scores(patches).flatten(0, 2).std(0, correction=0).numpy(), 1, atol=1e-9)


@pytest.mark.parametrize("fit", ["image", "set"])
def test_the_first_component_finds_the_object_on_the_positive_side(fit: str) -> None:
    patches, mask = scene()
    maps = pca_maps(patches, fit=fit)
    assert (maps.foreground == mask).float().mean() > 0.95
    assert maps.first[mask].mean() > 0 > maps.first[~mask].mean()
    assert maps.explained.shape == ((2, 4) if fit == "image" else (1, 4))


def test_the_first_component_alone_is_that_of_the_maps_to_the_last_bit() -> None:
    patches, _ = scene(num=3)
    assert torch.equal(first_components(patches), pca_maps(patches).first)


def test_the_first_component_alone_compares_no_patches_of_a_grid_whose_pairs_would_fill_the_memory() -> None:
    patches = torch.randn(1, 300, 300, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([5, 1, 1, 1.0])
    found = first_components(patches).flatten().numpy()
    oracle = decomposition.PCA(1).fit_transform(patches.flatten(0, 2).double().numpy())[:, 0]
    np.testing.assert_allclose(abs(np.corrcoef(found, oracle)[0, 1]), 1, atol=1e-9)


def test_turning_features_round_changes_no_picture() -> None:
    patches, _ = scene()
    turned = pca_maps(-patches)
    torch.testing.assert_close(turned.first, pca_maps(patches).first)
    torch.testing.assert_close(turned.foreground, pca_maps(patches).foreground)


def test_signs_do_not_flip_under_small_noise() -> None:
    for seed in range(12):
        patches, _ = scene(seed)
        before = fit_pca(patches)[0].directions
        for trial in range(5):
            noise = 1e-4 * torch.randn(patches.shape, generator=torch.Generator().manual_seed(trial))
            after = fit_pca(patches + noise)[0].directions
            assert ((before * after).sum(-1) > 0.9).all(), (seed, trial)


def test_a_flipped_image_gives_the_flipped_picture() -> None:
    patches, _ = scene()
    flipped = pca_maps(patches.flip(2))
    maps = pca_maps(patches)
    torch.testing.assert_close(flipped.first, maps.first.flip(2))
    torch.testing.assert_close(flipped.colours, maps.colours.flip(2))


def test_colours_fill_the_unit_range_on_the_foreground_and_are_black_elsewhere() -> None:
    patches, _ = scene()
    maps = pca_maps(patches)
    for image in range(2):
        inside = maps.colours[image][maps.foreground[image]]
        assert inside.min(0).values.tolist() == [0, 0, 0]
        assert inside.max(0).values.tolist() == [1, 1, 1]
        assert maps.colours[image][~maps.foreground[image]].abs().max() == 0


def test_the_threshold_is_in_standard_deviations_of_the_component() -> None:
    patches, _ = scene()
    maps = pca_maps(1000 * patches, threshold=1.5)
    torch.testing.assert_close(maps.foreground, pca_maps(patches).first > 1.5)


def test_colours_lie_where_the_map_isolation_is_above_its_mean() -> None:
    patches, _ = scene()
    inside = isolation_maps(patches)
    torch.testing.assert_close(pca_maps(patches).foreground, inside > inside.mean((1, 2), keepdim=True))


def test_constant_features_have_no_foreground_and_no_colour() -> None:
    maps = pca_maps(torch.ones(1, 4, 4, 6))
    assert not maps.foreground.any()
    assert maps.colours.abs().max() == 0
    assert maps.explained.abs().max() == 0


def test_features_of_rank_one_leave_the_colours_grey() -> None:
    patches = torch.arange(16.0).reshape(1, 4, 4, 1) * torch.ones(6)
    maps = pca_maps(patches, threshold=0)
    assert maps.explained[0].tolist() == pytest.approx([1, 0, 0, 0])
    assert set(maps.colours[maps.foreground].flatten().tolist()) == {0.5}


def test_a_grid_that_is_all_border_still_has_a_sign() -> None:
    patches = torch.randn(1, 2, 2, 5, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(pca_maps(patches).first, pca_maps(patches + 1e-5).first, atol=1e-4, rtol=0)


def test_wrong_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3, 4\); they must be \(B, h, w, D\)"):
        pca_maps(torch.ones(2, 3, 4))
    with pytest.raises(ValueError, match="fit is 'all'"):
        pca_maps(torch.ones(1, 2, 2, 3), fit="all")
    with pytest.raises(ValueError, match="NaN or infinity"):
        pca_maps(torch.full((1, 2, 2, 3), torch.nan))
