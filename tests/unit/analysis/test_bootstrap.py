"""Bootstrap intervals: coverage, pairing, seeds and undefined images."""

import math

import pytest
import torch

from mixlab.analysis.bootstrap import bootstrap_difference, bootstrap_mean


def test_the_interval_is_that_of_the_central_limit_theorem_for_many_images():
    scores = torch.rand(3000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    interval = bootstrap_mean(scores, num_resamples=4000)
    error = scores.std().item() / math.sqrt(3000)
    assert interval.mean == pytest.approx(scores.mean().item(), abs=1e-12)
    assert interval.low == pytest.approx(interval.mean - 1.96 * error, abs=0.15 * error)
    assert interval.high == pytest.approx(interval.mean + 1.96 * error, abs=0.15 * error)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    generator = torch.Generator().manual_seed(1)
    samples = torch.rand(300, 60, generator=generator) ** 2  # mean 1/3
    intervals = [bootstrap_mean(sample, level=0.8, num_resamples=400, seed=i) for i, sample in enumerate(samples)]
    covered = sum(interval.low <= 1 / 3 <= interval.high for interval in intervals) / 300
    assert 0.72 < covered < 0.86


def test_pairing_removes_what_both_sides_share():
    generator = torch.Generator().manual_seed(2)
    difficulty = torch.rand(200, generator=generator)
    ours, theirs = difficulty + 0.02, difficulty + 0.005 * torch.randn(200, generator=generator)
    paired = bootstrap_difference(ours, theirs)
    assert paired.low > 0.015 and paired.high < 0.025
    single = bootstrap_mean(ours)
    assert single.high - single.low > 10 * (paired.high - paired.low)


def test_the_same_seed_gives_the_same_interval_and_another_seed_another():
    scores = torch.rand(50, generator=torch.Generator().manual_seed(3))
    assert bootstrap_mean(scores, seed=5) == bootstrap_mean(scores, seed=5)
    assert bootstrap_mean(scores, seed=5).low != bootstrap_mean(scores, seed=6).low


def test_the_callers_random_state_is_left_alone():
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    bootstrap_mean(torch.arange(10.0))
    assert torch.equal(torch.rand(3), expected)


def test_a_wider_level_gives_a_wider_interval():
    scores = torch.rand(50, generator=torch.Generator().manual_seed(5))
    narrow, wide = bootstrap_mean(scores, level=0.5), bootstrap_mean(scores, level=0.99)
    assert wide.low < narrow.low < narrow.high < wide.high


def test_undefined_pairs_are_left_out_and_counted():
    nan = float("nan")
    ours, theirs = torch.tensor([0.5, nan, 0.75, 1.0, nan]), torch.tensor([0.25, 0.5, nan, 0.5, nan])
    interval = bootstrap_difference(ours, theirs)
    assert (interval.num_used, interval.num_dropped) == (2, 3)
    assert interval.mean == 0.375
    assert (interval.low, interval.high) == (0.25, 0.5)


def test_one_image_has_a_mean_but_no_interval_and_none_has_neither():
    one = bootstrap_mean(torch.tensor([0.7, float("nan")], dtype=torch.float64))
    assert one.mean == 0.7 and math.isnan(one.low) and math.isnan(one.high)
    none = bootstrap_mean(torch.full((3,), float("nan")))
    assert math.isnan(none.mean) and (none.num_used, none.num_dropped) == (0, 3)


@pytest.mark.parametrize(
    ("scores", "options", "message"),
    [
        (torch.rand(2, 2), {}, r"shape \(2, 2\)"),
        (torch.rand(5), {"level": 95}, "level is 95"),
        (torch.rand(5), {"num_resamples": 10}, "num_resamples is 10"),
        (torch.tensor([0.5, float("inf")]), {}, "infinity"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(scores, options, message):
    with pytest.raises(ValueError, match=message):
        bootstrap_mean(scores, **options)


def test_scores_of_different_images_are_refused():
    with pytest.raises(ValueError, match="do not pair up"):
        bootstrap_difference(torch.rand(4), torch.rand(5))
