"""Correlation against scipy's."""

import pytest
from scipy.stats import pearsonr, spearmanr

from mixlab.statistics import correlate


def test_correlations_are_those_of_scipy() -> None:
    x, y = [0.1, 0.4, 0.4, 0.9, 0.2], [1.0, 3.0, 2.0, 2.5, 0.0]
    found = correlate(x, y)
    assert found.pearson == pytest.approx(pearsonr(x, y).statistic)
    assert found.spearman == pytest.approx(spearmanr(x, y).statistic)
    assert found.low < found.spearman < found.high and found.n == 5
    assert found.to_json()["spearman"] == found.spearman


def test_its_interval_is_fishers() -> None:
    x, y = list(range(12)), [3, 1, 2, 5, 4, 8, 6, 7, 11, 9, 12, 10]
    found, exact = correlate(x, y), pearsonr(x, y).confidence_interval(0.95)  # whole numbers are their own ranks
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high))


def test_what_does_not_vary_has_none_and_one_pair_is_refused() -> None:
    assert correlate([1, 1, 1], [1, 2, 3]).pearson is None
    with pytest.raises(ValueError, match="two or more pairs"):
        correlate([1], [2])
