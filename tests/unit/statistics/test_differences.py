"""Differences between groups of measurements: over seeds and over images together."""

import math

import numpy as np
import pytest
from scipy import stats

from mixlab.statistics import (
    Difference,
    Estimate,
    Significance,
    difference,
    has_learnt,
    interval_from_std,
    mean_over_images,
    mean_over_seeds,
    repeated_difference,
    significance,
)

N = 100
IMAGES = 0.01 / stats.t.ppf(0.975, N - 1)  # the standard error of a measurement with an interval of +- 0.01


def measured(value: float) -> Estimate:
    return Estimate(value, value - 0.01, value + 0.01, N)


def bare(value: float) -> Estimate:
    return Estimate(value, None, None, N)


def test_seeds_count_as_welch_has_it_and_images_besides() -> None:
    a, b = [0.80, 0.83, 0.79], [0.70, 0.74, 0.75]
    found = difference([bare(v) for v in a], [bare(v) for v in b])
    test = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert found.interval() == pytest.approx((test.low, test.high))
    wider = difference([measured(v) for v in a], [measured(v) for v in b])
    assert wider.error == pytest.approx(math.hypot(found.error, IMAGES * math.sqrt(2)))
    assert wider.freedom > found.freedom and wider.n == N, "images are counted once, not once a seed"


def test_single_runs_have_their_intervals_over_images() -> None:
    low, high = difference([measured(0.5)], [measured(0.45)]).interval()
    assert (low + high) / 2 == pytest.approx(0.05) and high - low == pytest.approx(2 * np.hypot(0.01, 0.01), rel=0.01)
    unknown = difference([measured(0.9)], [bare(0.1)])
    assert unknown.interval() == (-math.inf, math.inf) and (unknown.low, unknown.high) == (None, None)


def test_two_means_over_few_images_compare_as_welch_has_it() -> None:
    a, b = [3.0, 3.5, 4.5, 3.2], [1.0, 1.2, 0.7, 2.0]
    first, second = ([interval_from_std(float(np.mean(x)), float(np.std(x, ddof=1)), 4)] for x in (a, b))
    test = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert difference(first, second).interval() == pytest.approx((test.low, test.high))


def test_the_spread_of_seeds_stands_for_a_single_run_too() -> None:
    values = [0.5, 0.6, 0.7]
    many, alone = [measured(value) for value in values], [measured(0.9)]
    spread = np.var(values, ddof=1) * (1 + 1 / 3)
    for gap, sign in ((difference(alone, many), 1), (difference(many, alone), -1)):
        assert gap.value == pytest.approx(sign * 0.3)
        assert gap.error == pytest.approx(math.sqrt(spread + 2 * IMAGES**2))
        assert gap.freedom == pytest.approx(2, rel=0.02)


def test_measurements_that_are_differences_are_averaged() -> None:
    gaps = [0.1, 0.2, 0.6]
    group = [measured(value) for value in gaps]
    assert mean_over_seeds(group).error == pytest.approx(math.sqrt(np.var(gaps, ddof=1) / 3 + IMAGES**2))
    assert mean_over_seeds(group[:1]).interval() == pytest.approx((group[0].low, group[0].high))
    assert mean_over_images(group).error == pytest.approx(IMAGES), "they share their images"
    assert mean_over_seeds([measured(0.4), measured(0.9)], limit=1).interval() == (-1.0, 1.0)


def test_an_interval_that_is_not_symmetric_about_its_value_comes_out_as_it_went_in() -> None:
    alone = Estimate(0.3, low=0.1, high=0.4, n=5)  # as a bootstrap gives it
    for mean in (mean_over_seeds([alone]), mean_over_images([alone])):
        assert mean.interval() == (mean.low, mean.high) == pytest.approx((0.1, 0.4))
        wider = stats.t.ppf(1 - 0.025 / 3, 4) / stats.t.ppf(0.975, 4)
        assert mean.interval(together=3) == pytest.approx((0.3 - 0.2 * wider, 0.3 + 0.1 * wider))


def test_the_more_is_judged_together_the_wider_are_intervals() -> None:
    gap = Difference(1.0, 1.0, freedom=4.0)
    for together in (1, 5):
        half = stats.t.ppf(1 - 0.025 / together, 4)
        assert gap.interval(together) == pytest.approx((1 - half, 1 + half))


def test_a_difference_is_significant_if_its_interval_leaves_out_zero() -> None:
    more, less, none = Difference(0.2, 0.05), Difference(-0.2, 0.05), Difference(0.2, 0.2)
    assert [gap.significance for gap in (more, less, none)] == [Significance.MORE, Significance.LESS, Significance.NONE]
    assert significance(bare(0.2)) is Significance.UNKNOWN
    assert str(more.significance) == "significantly more"


def test_a_network_has_learnt_if_any_measure_is_significantly_above_its_twins() -> None:
    more, none = Difference(0.2, 0.05), Difference(0.2, 0.2)
    assert has_learnt([none, more]) is True
    assert has_learnt([none, Difference(-0.2, 0.05)]) is False
    assert has_learnt([]) is None


def scored(values: np.ndarray) -> Estimate:
    return Estimate(float(np.nanmean(values)), None, None, len(values), by_image=values)


def test_networks_scored_on_the_same_images_are_compared_in_pairs() -> None:
    random = np.random.default_rng(0)
    hard = random.normal(size=200)  # what both find in an image
    a, b = hard + 0.1 * random.normal(size=200) + 0.05, hard + 0.1 * random.normal(size=200)
    low, high = difference([scored(a)], [scored(b)]).interval()
    test = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert (low, high) == pytest.approx((test.low, test.high))
    apart = stats.ttest_ind(a, b).confidence_interval(0.95)
    assert high - low < (apart.high - apart.low) / 5
    some = a.copy()
    some[::4] = np.nan  # undefined there: those pairs are left out
    assert difference([scored(some)], [scored(b)]).n == 150
    assert difference([scored(a)], [scored(b[:-1])]).interval() == (-math.inf, math.inf), "other images"


def test_pairs_of_images_cover_the_truth_as_often_as_they_promise() -> None:
    """Both parts of the variance, of seeds and of images, drawn anew 400 times: 95 % of intervals hold the true 0.3."""
    random, held, num = np.random.default_rng(0), 0, 400
    for _ in range(num):
        images = random.normal(size=60)
        sides = [
            [scored(images + shift + 0.5 * random.normal() + random.normal(size=60)) for _ in range(4)]
            for shift in (0.3, 0.0)
        ]
        low, high = difference(*sides).interval()
        held += low <= 0.3 <= high
    assert 0.93 <= held / num <= 0.995, "a little cautious: the noise of single images is counted in both parts"


def test_answers_that_agree_on_every_image_are_no_proof_of_equality() -> None:
    same = np.ones(50)
    low, high = difference([scored(same)], [scored(same)]).interval()
    assert low < 0 < high and high < 0.1


def test_differences_within_networks_are_taken_seed_by_seed() -> None:
    a, b = [0.5, 0.7, 0.9], [0.45, 0.66, 0.84]
    found = repeated_difference([bare(v) for v in a], [bare(v) for v in b])
    test = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert found.interval() == pytest.approx((test.low, test.high))
    alone = repeated_difference([measured(0.5)], [measured(0.4)])
    assert alone.interval() == pytest.approx(difference([measured(0.5)], [measured(0.4)]).interval())
