"""Differences between groups of measurements: over seeds and over images, and what may be said of several at once."""

import math

import numpy as np
import pytest
from scipy import stats

from mixlab.analysis.differences import Difference, difference, judge, over_images, own_difference
from mixlab.analysis.evidence import Measurement

IMAGES = 0.01 / 1.96  # the standard error of a measurement with an interval of +- 0.01


def measured(metric: str, value: float, **other: object) -> Measurement:
    record = {"metric": metric, "value": value, "low": value - 0.01, "high": value + 0.01, "n": 100, "model": "vit"}
    return Measurement.from_record(record | other, "test")


def seeds(metric: str, values: list[float], **other: object) -> list[Measurement]:
    return [measured(metric, value, seed=seed, **other) for seed, value in enumerate(values)]


def test_seeds_count_as_welch_has_it_and_images_besides() -> None:
    a, b = [0.80, 0.83, 0.79], [0.70, 0.74, 0.75]
    exact = {"low": None, "high": None}
    found = difference(seeds("knn_top1", a, **exact), seeds("knn_top1", b, **exact))
    test = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert found.interval() == pytest.approx((test.low, test.high))
    wider = difference(seeds("knn_top1", a), seeds("knn_top1", b))
    assert wider.error == pytest.approx(math.hypot(found.error, IMAGES * math.sqrt(2)))
    assert wider.freedom > found.freedom and wider.n == 100, "images are counted once, not once a seed"


def test_single_runs_have_their_intervals_over_images() -> None:
    found = difference([measured("miou", 0.5)], [measured("miou", 0.45)])
    low, high = found.interval()
    assert (low + high) / 2 == pytest.approx(0.05) and high - low == pytest.approx(2 * np.hypot(0.01, 0.01), rel=1e-4)
    unknown = measured("miou", 0.1, low=None, high=None)
    assert difference([measured("miou", 0.9)], [unknown]).interval() == (-math.inf, math.inf)


def test_the_spread_of_seeds_stands_for_a_single_run_too() -> None:
    values = [0.5, 0.6, 0.7]
    many, alone = seeds("binary_auc", values), [measured("binary_auc", 0.9)]
    spread = np.var(values, ddof=1) * (1 + 1 / 3)
    for gap, sign in ((difference(alone, many), 1), (difference(many, alone), -1)):
        assert gap.mean == pytest.approx(sign * 0.3)
        assert gap.error == pytest.approx(math.sqrt(spread + 2 * IMAGES**2))
        assert gap.freedom == pytest.approx(2, rel=0.02)


def test_differences_of_their_own() -> None:
    gaps = [0.1, 0.2, 0.6]
    group = seeds("best_head_over_worst", gaps, layer=3)
    found = own_difference(group)
    assert found.error == pytest.approx(math.sqrt(np.var(gaps, ddof=1) / 3 + IMAGES**2))
    assert found.what == "vit x3, layer 3: best head over worst" and found.n == 100
    assert own_difference(group[:1]).interval() == pytest.approx((group[0].low, group[0].high), rel=1e-4)
    assert over_images(group).error == pytest.approx(IMAGES / math.sqrt(3)), "each network has its own"
    wide = seeds("register_auc_follows_probe", [0.4, 0.9])
    assert own_difference(wide).interval() == (-1.0, 1.0), "no correlation lies beyond"


def test_the_more_is_judged_together_the_wider_are_intervals() -> None:
    gap = Difference("x", 1.0, 1.0, freedom=4.0)
    for together in (1, 5):
        half = stats.t.ppf(1 - 0.025 / together, 4)
        assert gap.interval(together) == pytest.approx((1 - half, 1 + half))
    sure = Difference("x", -0.25, 0.1)
    open_ = Difference("y", 0.1, 0.1)
    assert judge([sure], "").status == "contradicted"
    assert judge([sure, *[open_] * 9], "").status == "not resolved at this scale", (
        "one of ten may come out so by chance"
    )


def test_judgement_needs_every_difference_to_be_sure() -> None:
    up, open_, down = (Difference("x", mean, 0.03, n=9) for mean in (0.2, 0.05, -0.2))
    assert judge([], "").status == "not measured"
    assert judge([up, up], "").status == "supported"
    part = judge([up, up], "", missing=["the rest"])
    assert part.status == "supported in part" and part.measured.endswith("not measured: the rest")
    assert judge([up, open_], "").status == "not resolved at this scale"
    assert judge([Difference("x", 0.0, 0.0)], "").status == "contradicted"
    worst = judge([up, down, Difference("z", -0.3, 0.5)], "")
    assert worst.status == "contradicted" and worst.value == -0.2, "the difference that decided is the one recorded"
    assert worst.high is not None and worst.high < 0
