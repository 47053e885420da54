"""Student's t against scipy's."""

import pytest
from scipy import stats

from mixlab.student import mean_interval, student


@pytest.mark.parametrize("freedom", [1, 1.3, 2, 2.83, 4, 30, 1e3, 1e6, 1e9, float("inf")])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.95 + 0.05 * 15 / 16, 0.9999])
def test_quantiles_are_those_of_scipy(freedom: float, level: float) -> None:
    assert student(freedom, level) == pytest.approx(
        stats.t.ppf((1 + level) / 2, min(freedom, 1e12)), rel=1e-3
    )  # worst far out, at 1.3


def test_an_interval_of_few_values_is_students() -> None:
    values = [0.5, 0.6, 0.9]
    expected = stats.t.interval(0.95, 2, loc=2 / 3, scale=stats.sem(values))
    assert mean_interval(values)[1:] == pytest.approx(expected)
