"""Student's t and Wilson's interval against scipy's."""

import pytest
from scipy import stats

from mixlab.statistics import mean_interval, median_interval, share_interval, student, wilson_interval


@pytest.mark.parametrize("freedom", [1, 1.3, 2, 2.83, 4, 30, 1e3, 1e6, 1e9, float("inf")])
def test_quantiles_are_those_of_scipy(freedom: float) -> None:
    for level in (0.5, 0.95, 0.95 + 0.05 * 15 / 16, 0.9999):
        exact = stats.t.ppf((1 + level) / 2, min(freedom, 1e12))
        assert student(freedom, level) == pytest.approx(exact, rel=1e-3)  # worst far out, at 1.3


def test_an_interval_of_few_values_is_students() -> None:
    values = [0.5, 0.6, 0.9]
    found = mean_interval(values)
    assert (found.low, found.high) == pytest.approx(stats.t.interval(0.95, 2, loc=2 / 3, scale=stats.sem(values)))
    assert found.value == pytest.approx(2 / 3) and found.n == 3
    assert (mean_interval([0.5]).low, mean_interval([0.5]).high) == (None, None)


@pytest.mark.parametrize(("correct", "n"), [(0, 1), (0, 50), (50, 50), (1, 2), (37, 50), (3900, 3925)])
def test_an_interval_of_a_share_is_wilsons_and_never_without_width(correct: int, n: int) -> None:
    found = wilson_interval(correct, n)
    exact = stats.binomtest(correct, n).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=1e-12)
    assert found.low is not None and found.high is not None
    assert 0 <= found.low <= found.value <= found.high <= 1 and found.low < found.high


@pytest.mark.parametrize(("correct", "n"), [(0, 0), (5, 4), (-1, 4)])
def test_impossible_counts_are_refused(correct: int, n: int) -> None:
    with pytest.raises(ValueError, match=f"{correct} of {n} images cannot be right"):
        wilson_interval(correct, n)


@pytest.mark.parametrize("n", [1, 2, 5, 6, 8, 10, 11, 16, 26, 100])
def test_an_interval_of_a_median_covers_it_and_no_narrower_one_does(n: int) -> None:
    found = median_interval([float(value) for value in range(n)][::-1])
    assert found.low is not None and found.high == n - 1 - found.low and found.value == (n - 1) / 2

    def covered(edge: float) -> float:
        return 1 - 2 * float(stats.binom.cdf(edge, n, 0.5))

    assert covered(found.low) >= 0.95 or (n < 6 and found.low == 0)
    assert covered(found.low + 1) < 0.95


def test_an_interval_of_a_share_with_an_error_is_students_but_stays_between_0_and_1() -> None:
    low, high = share_interval(0.6, 0.001, freedom=19)
    assert (low, high) == pytest.approx(stats.t.interval(0.95, 19, loc=0.6, scale=0.001), abs=1e-5)
    for share in (1e-6, 0.02, 0.5, 1 - 1e-6):
        low, high = share_interval(share, 0.3, freedom=1)
        assert 0 <= low < share < high <= 1
    assert share_interval(1.0, 0.0, freedom=9) == (1.0, 1.0)
