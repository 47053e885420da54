"""Correlation against scipy's."""

import numpy as np
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


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("n", [5, 12, 24])
def test_its_interval_covers_the_truth_as_often_as_it_says_up_to_095(n: int, rho: float) -> None:
    random = np.random.default_rng(0)
    truth = 6 / np.pi * np.arcsin(rho / 2)  # Spearman's, of normal variables whose Pearson's is rho
    hits = 0
    for _ in range(1000):
        x, noise = random.standard_normal((2, n))
        found = correlate(x, rho * x + np.sqrt(1 - rho**2) * noise)
        hits += found.low <= truth <= found.high
    assert hits / 1000 > 0.92


def test_a_perfect_order_of_few_pairs_leaves_doubt() -> None:
    few, many = (correlate(list(range(n)), list(range(n))) for n in (5, 50))
    assert few.spearman == few.high == 1 and 0 < few.low < 0.5
    assert many.high == 1 and many.low > 0.99
    turned = correlate(list(range(5)), list(range(5, 0, -1)))
    assert (turned.low, turned.high) == pytest.approx((-1, -few.low))


def test_what_does_not_vary_has_none_and_one_pair_is_refused() -> None:
    assert correlate([1, 1, 1], [1, 2, 3]).pearson is None
    with pytest.raises(ValueError, match="two or more pairs"):
        correlate([1], [2])
