"""Bootstrap intervals: coverage, pairing, seeds and undefined images."""

import math

import numpy as np
import pytest
import torch

from mixlab.statistics import (
    Significance,
    bootstrap_difference,
    bootstrap_mean,
    jackknife,
    mean_interval,
    paired_accuracy_difference,
    significance,
)

RANDOM = np.random.default_rng


def test_the_interval_is_that_of_the_central_limit_theorem_for_many_images() -> None:
    scores = RANDOM(0).random(3000)
    found = bootstrap_mean(scores, num_resamples=4000)
    error = scores.std() / math.sqrt(3000)
    assert found.value == pytest.approx(scores.mean(), abs=1e-12)
    assert found.low == pytest.approx(found.value - 1.96 * error, abs=0.15 * error)
    assert found.high == pytest.approx(found.value + 1.96 * error, abs=0.15 * error)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    samples = RANDOM(1).random((300, 60)) ** 2  # mean 1/3
    intervals = [bootstrap_mean(sample, level=0.8, num_resamples=400, seed=i) for i, sample in enumerate(samples)]
    covered = sum(found.low <= 1 / 3 <= found.high for found in intervals) / 300
    assert 0.72 < covered < 0.86


@pytest.mark.parametrize("n", [2, 3, 5, 8, 20, 60])
def test_of_few_images_it_covers_the_truth_as_often_as_of_many(n: int) -> None:
    intervals = [bootstrap_mean(sample, seed=i) for i, sample in enumerate(RANDOM(2).standard_normal((500, n)))]
    assert sum(found.low <= 0 <= found.high for found in intervals) / 500 > 0.91


@pytest.mark.parametrize("n", [2, 3, 5])
def test_differences_of_few_images_between_equal_networks_are_seldom_significant(n: int) -> None:
    pairs = RANDOM(3).standard_normal((2000, 2, n))
    wrong = sum(significance(bootstrap_difference(*pair)) is not Significance.NONE for pair in pairs) / 2000
    assert 0.035 < wrong < 0.065


def test_of_fewer_than_eight_images_it_is_students_interval_at_any_level_cut_to_what_scores_can_be() -> None:
    scores = [0.6, 0.7, 0.95]  # mean 0.75, standard deviation 0.1803; t of 2 degrees of freedom: 4.303 and 1.886
    error = 0.180278 / math.sqrt(3)
    found, narrow = bootstrap_mean(scores), bootstrap_mean(scores, level=0.8)
    assert (found.low, found.high) == pytest.approx((0.75 - 4.3027 * error, 0.75 + 4.3027 * error), abs=1e-4)
    assert (narrow.low, narrow.high) == pytest.approx((0.75 - 1.8856 * error, 0.75 + 1.8856 * error), abs=1e-4)
    assert bootstrap_mean(scores, low=0.0, high=1.0).high == 1.0
    assert list(found.by_image) == scores
    gap = bootstrap_difference([1.0, 0.2], [0.0, 0.1], low=-1.0, high=1.0)
    assert (gap.low, gap.high) == (-1.0, 1.0)


def test_images_are_drawn_as_torch_draws_them() -> None:
    """Published intervals were made so."""
    scores = RANDOM(6).random(50)
    draws = torch.randint(50, (2000, 50), generator=torch.Generator().manual_seed(3))
    expected = np.quantile(scores[draws.numpy()].mean(1), (0.025, 0.975))
    found = bootstrap_mean(torch.tensor(scores), seed=3)
    assert (found.low, found.high) == pytest.approx(expected, abs=1e-12)
    assert bootstrap_mean(scores, seed=4).low != found.low


def test_pairing_removes_what_both_sides_share() -> None:
    random = RANDOM(2)
    difficulty = random.random(200)
    ours, theirs = difficulty + 0.02, difficulty + 0.005 * random.standard_normal(200)
    paired, single = bootstrap_difference(ours, theirs), bootstrap_mean(ours)
    assert paired.low > 0.015 and paired.high < 0.025
    assert single.high - single.low > 10 * (paired.high - paired.low)


def test_a_wider_level_gives_a_wider_interval() -> None:
    scores = RANDOM(5).random(50)
    narrow, wide = bootstrap_mean(scores, level=0.5), bootstrap_mean(scores, level=0.99)
    assert wide.low < narrow.low < narrow.high < wide.high


def test_undefined_pairs_are_left_out_and_counted() -> None:
    nan = math.nan
    found = bootstrap_difference([0.5, nan, 0.75, 1.0, nan], [0.25, 0.5, nan, 0.5, nan])
    assert (found.n, found.num_dropped) == (2, 3)
    half = 12.7062 * 0.125  # t of one degree of freedom; the gaps are 0.25 and 0.5
    assert (found.value, found.low, found.high) == pytest.approx((0.375, 0.375 - half, 0.375 + half), abs=1e-4)


def test_one_image_has_a_mean_but_no_interval_and_none_has_neither() -> None:
    one = bootstrap_mean([0.7, math.nan])
    assert (one.value, one.low, one.high) == (0.7, None, None)
    none = bootstrap_mean([math.nan] * 3)
    assert math.isnan(none.value) and (none.low, none.n, none.num_dropped) == (None, 0, 3)


def test_the_jackknife_of_a_mean_is_students_interval() -> None:
    values = RANDOM(7).random(150)
    found = jackknife(150, lambda counts: counts @ values / counts.sum(axis=1))
    mean = mean_interval(values.tolist())
    assert found == pytest.approx((mean.low, mean.high))
    assert jackknife(1, lambda counts: counts @ values[:1]) is None


def test_the_jackknife_of_many_images_leaves_out_groups_and_stays_a_share() -> None:
    values = RANDOM(8).random(1000) ** 0.5
    low, high = jackknife(1000, lambda counts: counts @ values / counts.sum(axis=1))
    mean = bootstrap_mean(values)
    assert (low, high) == pytest.approx((mean.low, mean.high), abs=0.005)
    assert jackknife(3, lambda counts: counts @ [0.0, 1.0, 1.0] / counts.sum(axis=1)) == (0.0, 1.0)


def test_a_paired_accuracy_difference_is_the_bootstrap_of_its_images() -> None:
    first, second = RANDOM(8).random((2, 500)) < [[0.8], [0.7]]
    slow, fast = bootstrap_difference(first, second), paired_accuracy_difference(first, second)
    assert fast.value == pytest.approx(slow.value)
    assert (fast.low, fast.high) == pytest.approx((slow.low, slow.high), abs=0.006)


def test_answers_that_never_differ_leave_room_for_other_images() -> None:
    same = np.ones(50, dtype=bool)
    found = paired_accuracy_difference(same, same)
    assert found.value == 0 and found.high == -found.low == pytest.approx(0.071, abs=0.001)


def test_one_network_right_on_all_images_and_the_other_on_none_leaves_room_for_other_images() -> None:
    for n, is_significant in ((3, False), (50, True)):
        found = paired_accuracy_difference(np.ones(n), np.zeros(n))
        assert (found.value, found.high) == (1.0, 1.0) and (found.low > 0) == is_significant
        other = paired_accuracy_difference(np.zeros(n), np.ones(n))
        assert (other.low, other.high) == (-found.high, -found.low)


@pytest.mark.parametrize("n", [5, 10, 20])
def test_a_paired_accuracy_difference_of_few_images_covers_the_truth(n: int) -> None:
    answers = RANDOM(9).random((500, 2, n)) < [[0.8], [0.5]]
    intervals = [paired_accuracy_difference(*pair, seed=i) for i, pair in enumerate(answers)]
    assert sum(found.low <= 0.3 <= found.high for found in intervals) / 500 > 0.91


@pytest.mark.parametrize(
    ("scores", "options", "message"),
    [
        ([[0.5, 0.5]], {}, r"shape \(1, 2\)"),
        ([0.5] * 5, {"level": 95}, "level is 95"),
        ([0.5] * 5, {"num_resamples": 10}, "num_resamples is 10"),
        ([0.5, math.inf], {}, "infinity"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(scores: list[float], options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bootstrap_mean(scores, **options)


def test_scores_of_different_images_are_refused() -> None:
    for compare in (bootstrap_difference, paired_accuracy_difference):
        with pytest.raises(ValueError, match="do not pair up"):
            compare([1, 0, 1, 0], [1, 0, 1, 0, 1])
