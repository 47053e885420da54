"""The small chart: ticks that are round, points where they belong, gaps where there is nothing."""

import math
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixlab.report.plot import Plot, Scale

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False)


@given(st.lists(NUMBERS, min_size=1, max_size=20), st.booleans())
def test_a_scale_holds_its_values_and_its_ticks_lie_on_it(values: list[float], integer: bool) -> None:
    scale = Scale.around(values, integer=integer)
    shares = [scale.share(value) for value in values]
    assert all(-1e-6 <= share <= 1 + 1e-6 for share in shares)
    ticks = scale.ticks(5)
    assert len(ticks) <= 7 and all(-1e-6 <= scale.share(tick) <= 1 + 1e-6 for tick in ticks)
    steps = [b - a for a, b in pairwise(ticks)]
    assert not steps or max(steps) - min(steps) <= 1e-6 * max(1.0, *map(abs, ticks))
    if integer:
        assert all(abs(tick - round(tick)) < 1e-6 for tick in ticks)


@given(st.lists(st.floats(1e-12, 1e6), min_size=1, max_size=10))
def test_a_logarithmic_scale_runs_over_whole_powers_of_ten(values: list[float]) -> None:
    scale = Scale.around(values, log=True)
    assert all(-1e-6 <= scale.share(value) <= 1 + 1e-6 for value in values)
    for tick in scale.ticks(5):
        assert math.isclose(math.log10(tick), round(math.log10(tick)), abs_tol=1e-9)


def test_points_are_drawn_at_their_places() -> None:
    plot = Plot(Scale(0, 10), Scale(0, 1), "x", "y", "a title", "what it shows", width=200, height=100)
    plot.line([0, 10], [0, 1], 0, name="line")
    (points,) = re.findall(r'points="([\d., ]+)"', plot.svg())
    first, last = ([float(part) for part in point.split(",")] for point in points.split())
    assert first == [pytest.approx(plot.left, abs=0.1), 60]  # bottom left: 40 below for the axis
    assert last == [188, 12]  # top right


def test_a_value_that_is_no_number_leaves_a_gap() -> None:
    plot = Plot(Scale(0, 3), Scale(0, 1), "x", "y", "t", "a")
    plot.line([0, 1, 2, 3], [0.1, math.nan, 0.2, 0.3], 0, name="n", dots=False)
    lines = re.findall(r'points="([^"]+)"', plot.svg())
    assert [len(line.split()) for line in lines] == [1, 2]
    assert "nan" not in plot.svg()


def test_text_from_outside_is_escaped() -> None:
    plot = Plot(Scale(0, 1), Scale(-0.5, 0.5), "<x>", "y", 'a "title"', "&", rows=["<row>"])
    plot.dot(0.5, 0, 1, name="<dot>")
    svg = str(plot.svg())
    assert "&lt;x&gt;" in svg and "&lt;row&gt;" in svg and "&lt;dot&gt;" in svg and "<row>" not in svg
    assert "a &#34;title&#34;. &amp;" in svg
