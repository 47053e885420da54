"""The ledger: verdicts follow from measurements by fixed rules, and theorems are computed."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import mixlab
from mixlab.analysis.auc import run_study
from mixlab.analysis.claims import CLAIMS, Evidence, Verdict, draw_up
from mixlab.analysis.claims.evidence import Comparison, scale_of, verdict_of
from mixlab.analysis.claims.orders import mutual_pairs
from mixlab.analysis.comparisons import over_seeds
from mixlab.analysis.layer_ranks import RankSettings
from mixlab.analysis.map_scores import MapScorer
from mixlab.analysis.rank import measure_ranks
from mixlab.analysis.viewed_images import ViewedImages
from mixlab.evaluation.target import Target
from mixlab.run import Measurement, measurements_of
from mixlab.statistics import Difference
from tests.test_docs import parse
from tests.unit.analysis.records import RANKED, measured, seeds

Given = Measurement | list[Measurement]


def verdict(number: int | str, *measurements: Given) -> Verdict:
    claim = next(claim for claim in CLAIMS if claim.number == number)
    return claim.check(Evidence(m for each in measurements for m in (each if isinstance(each, list) else [each])))


def status(number: int | str, *measurements: Given) -> str:
    return verdict(number, *measurements).status


# ---------------------------------------------------------------- the table


def test_every_claim_is_there_once_with_a_place_and_a_sentence() -> None:
    assert [claim.number for claim in CLAIMS] == [1, 2, 3, "4a", "4b", *range(5, 35)]
    assert all(claim.place and claim.statement.endswith(".") for claim in CLAIMS)
    assert all(claim.note.endswith(".") for claim in CLAIMS if claim.note)
    theorems = [claim.number for claim in CLAIMS if claim.kind == "theorem"]
    assert theorems == [1, 2, 3, "4a", 5, 19, 20, 24, 32, 33]


def test_every_measured_claim_names_a_command_that_mixlab_knows() -> None:
    for claim in CLAIMS:
        assert bool(claim.command) == (claim.kind == "measured")
        if claim.command:
            parse(claim.command)  # exits where an option does not exist


def test_without_runs_only_theorems_have_a_verdict_and_claim_five_fails() -> None:
    entries = {entry.claim.number: entry for entry in draw_up(Evidence())}
    expected = {5: "contradicted", 3: "supported in part"}
    for number, entry in entries.items():
        settled = expected.get(number, "supported") if entry.claim.kind == "theorem" else "not measured"
        assert entry.verdict.status == settled, (number, entry.verdict.measured)
        if settled == "not measured":
            assert entry.verdict.measured.endswith(f"`{entry.claim.command}` measures it")
    assert entries[5].verdict.value == 1
    json.dumps([entry.to_json() for entry in entries.values()], allow_nan=False)


def test_theorems_give_way_to_evidence_against_them() -> None:
    assert status("4a", measured("rank_bound_holds", "mamba2", 0.0)) == "contradicted"
    assert status("4a", measured("rank_bound_holds", "mamba2", 1.0)) == "supported"
    assert status(5, measured("mask_rank", "mamba2", 3.0)) == "supported"
    assert status(5, measured("mask_rank", "mamba2", 1.0)) == "contradicted"


def test_softmax_has_full_rank_in_part_where_single_blocks_fall_short() -> None:
    def ranks(mean: float, lowest: float) -> list[Measurement]:
        values = {"off_diagonal_rank": mean, "smallest_off_diagonal_rank": lowest}
        return [measured(metric, "attention", v, definition="numerical", chunk=256) for metric, v in values.items()]

    assert status("4b", ranks(256.0, 256.0)) == "supported"
    found = verdict("4b", ranks(254.0, 75.0))
    assert (
        found.status == "supported in part"
        and "counterexamples, in 1 of 1 results (the lowest block 29.3%)" in found.measured
    )
    assert "with equal queries 1" in found.measured, "a constructed counterexample: equal rows"
    assert status("4b", ranks(230.0, 75.0)) == "contradicted"


def test_diagonal_blocks_are_looked_at_with_and_without_the_skip_connection() -> None:
    def lowest(value: float, skip: bool) -> Measurement:
        about = {"definition": "numerical", "chunk": 256, "skip": skip}
        return measured("smallest_diagonal_rank", "mamba2", value, **about)

    text = verdict(3, lowest(256.0, True), lowest(192.0, False)).measured
    assert "with the skip connection: at least 100.0% of C" in text and "--no-skip`): at least 75.0% of C" in text
    assert "mamba2 without its skip" in text and "orthogonal at one token has rank 39" in text


# ---------------------------------------------------------------- judging


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


# ---------------------------------------------------------------- protocols and verdicts

ORDERED = {"attention": 0.9, "mamba2": 0.8, "linear_attention": 0.7}
ELSE = {"attention": 0.2, "mamba2": 0.5, "linear_attention": 0.8}


@pytest.mark.parametrize(
    ("number", "metric", "first", "other"),
    [
        (14, "probe_top1", {}, {"label_share": 0.1}),
        (14, "probe_top1", {}, {"label_share": 0.1, "blocks": 4, "strategy": "cls"}),
        (14, "probe_top1", {"mode": "augmented"}, {"mode": "cached"}),
        (14, "probe_top1", {"heads": "light"}, {"heads": "heavy"}),
        (15, "miou", {"mode": "single"}, {"mode": "multi"}),
        (16, "box_ap", {"head": "cascade"}, {"head": "mask"}),
        (17, "robust_top1", {}, {"limited": True}),
        (7, "binary_auc", {"fit": "squash"}, {"fit": "crop"}),
    ],
)
def test_figures_of_another_protocol_change_no_verdict(
    number: int, metric: str, first: dict[str, Any], other: dict[str, Any]
) -> None:
    chosen = [seeds(metric, family, value, **first) for family, value in ORDERED.items()]
    others = [seeds(metric, family, value, **other) for family, value in ELSE.items()]
    assert verdict(number, *others, *chosen) == verdict(number, *chosen)
    assert status(number, *chosen) == "supported" and status(number, *others) != "supported"
    mixed = [*chosen[:1], *others[1:]]
    assert status(number, *mixed) == "not measured", "two protocols are not compared"


def test_dense_claims_prefer_the_detector_of_their_own_paper() -> None:
    def boxes(head: str, scan: float) -> list[Measurement]:
        vmamba = seeds("box_ap", "mamba2", scan, head=head, model="vmamba_tiny")
        return [*seeds("box_ap", "gated_conv", 0.4, head=head), *vmamba]

    assert status(23, *boxes("cascade", 0.2), *boxes("mask", 0.6)) == "supported"


# ---------------------------------------------------------------- each measured claim, both ways


def test_orders_of_families_are_judged_pair_by_pair() -> None:
    order = {"attention": 0.9, "mamba2": 0.8, "linear_attention": 0.7}
    metrics = [
        (7, "binary_auc"), (14, "probe_top1"), (15, "miou"), (16, "box_ap"), (17, "robust_top1"), (17, "shifted_top1")
    ]  # fmt: skip
    for number, metric in metrics:
        assert status(number, *(seeds(metric, family, value) for family, value in order.items())) == "supported"
        reverse = zip(order, reversed(order.values()), strict=True)
        assert status(number, *(seeds(metric, family, value) for family, value in reverse)) == "contradicted"
        equal = [seeds(metric, family, 0.8) for family in order]
        assert status(number, *equal) == "not resolved at this scale"
        assert status(number, *equal[:2]) == "not measured"


def test_ranks_that_are_equal_contradict_a_strict_order() -> None:
    def ranks(linear: float, half: float = 0.0) -> list[Measurement]:
        values = {"attention": 256.0, "mamba2": 60.0, "linear_attention": linear}
        return [
            measured("off_diagonal_rank", f, v, low=v - half, high=v + half, definition="numerical", seed=seed)
            for f, v in values.items()
            for seed in range(3)
        ]

    assert status(6, *ranks(64.0)) == "contradicted"
    assert status(6, *ranks(60.0)) == "contradicted"
    assert status(6, *ranks(40.0)) == "supported"
    unsure = ranks(64.0, half=30)

    def bounds(value: float) -> list[Measurement]:
        return [replace(m, metric="off_diagonal_rank_bound", value=value, low=None, high=None) for m in unsure]

    assert status(6, *unsure, *bounds(64.0)) == "contradicted", "a scan of state 64 cannot have more"
    assert status(6, *unsure, *bounds(128.0)) == "not resolved at this scale"
    sizes = [
        measured("off_diagonal_rank", f, 9.0, definition="numerical", chunk=c)
        for f, c in zip(RANKED, (256, 64, 64), strict=True)
    ]
    assert status(6, *sizes) == "not measured"  # blocks of different sizes say nothing about each other


def test_training_size_and_registers() -> None:
    dino, taught = (seeds("binary_auc", "attention", v, training=t) for v, t in ((0.8, "dino"), (0.7, "supervised")))
    assert status(8, dino, taught) == "supported"
    assert status(8, dino, seeds("binary_auc", "attention", 0.95, training="supervised")) == "contradicted"
    linear = [seeds("binary_auc", "linear_attention", v, training=t) for v, t in ((0.1, "dino"), (0.9, "supervised"))]
    assert status(8, dino, taught, *linear) == "supported", "the paper compares attention and scans"
    big = seeds("binary_auc", "attention", 0.85, num_parameters=22_000_000)
    assert status(9, dino, big) == "supported in part"
    v2 = [
        measured("binary_auc", "attention", v, training="dinov2", num_parameters=n) for v, n in ((0.6, 22), (0.7, 86))
    ]
    assert status(9, dino, big, *v2) == "contradicted"  # the paper says that DINOv2 falls with size
    falls = [replace(m, value=1.3 - m.value, low=1.29 - m.value, high=1.31 - m.value) for m in v2]
    assert status(9, dino, big, *falls) == "supported"
    assert status(11, v2[0]) == "not measured"


def test_small_must_score_above_every_other_size_and_then_bigger_is_not_better() -> None:
    def sizes(*values: float) -> list[Measurement]:
        counts = (10_000_000, 40_000_000, 88_000_000)
        return [
            m for v, n in zip(values, counts, strict=False) for m in seeds("binary_auc", "mamba2", v, num_parameters=n)
        ]

    assert status(31, sizes(0.6, 0.8, 0.7)) == "supported"
    assert status(31, sizes(0.6, 0.7, 0.8)) == "contradicted"
    assert status(31, sizes(0.6, 0.8)) == "not measured", "two sizes have none between"


def test_heads_of_two_kinds_are_compared_by_their_means() -> None:
    def heads(family: str, *values: float) -> list[Measurement]:
        place = {"map": "mixing_rows", "layer": 3}
        return [m for i, v in enumerate(values) for m in seeds("binary_auc", family, v, index=i, **place)]

    softmax = heads("attention", 0.6, 0.9)
    assert status(26, softmax, heads("linear_attention", 0.8, 0.5)) == "supported"
    assert status(26, softmax, heads("linear_attention", 0.8, 0.9)) == "contradicted"
    assert status(26, softmax) == "not measured"


def test_what_rank_n_leaves_of_softmax_decides_whether_it_is_of_low_rank() -> None:
    def left(value: float, rank: int = 64, part: str = "off_diagonal") -> list[Measurement]:
        return [
            measured("low_rank_residual", "attention", value, low=value, high=value, rank=rank, part=part, seed=seed)
            for seed in range(3)
        ]

    assert status(25, left(0.001)) == "supported in part", "whole matrices were not measured"
    assert status(25, left(0.001), left(0.002, part="whole")) == "supported"
    assert status(25, left(0.001), left(0.2, part="whole")) == "contradicted"
    found = verdict(25, left(0.001), left(0.3, rank=1))
    assert found.status == "supported in part" and "rank 1 leaves 30.00% of off-diagonal" in found.measured
    assert status(25, left(0.3)[0]) == "not resolved at this scale", "one run"
    assert status(25, [replace(m, subject=replace(m.subject, family="mamba2")) for m in left(0.3)]) == "not measured"


def test_heads_are_judged_network_by_network_and_some_must_be_lazy() -> None:
    def gap(value: float, **other: object) -> Measurement:
        return measured("best_head_over_worst", "attention", value, layer=3, **other)

    def head(value: float, index: int) -> Measurement:
        return measured("binary_auc_raw", "attention", value, map="mixing_rows", layer=3, index=index)

    gaps = [gap(value, seed=seed) for seed, value in enumerate((0.1, 0.2, 0.6))]
    assert status(10, *gaps) == "supported in part", "however much networks differ in it"
    assert status(10, gaps[0]) == "supported in part", "it is about these very weights"
    assert status(10, *gaps, head(0.5, 0), head(0.8, 1)) == "supported"
    assert status(10, gap(0.005), head(0.5, 0)) == "not resolved at this scale"
    scan = measured("best_head_over_worst", "mamba2", -0.5)
    assert status(10, *gaps, scan, head(0.5, 0)) == "supported", "the paper's heads are those of attention"
    twins = [replace(head(value, index), metric="untrained") for index, value in enumerate((0.6, 0.7))]
    scores = [replace(head(value, index), metric="binary_auc") for index, value in enumerate((0.5, 0.9))]
    claim = next(claim for claim in CLAIMS if claim.number == 10)
    text = claim.check(Evidence([*gaps, *twins, *scores])).measured
    assert text.endswith("best minus worst on the same images 0.400, in untrained twins 0.100")


def test_middle_registers_must_beat_both_ends() -> None:
    first, last = (seeds(f"middle_registers_over_{end}", "mamba2", 0.1) for end in ("first", "last"))
    follows = seeds("register_auc_follows_probe", "mamba2", 0.9)
    assert status(12, first, last, follows) == "supported"
    assert status(12, first, last) == "supported in part"
    assert status(12, first, last, seeds("register_auc_follows_probe", "mamba2", -0.5)) == "contradicted"
    none = seeds("middle_registers_over_last", "mamba2", 0.0)
    assert status(12, first, none, follows) == "not resolved at this scale"
    twin = replace(first[0], metric="untrained_middle_over_first", value=0.08)
    assert "untrained middle over first: +0.080" in verdict(12, first, last, twin).measured
    assert status(34, seeds("middle_token_over_front", "mamba2", 0.1)) == "supported"


def test_layers() -> None:
    def layers(values: list[float]) -> list[Measurement]:
        return [m for i, v in enumerate(values) for m in seeds("binary_auc_raw", "attention", v, layer=i)]

    assert status(13, layers([0.4, 0.5, 0.6, 0.7])) == "supported"
    assert status(13, layers([0.6, 0.62, 0.64, 0.7])) == "contradicted"
    assert status(13, layers([0.4, 0.5])) == "not measured"
    assert status(13, layers([0.4, 0.5, 0.6, 0.7])[::3]) == "not resolved at this scale", "one run"


def test_probes_causality_and_the_gated_cnn() -> None:
    seen, causal = seeds("knn_top1", "attention", 0.8), seeds("knn_top1", "attention", 0.7, causal=True)
    assert status(21, seen, causal) == "supported"
    assert status(21, seen) == "not measured"
    own = [seeds("top1", "attention", value, causal=hidden) for value, hidden in ((0.7, False), (0.8, True))]
    assert status(21, seen, causal, *own) == "contradicted", "the classifier's own accuracy is what the paper measured"
    conv, scan = (seeds("top1", f, v, training="supervised") for f, v in (("gated_conv", 0.8), ("mamba2", 0.7)))
    assert status(22, conv, scan) == "supported"
    pooled, with_token = (
        seeds("top1", "attention", v, num_parameters=n) for v, n in ((0.8, 6_000_000), (0.1, 6_100_000))
    )
    assert status(21, pooled, with_token, seeds("top1", "attention", 0.7, causal=True)) == "supported", "of one size"


def test_dense_tasks_are_decided_by_the_best_visual_mambas_alone() -> None:
    conv, plain = (seeds("miou", f, v) for f, v in (("gated_conv", 0.5), ("mamba2", 0.6)))
    beside = verdict(23, conv, plain)
    assert beside.status == "not measured" and "of other visual Mambas, miou, dinovim_tiny" in beside.measured
    for value, expected in ((0.6, "supported"), (0.4, "contradicted")):
        assert status(23, conv, plain, seeds("miou", "mamba2", value, model="vmamba_tiny")) == expected


def test_registers_probe_better_where_heads_are_heavy() -> None:
    registers = {"model": "dinomambareg_tiny", "num_registers": 12}
    for gain, expected in ((0.1, "supported"), (-0.1, "contradicted")):
        heavy = [
            seeds("probe_top1", "mamba2", 0.7, heads="heavy"),
            seeds("probe_top1", "mamba2", 0.7 + gain, heads="heavy", **registers),
        ]
        light = [
            seeds("probe_top1", "mamba2", 0.7, heads="light"),
            seeds("probe_top1", "mamba2", 0.7 - gain, heads="light", **registers),
        ]
        assert status(30, *heavy, *light) == expected


# ---------------------------------------------------------------- Tables 5 and 6


def cells(values: dict[tuple[int, str], float], **other: Any) -> list[Measurement]:
    return [m for (b, s), v in values.items() for m in seeds("probe_top1", "mamba2", v, blocks=b, strategy=s, **other)]


def test_four_blocks_and_the_class_token_probe_best() -> None:
    table = {(1, "cls"): 0.6, (4, "cls"): 0.8, (4, "mean"): 0.7, (4, "max"): 0.65}
    assert status(18, cells(table)) == "supported"
    del table[4, "max"]
    part = verdict(18, cells(table))
    assert part.status == "supported in part" and part.measured.endswith("not measured: cls of 4 above max of 4")
    assert status(18, cells(table | {(4, "mean"): 0.9})) == "contradicted"
    twins = cells({(4, "cls"): 0.1, (4, "mean"): 0.9}, training="untrained")
    assert status(18, cells(table), twins) == "supported in part"


def test_cells_of_one_network_are_compared_seed_by_seed() -> None:
    """Seeds differ by far more than the two cells do, but each by the same."""
    table = {(1, "cls"): 0.60, (4, "cls"): 0.65}
    wide = [
        measured("probe_top1", "mamba2", v + 0.1 * seed, blocks=b, strategy=s, seed=seed)
        for (b, s), v in table.items()
        for seed in range(3)
    ]
    assert status(18, *wide) == "supported in part", "unpaired, the interval of three seeds is +- 0.23"


def test_whole_orders_of_the_tables() -> None:
    blocks = {(number, "cls"): 0.5 + 0.1 * number for number in (1, 2, 3, 4)}
    assert status(27, cells(blocks)) == "supported"
    assert status(27, cells(blocks | {(2, "cls"): 0.55})) == "contradicted"
    assert status(27, cells({key: v for key, v in blocks.items() if key[0] in (1, 4)})) == "not measured"
    table = {(4, s): 0.9 - 0.1 * place for place, s in enumerate(("cls", "cls+mean", "cls+max", "mean", "max"))}
    assert status(28, cells(table)) == "supported"
    assert status(28, cells(table | {(4, "cls+mean"): 0.95})) == "contradicted"


def test_learning_rates_and_weight_decays_have_an_order_each() -> None:
    def grid(rates: dict[tuple[float, float], float]) -> list[Measurement]:
        place = {"blocks": 4, "strategy": "cls", "heads": "one"}
        return [
            m
            for (lr, wd), v in rates.items()
            for m in seeds("probe_top1", "mamba2", v, lrs=(lr,), weight_decays=(wd,), **place)
        ]

    decays = {(1e-3, 1e-3): 0.8, (1e-3, 0.0): 0.75, (1e-3, 5e-3): 0.7, (1e-3, 1e-2): 0.65}
    rates = {(2e-3, 1e-3): 0.85, (5e-4, 1e-3): 0.75, (2.5e-4, 1e-3): 0.7}
    assert status(29, grid(decays | rates)) == "supported"
    assert status(29, grid(decays)) == "supported in part"
    assert status(29, grid(decays | rates | {(2e-3, 1e-3): 0.6})) == "contradicted"
    four = grid({(1e-3, 0.0): 0.7})
    one = [replace(m, protocol=replace(m.protocol, blocks=1), value=m.value - 0.2, low=None, high=None) for m in four]
    best = cells({(4, "cls"): 0.7, (1, "cls"): 0.8})
    assert status(18, four, one, best) == "supported in part", "at the paper's rates, not by the best of all"
    assert status(18, best) == "contradicted"
    own = {family: seeds("probe_top1", family, v, blocks=4, strategy="cls") for family, v in ORDERED.items()}
    assert status(14, *own.values(), grid({(1e-3, 0.0): 0.1})) == "supported", "a cell of a grid is no network's own"


def test_cells_of_an_ablation_are_not_taken_for_a_models_accuracy() -> None:
    order = {"attention": 0.9, "mamba2": 0.8, "linear_attention": 0.7}
    best = [seeds("probe_top1", family, value) for family, value in order.items()]
    few = [seeds("probe_top1", "attention", 0.1, blocks=1, strategy=s) for s in ("cls", "mean")]
    registers = [seeds("probe_top1", "mamba2", 0.1, register=r) for r in range(3)]
    assert status(14, *best, *few, *registers) == "supported"
    table = [seeds("probe_top1", f, 1 - v, blocks=4, strategy="cls") for f, v in order.items()]
    assert status(14, *best, *table) == "contradicted", "the paper's own cell decides where there is one"
    heavier = seeds("probe_top1", "mamba2", 0.99, num_registers=12, model="dinomambareg_tiny")
    assert status(14, *best, heavier) == "supported", "its order is of models without registers"


def test_untrained_models_decide_nothing_about_maps() -> None:
    names = ("attention", "mamba2", "linear_attention")
    untrained = [
        measured("binary_auc", f, v, training="untrained") for f, v in zip(names, (0.9, 0.8, 0.7), strict=True)
    ]
    assert status(7, *untrained) == "not measured"
    assert status(10, measured("best_head_over_worst", "attention", 0.2, training="untrained")) == "not measured"


# ---------------------------------------------------------------- from real results


def test_results_of_rank_and_studies_reach_the_ledger() -> None:
    torch.manual_seed(0)
    results, subjects = [], []
    images, few = (ViewedImages("shapes:n=8", size=64, num_images=number) for number in (8, 2))
    for name in ("vit_tiny", "dinovim_tiny", "linearvit_tiny"):
        model = mixlab.create_model(name, dim=64, depth=4, image=64, patch=8, head_dim=16).eval()
        subjects.append(Target(label=name, backbone=model, training="dino"))
        found = measure_ranks(subjects[-1], few, layers=1, settings=RankSettings(chunk=32)).to_json()
        results.append((name, json.loads(json.dumps(found, allow_nan=False))))
    scorer = MapScorer(images, twins=False)
    studies = ("layer", "model", "head")
    results += [(study, run_study(study, subjects, scorer).to_json()) for study in studies]
    statuses = {
        entry.claim.number: entry.verdict.status
        for entry in draw_up(Evidence(m for name, result in results for m in measurements_of(result, name)))
    }
    assert statuses[5] == "contradicted"
    assert {statuses[number] for number in (6, 7, 10, 13)} <= {
        "supported",
        "contradicted",
        "not resolved at this scale",
    }
    assert {statuses[number] for number in (8, 11, 14, 15, 16, 17, 21, 22, 23, 31)} == {"not measured"}
    assert statuses["4b"] != "not measured" and statuses[25] == "not resolved at this scale", "one run of one network"
