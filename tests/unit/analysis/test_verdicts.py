"""From comparisons to a verdict: the rule, its error rates, single runs and pairs of images."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mixlab.analysis.claims import Evidence
from mixlab.analysis.claims.evidence import Comparison, scale_of, verdict_of
from mixlab.analysis.claims.orders import mutual_pairs
from mixlab.analysis.comparisons import over_seeds
from mixlab.run import Measurement
from mixlab.statistics import Difference
from tests.unit.analysis.records import ORDERED, RANKED, measured, seeds, status, verdict


def gap(value: float, error: float, what: str = "x", **other: Any) -> Comparison:
    return Comparison(what, Difference(value, error, n=9), (measured("miou", "attention", 0.5),), **other)


def test_judgement_needs_every_difference_to_be_significant() -> None:
    up, open_, down = (gap(value, 0.03) for value in (0.2, 0.05, -0.2))
    assert verdict_of([]).status == "not measured"
    assert verdict_of([up, up]).status == "supported"
    part = verdict_of([up, up], missing=["the rest"])
    assert part.status == "supported in part" and part.measured.endswith("not measured: the rest")
    assert verdict_of([up, open_]).status == "not resolved at this scale"
    assert verdict_of([gap(0.0, 0.0)]).status == "contradicted"
    worst = verdict_of([up, down, gap(-0.3, 0.5)])
    assert worst.status == "contradicted" and worst.value == -0.2, "the difference that decided is the one recorded"
    assert worst.high is not None and worst.high < 0


def test_one_difference_of_many_may_come_out_significant_by_chance() -> None:
    assert verdict_of([gap(-0.25, 0.1)]).status == "contradicted"
    many = verdict_of([gap(-0.25, 0.1), *[gap(0.1, 0.1)] * 9])
    assert many.status == "not resolved at this scale" and "1 of 10 below zero at 95 %" in many.measured


def test_all_of_a_claim_is_supported_without_a_correction() -> None:
    """1.96 < 2.1 < 2.24, the two-sided 95 % and 97.5 % points: each significant, though not by Bonferroni."""
    both = verdict_of([gap(0.21, 0.1), gap(0.21, 0.1)])
    assert both.status == "supported" and both.measured.endswith("; each of 2 at 95 %")
    assert both.low == pytest.approx(0.21 - 0.196, abs=1e-4)


@pytest.mark.parametrize("shared", [0.0, 0.6], ids=["independent", "sharing a network"])
def test_false_verdicts_are_as_rare_as_promised(shared: float) -> None:
    """Studies of five comparisons drawn at the edge of the null hypotheses: at most 2.5 % false verdicts of either
    kind, for independent comparisons and for those that share a network; without the correction there would be far
    more."""
    random, num_studies, num = np.random.default_rng(0), 2000, 5
    noise = np.sqrt(shared) * random.normal(size=(num_studies, 1))
    noise = noise + np.sqrt(1 - shared) * random.normal(size=(num_studies, num))
    used = (measured("miou", "attention", 0.5),)

    def share(true: list[float], wanted: str) -> float:
        found = [
            verdict_of([Comparison("x", Difference(float(v), 1.0, n=9), used) for v in study]).status
            for study in noise + true
        ]
        return found.count(wanted) / num_studies  # type: ignore[arg-type]

    tolerance = 0.025 + 3 * (0.025 * 0.975 / num_studies) ** 0.5
    one_is_false = share([0.0, 9.0, 9.0, 9.0, 9.0], "supported")  # the least favourable: the rest is plain to see
    assert 0.015 < one_is_false < tolerance
    assert share([0.0] * num, "supported") <= one_is_false
    assert share([0.0] * num, "contradicted") < tolerance, "all true, at the edge"
    uncorrected = float((noise.min(axis=1) < -1.96).mean())
    assert uncorrected > 2 * tolerance, "so the correction is needed"


def test_one_run_against_one_run_decides_nothing_about_training() -> None:
    alone = {family: measured("probe_top1", family, value) for family, value in ORDERED.items()}
    found = verdict(14, *alone.values())
    assert found.status == "not resolved at this scale" and "train more seeds" in found.measured
    assert (found.low, found.high) == (None, None) and found.value is not None
    three = {family: seeds("probe_top1", family, value) for family, value in ORDERED.items()}
    assert status(14, *three.values()) == "supported"
    half = verdict(14, three["attention"], three["mamba2"], alone["linear_attention"])
    assert half.status == "supported", "the spread of three seeds stands for the single run beside them"
    singles = [alone["attention"], *three["mamba2"], *three["linear_attention"]]
    assert status(14, *singles, measured("probe_top1", "attention", 0.1, model="vit_small")) != "supported"


def test_where_a_part_has_repeated_runs_single_ones_beside_them_decide_nothing() -> None:
    firm, alone = gap(0.2, 0.03, part="a"), gap(-0.9, 0.03, "single", part="a", trainings=0)
    found = verdict_of([firm, alone])
    assert found.status == "supported" and found.measured.endswith("beside it, single: -0.900 (one run each)")
    partly = verdict_of([firm, gap(0.9, 0.03, part="b", trainings=0)])
    assert partly.status == "supported in part" and "not measured: b by more than one run" in partly.measured
    assert verdict_of([alone]).status == "not resolved at this scale"


def test_claims_about_released_weights_and_about_single_networks_need_no_second_run() -> None:
    registers = [
        measured("binary_auc", "attention", v, training="dinov2", num_registers=r) for v, r in ((0.8, 4), (0.7, 0))
    ]
    assert status(11, *registers) == "supported", "nobody trains DINOv2 again"
    trained = [replace(m, subject=replace(m.subject, training="dino")) for m in registers]
    assert "supported" not in status(9, *trained, measured("binary_auc", "attention", 0.9, num_parameters=99_000_000))


def test_the_same_images_are_compared_in_pairs() -> None:
    """Answers that differ on one image in ten: the paired interval is far narrower, and decides."""
    random = np.random.default_rng(0)
    base = random.random(400) < 0.6

    def answers(family: str, extra: float) -> list[Measurement]:
        found = []
        for seed in range(3):
            correct = base | (np.arange(400) < extra * 400)
            share = float(correct.mean())
            given = {"by_image": correct.astype(float), "n": 400, "low": share - 0.05, "high": share + 0.05}
            found.append(measured("probe_top1", family, share, seed=seed, **given))
        return found

    groups = [answers(family, extra) for family, extra in zip(RANKED, (0.2, 0.1, 0.0), strict=True)]
    assert status(14, *groups) == "supported"
    apart = [[replace(m, by_image=None) for m in group] for group in groups]
    assert status(14, *apart) == "not resolved at this scale"


def test_the_scale_names_sizes_data_labels_and_seeds() -> None:
    found = [
        measured("knn_top1", "attention", 0.5, seed=s, num_parameters=n, label_share=0.1)
        for s, n in ((0, 5_500_000), (1, 10_700_000))
    ]
    assert scale_of(found) == "5.5 to 10.7 M parameters, photos, 10% of the labels, n = 100, 2 seeds"


def test_no_rival_of_a_family_is_left_out() -> None:
    vit = over_seeds([measured("probe_top1", "attention", 0.8)])
    rivals = [measured("probe_top1", "mamba2", 0.7, model=name) for name in ("dinovim_tiny", "mambareg_tiny")]
    mambas = over_seeds(rivals)
    assert [(a[0]["model"], b[0]["model"]) for a, b in mutual_pairs(vit, mambas)] == [
        ("vit_tiny", "dinovim_tiny"), ("vit_tiny", "mambareg_tiny")
    ]  # fmt: skip
    assert len(mutual_pairs(mambas, vit)) == 2


def test_only_models_of_one_training_data_and_size_are_paired() -> None:
    vit = over_seeds([measured("binary_auc", "attention", 0.8)])
    rivals = [
        measured("binary_auc", "mamba2", 0.7, num_parameters=90_000_000),
        measured("binary_auc", "mamba2", 0.7, training="supervised"),
        measured("binary_auc", "mamba2", 0.7, data="drawings"),
        measured("binary_auc", "mamba2", 0.7, num_parameters=11_000_000),
    ]
    (pair,) = mutual_pairs(vit, over_seeds(rivals))
    assert pair[1][0]["num_parameters"] == 11_000_000


def test_a_measurement_that_two_runs_hold_counts_once() -> None:
    twice = [measured("binary_auc", "attention", 0.8, label="a") for _ in range(2)]
    assert len(Evidence(twice).measurements) == 1
    seeds = [measured("binary_auc", "attention", 0.8, seed=seed, label="a") for seed in (0, 1)]
    assert len(Evidence(seeds).measurements) == 2
