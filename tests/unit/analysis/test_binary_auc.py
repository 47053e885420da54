"""Binary-AUC against scikit-learn, and what is promised about ties, thresholds, sizes and bad input."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from mixlab.analysis.binary_auc import binary_auc, roc_curves

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int16,
    torch.uint8,
    torch.bool,
]


def sklearn_auc(values: torch.Tensor, labels: torch.Tensor, ignore: int | None = None) -> float:
    """The raw AUC of one image whose mask has the map's size; NaN where one class is missing."""
    kept = (labels != ignore) if ignore is not None else torch.ones_like(labels, dtype=torch.bool)
    foreground = (labels != 0)[kept].numpy()
    if foreground.all() or not foreground.any():
        return float("nan")
    return roc_auc_score(foreground, values[kept].double().numpy())


def assert_equals_sklearn(maps: torch.Tensor, masks: torch.Tensor, ignore: int | None = None) -> None:
    expected = [sklearn_auc(values, labels, ignore) for values, labels in zip(maps, masks, strict=True)]
    np.testing.assert_allclose(binary_auc(maps, masks, ignore=ignore, normalize=False), expected, atol=1e-9, rtol=0)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    shape=st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(1, 9)),
    num_values=st.integers(1, 50),
    dtype=st.sampled_from(DTYPES),
    share=st.sampled_from([0.01, 0.3, 0.5, 0.99]),
    ignored=st.sampled_from([0.0, 0.2, 0.9]),
)
def test_equals_sklearn_with_ties_ignored_pixels_and_extreme_ratios(seed, shape, num_values, dtype, share, ignored):
    generator = torch.Generator().manual_seed(seed)
    maps = (torch.randint(num_values, shape, generator=generator) - num_values // 3).to(dtype)
    masks = (torch.rand(shape, generator=generator) < share).to(torch.uint8) * 7
    masks[torch.rand(shape, generator=generator) < ignored] = 255
    assert_equals_sklearn(maps, masks, ignore=255)


@pytest.mark.parametrize("num_foreground", [1, 2, 100, 195])
def test_equals_sklearn_where_almost_all_cells_are_of_one_kind(num_foreground):
    generator = torch.Generator().manual_seed(num_foreground)
    maps = torch.randn(40, 14, 14, generator=generator)
    masks = torch.zeros(40, 196, dtype=torch.int32)
    masks.scatter_(1, torch.rand(40, 196, generator=generator).argsort(1)[:, :num_foreground], 3)
    assert_equals_sklearn(maps, masks.view(40, 14, 14))


def test_more_images_than_fit_in_one_part_keep_their_order():
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(3000, 14, 14, generator=generator)
    masks = torch.rand(3000, 14, 14, generator=generator) < 0.4
    scores = binary_auc(maps, masks, normalize=False)
    for image in (0, 1336, 1337, 1338, 2999):
        assert scores[image].item() == pytest.approx(sklearn_auc(maps[image], masks[image]), abs=1e-9)


def test_values_that_differ_only_in_float64_are_not_ties():
    maps = torch.tensor([[[1.0, 1.0 + 1e-12]]], dtype=torch.float64)
    assert binary_auc(maps, torch.tensor([[[0, 1]]])).item() == 1.0


def test_minus_zero_ties_with_zero():
    assert binary_auc(torch.tensor([[[0.0, -0.0]]]), torch.tensor([[[1, 0]]])).item() == 0.5


def test_finite_maps_whose_sum_overflows_are_scored():
    maps = torch.tensor([[[3e38, 2e38, 1e38, -3e38]]])
    assert binary_auc(maps, torch.tensor([[[1, 1, 0, 0]]])).item() == 1.0


def test_a_map_is_scored_by_order_alone():
    generator = torch.Generator().manual_seed(1)
    maps = torch.randint(-20, 20, (8, 6, 6), generator=generator).double()
    masks = torch.rand(8, 6, 6, generator=generator) < 0.5
    assert torch.equal(binary_auc(maps, masks), binary_auc(1e9 * maps.exp() - 5, masks))


def test_normalised_is_the_larger_of_raw_and_its_complement():
    generator = torch.Generator().manual_seed(2)
    maps, masks = torch.randn(50, 5, 5, generator=generator), torch.rand(50, 5, 5, generator=generator) < 0.5
    raw = binary_auc(maps, masks, normalize=False)
    assert (raw < 0.5).any() and (raw > 0.5).any()
    assert torch.equal(binary_auc(maps, masks), torch.where(raw < 0.5, 1 - raw, raw))


def test_images_without_foreground_or_background_are_undefined_and_the_rest_is_scored():
    maps = torch.rand(4, 3, 3)
    masks = torch.zeros(4, 3, 3, dtype=torch.uint8)
    masks[1] = 1
    masks[2, 0] = 1
    masks[3, 0], masks[3, 1:] = 1, 255  # no background once the ignored pixels are out
    scores = binary_auc(maps, masks, ignore=255)
    assert scores.isnan().tolist() == [True, True, False, True]


def test_no_images_give_no_scores():
    assert binary_auc(torch.rand(0, 4, 4), torch.zeros(0, 8, 8)).shape == (0,)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), num_levels=st.integers(2, 12), num_values=st.integers(1, 30))
def test_fixed_thresholds_give_the_trapezoids_of_the_scaled_map(seed, num_levels, num_values):
    generator = torch.Generator().manual_seed(seed)
    maps = torch.randint(num_values, (3, 4, 5), generator=generator).double() * 3 - 7
    masks = torch.rand(3, 4, 5, generator=generator) < 0.4
    for thresholds in (num_levels, torch.rand(num_levels, generator=generator)):
        levels = torch.linspace(0, 1, num_levels, dtype=torch.float64) if isinstance(thresholds, int) else thresholds
        expected = []
        for values, labels in zip(maps, masks, strict=True):
            spread = (values.max() - values.min()).item()
            scaled = (values - values.min()) / spread if spread else torch.zeros_like(values)
            points = [(0.0, 0.0)]
            for level in sorted(levels.tolist(), reverse=True):
                active = scaled >= level
                points.append(
                    tuple((active & side).sum().item() / max(side.sum().item(), 1) for side in (~labels, labels))
                )
            x, y = zip(*points, (1.0, 1.0), strict=True)
            expected.append(np.trapezoid(y, x) if labels.any() and not labels.all() else np.nan)
        scores = binary_auc(maps, masks, normalize=False, thresholds=thresholds)
        np.testing.assert_allclose(scores, expected, atol=1e-12)
        curves = roc_curves(maps, masks, thresholds=thresholds)
        area = torch.trapezoid(curves.true_positive_rate, curves.false_positive_rate)
        np.testing.assert_allclose(area, expected, atol=1e-12)


def test_enough_thresholds_reach_the_exact_value_and_few_do_not():
    maps = torch.arange(16.0).view(1, 4, 4) ** 3
    masks = torch.arange(16).view(1, 4, 4) % 3 == 0
    exact = binary_auc(maps, masks)
    assert binary_auc(maps, masks, thresholds=100_001).item() == pytest.approx(exact.item(), abs=1e-12)
    assert binary_auc(maps, masks, thresholds=5).item() != pytest.approx(exact.item(), abs=1e-3)


def test_scaling_survives_the_widest_range_of_float64():
    maps = torch.tensor([[[-1.7e308, 1.7e308, 0.0, 1e308]]], dtype=torch.float64)
    assert binary_auc(maps, torch.tensor([[[0, 1, 0, 1]]]), thresholds=11).item() == 1.0


def test_curves_have_the_points_of_sklearn_and_the_area_of_the_score():
    generator = torch.Generator().manual_seed(3)
    maps = torch.randint(12, (6, 7, 7), generator=generator)
    masks = torch.rand(6, 7, 7, generator=generator) < 0.3
    curves = roc_curves(maps, masks)
    assert curves.thresholds.shape == (6, 50)
    area = torch.trapezoid(curves.true_positive_rate, curves.false_positive_rate)
    torch.testing.assert_close(area, binary_auc(maps, masks, normalize=False))
    for image in range(6):
        fpr, tpr, levels = roc_curve(masks[image].flatten(), maps[image].flatten(), drop_intermediate=False)
        ours = torch.stack([part[image] for part in curves]).unique_consecutive(dim=1)
        np.testing.assert_allclose(ours, np.stack([fpr, tpr, levels]), atol=1e-12)


def test_curves_of_undefined_images_are_nan():
    curves = roc_curves(torch.rand(2, 2, 2), torch.tensor([[[1, 1], [1, 1]], [[1, 0], [0, 0]]]))
    assert curves.true_positive_rate.isnan().all(dim=1).tolist() == [True, False]
    assert curves.false_positive_rate.isnan().all(dim=1).tolist() == [True, False]


def test_resizing_the_map_scores_every_pixel_of_the_mask():
    generator = torch.Generator().manual_seed(4)
    maps = torch.rand(3, 5, 6, generator=generator)
    masks = torch.randint(3, (3, 17, 40), generator=generator, dtype=torch.uint8)
    large = F.interpolate(maps[:, None], size=(17, 40), mode="bilinear", align_corners=False)[:, 0]
    expected = [sklearn_auc(values, labels, ignore=2) for values, labels in zip(large, masks, strict=True)]
    scores = binary_auc(maps, masks, ignore=2, resize="map", normalize=False)
    np.testing.assert_allclose(scores, expected, atol=1e-9)


def test_a_larger_map_is_smoothed_before_it_shrinks_to_the_mask():
    maps = torch.zeros(1, 64, 64)
    maps[:, 24:32, 24:32] = 1.0  # cell (3, 3) of 8 x 8
    masks = torch.zeros(1, 8, 8)
    masks[:, 3, 3] = 1
    maps[:, ::8, ::8] = 50.0  # specks that point sampling could meet
    assert binary_auc(maps, masks, resize="map").item() == 1.0


def test_maps_with_a_gradient_are_scored_without_one():
    maps = torch.rand(2, 3, 3, requires_grad=True)
    scores = binary_auc(maps, torch.eye(3).expand(2, 3, 3))
    assert not scores.requires_grad


def test_noncontiguous_maps_and_masks_are_scored_as_their_copies():
    generator = torch.Generator().manual_seed(5)
    maps = torch.rand(14, 9, 14, generator=generator).permute(1, 2, 0)
    masks = (torch.rand(224, 9, 224, generator=generator) < 0.5).permute(1, 0, 2)
    assert torch.equal(binary_auc(maps, masks), binary_auc(maps.contiguous(), masks.contiguous()))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_maps_with_nan_or_infinity_are_refused_with_their_place(value):
    maps = torch.rand(3, 2, 2)
    maps[1, 0, 1] = value
    with pytest.raises(ValueError, match=r"1 of 3 maps hold NaN or infinity .*map 1"):
        binary_auc(maps, torch.ones(3, 2, 2))


@pytest.mark.parametrize(
    ("maps", "masks", "options", "message"),
    [
        (torch.rand(2, 3), torch.ones(2, 3, 3), {}, r"maps have shape \(2, 3\)"),
        (torch.rand(2, 3, 3), torch.ones(2, 1, 3, 3), {}, "do not pair up"),
        (torch.rand(2, 3, 3), torch.ones(3, 3, 3), {}, "do not pair up"),
        (torch.rand(2, 0, 3), torch.ones(2, 3, 3), {}, "maps have shape"),
        (torch.rand(2, 3, 3), torch.ones(2, 0, 3), {}, "masks have shape"),
        (torch.rand(2, 3, 3), torch.ones(2, 3, 3), {"resize": "both"}, "resize is 'both'"),
        (torch.rand(2, 3, 3), torch.ones(2, 3, 3), {"thresholds": 1}, "thresholds=1"),
        (torch.rand(2, 3, 3), torch.ones(2, 3, 3), {"thresholds": [0.2, 1.5]}, "numbers in"),
        (torch.rand(2, 3, 3), torch.ones(2, 3, 3), {"threshold": 0.0}, "threshold is 0.0"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(maps, masks, options, message):
    with pytest.raises(ValueError, match=message):
        binary_auc(maps, masks, **options)


def test_complex_maps_are_refused():
    with pytest.raises(TypeError, match="complex64"):
        binary_auc(torch.rand(1, 2, 2).to(torch.complex64), torch.ones(1, 2, 2))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("resize", ["mask", "map"])
@pytest.mark.parametrize("thresholds", [None, 33])
def test_the_gpu_gives_the_scores_of_the_cpu(resize, thresholds):
    generator = torch.Generator().manual_seed(6)
    maps = torch.randint(40, (300, 14, 14), generator=generator).float()
    masks = torch.randint(3, (300, 224, 224), generator=generator, dtype=torch.uint8)
    options = {"ignore": 2, "resize": resize, "thresholds": thresholds}
    tolerance = 0 if resize == "mask" else 1e-4  # bilinear rounding may break ties
    on_gpu = binary_auc(maps.cuda(), masks.cuda(), **options)
    torch.testing.assert_close(on_gpu.cpu(), binary_auc(maps, masks, **options), atol=tolerance, rtol=0)


def test_maps_too_small_to_score_say_so() -> None:
    masks = torch.zeros(2, 16, 16)
    masks[:, :4, :4] = 1
    with pytest.warns(UserWarning, match="maps of 1 x 1 cells are too small to score.*use larger images"):
        assert binary_auc(torch.rand(2, 1, 1), masks).isnan().all()
    assert binary_auc(torch.rand(2, 1, 1), torch.zeros(2, 16, 16)).isnan().all()  # no object: nothing to warn of
