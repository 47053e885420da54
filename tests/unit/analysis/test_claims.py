"""The ledger: verdicts follow from measurements by fixed rules, and theorems are computed."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

import mixlab
from mixlab.analysis.auc import run_study
from mixlab.analysis.claims import CLAIMS, Evidence, Verdict, draw_up
from mixlab.analysis.claims.evidence import Comparison, scale_of, verdict_of
from mixlab.analysis.claims.measured import mutual_pairs
from mixlab.analysis.comparisons import over_seeds
from mixlab.analysis.layer_ranks import RankSettings
from mixlab.analysis.map_scores import MapScorer
from mixlab.analysis.rank import measure_ranks
from mixlab.analysis.viewed_images import ViewedImages
from mixlab.evaluation.target import Target
from mixlab.run import Measurement, measurements_of
from mixlab.statistics import Difference
from tests.unit.analysis.records import RANKED, measured


def verdict(number: int, *measurements: Measurement) -> Verdict:
    claim = next(claim for claim in CLAIMS if claim.number == number)
    return claim.check(Evidence(measurements))


def status(number: int, *measurements: Measurement) -> str:
    return verdict(number, *measurements).status


# ---------------------------------------------------------------- the table


def test_every_claim_is_there_once_with_a_place_and_a_sentence() -> None:
    assert [claim.number for claim in CLAIMS] == list(range(1, 25))
    assert all(claim.place and claim.statement.endswith(".") for claim in CLAIMS)
    assert [claim.number for claim in CLAIMS if claim.kind == "theorem"] == [1, 2, 3, 4, 5, 19, 20, 24]


def test_without_runs_only_theorems_have_a_verdict_and_claim_five_fails() -> None:
    entries = {entry.claim.number: entry for entry in draw_up(Evidence())}
    for number, entry in entries.items():
        expected = "not measured" if entry.claim.kind == "measured" else "contradicted" if number == 5 else "supported"
        assert entry.verdict.status == expected, (number, entry.verdict.measured)
    assert entries[5].verdict.value == 1
    json.dumps([entry.to_json() for entry in entries.values()], allow_nan=False)


def test_theorems_give_way_to_evidence_against_them() -> None:
    assert status(4, measured("rank_bound_holds", "mamba2", 0.0)) == "contradicted"
    short = {"definition": "numerical", "chunk": 256}
    assert status(4, measured("off_diagonal_rank", "attention", 230.0, **short)) == "contradicted"
    assert status(4, measured("off_diagonal_rank", "attention", 254.0, **short)) == "supported"  # up to rounding
    assert status(5, measured("mask_rank", "mamba2", 3.0)) == "supported"
    assert status(5, measured("mask_rank", "mamba2", 1.0)) == "contradicted"


# ---------------------------------------------------------------- judging


def gap(value: float, error: float, what: str = "x") -> Comparison:
    return Comparison(what, Difference(value, error, n=9), (measured("miou", "attention", 0.5),))


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
    assert verdict_of([gap(-0.25, 0.1), *[gap(0.1, 0.1)] * 9]).status == "not resolved at this scale"


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
    chosen = [measured(metric, family, value, **first) for family, value in ORDERED.items()]
    others = [measured(metric, family, value, **other) for family, value in ELSE.items()]
    assert verdict(number, *others, *chosen) == verdict(number, *chosen)
    assert status(number, *chosen) == "supported" and status(number, *others) != "supported"
    mixed = [*chosen[:1], *others[1:]]
    assert status(number, *mixed) == "not measured", "two protocols are not compared"


def test_dense_claims_prefer_the_detector_of_their_own_paper() -> None:
    def boxes(head: str, scan: float) -> list[Measurement]:
        return [
            measured("box_ap", family, value, head=head) for family, value in (("gated_conv", 0.4), ("mamba2", scan))
        ]

    assert status(23, *boxes("cascade", 0.2), *boxes("mask", 0.6)) == "supported"


# ---------------------------------------------------------------- each measured claim, both ways


def test_orders_of_families_are_judged_pair_by_pair() -> None:
    order = {"attention": 0.9, "mamba2": 0.8, "linear_attention": 0.7}
    metrics = [
        (7, "binary_auc"), (14, "probe_top1"), (15, "miou"), (16, "box_ap"), (17, "robust_top1"), (17, "shifted_top1")
    ]  # fmt: skip
    for number, metric in metrics:
        assert status(number, *(measured(metric, family, value) for family, value in order.items())) == "supported"
        reverse = zip(order, reversed(order.values()), strict=True)
        assert status(number, *(measured(metric, family, value) for family, value in reverse)) == "contradicted"
        equal = [measured(metric, family, 0.8) for family in order]
        assert status(number, *equal) == "not resolved at this scale"
        assert status(number, *equal[:2]) == "not measured"


def test_ranks_that_are_equal_contradict_a_strict_order() -> None:
    def ranks(linear: float) -> list[Measurement]:
        values = {"attention": 256.0, "mamba2": 60.0, "linear_attention": linear}
        return [
            measured("off_diagonal_rank", family, value, low=value, high=value, definition="numerical")
            for family, value in values.items()
        ]

    assert status(6, *ranks(64.0)) == "contradicted"
    assert status(6, *ranks(60.0)) == "contradicted"
    assert status(6, *ranks(40.0)) == "supported"
    unsure = [replace(m, low=m.value - 30, high=m.value + 30) for m in ranks(64.0)]

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
    dino, taught = (measured("binary_auc", "attention", v, training=t) for v, t in ((0.8, "dino"), (0.7, "supervised")))
    assert status(8, dino, taught) == "supported"
    assert status(8, dino, measured("binary_auc", "attention", 0.95, training="supervised")) == "contradicted"
    linear = [
        measured("binary_auc", "linear_attention", v, training=t) for v, t in ((0.1, "dino"), (0.9, "supervised"))
    ]
    assert status(8, dino, taught, *linear) == "supported", "the paper compares attention and scans"
    big = measured("binary_auc", "attention", 0.85, num_parameters=22_000_000)
    assert status(9, dino, big) == "supported in part"
    v2 = [
        measured("binary_auc", "attention", v, training="dinov2", num_parameters=n) for v, n in ((0.6, 22), (0.7, 86))
    ]
    assert status(9, dino, big, *v2) == "contradicted"  # the paper says that DINOv2 falls with size
    falls = [replace(m, value=1.3 - m.value, low=1.29 - m.value, high=1.31 - m.value) for m in v2]
    assert status(9, dino, big, *falls) == "supported"
    registers = [
        measured("binary_auc", "attention", v, training="dinov2", num_registers=r) for v, r in ((0.8, 4), (0.7, 0))
    ]
    assert status(11, *registers) == "supported"
    assert status(11, registers[0]) == "not measured"


def test_heads_are_judged_network_by_network_and_some_must_be_lazy() -> None:
    def gap(value: float, **other: object) -> Measurement:
        return measured("best_head_over_worst", "attention", value, layer=3, **other)

    def head(value: float, index: int) -> Measurement:
        return measured("binary_auc_raw", "attention", value, map="mixing_rows", layer=3, index=index)

    seeds = [gap(value, seed=seed) for seed, value in enumerate((0.1, 0.2, 0.6))]
    assert status(10, *seeds) == "supported in part", "however much networks differ in it"
    assert status(10, *seeds, head(0.5, 0), head(0.8, 1)) == "supported"
    assert status(10, gap(0.005), head(0.5, 0)) == "not resolved at this scale"
    scan = measured("best_head_over_worst", "mamba2", -0.5)
    assert status(10, *seeds, scan, head(0.5, 0)) == "supported", "the paper's heads are those of attention"
    twins = [replace(head(value, index), metric="untrained") for index, value in enumerate((0.6, 0.7))]
    scores = [replace(head(value, index), metric="binary_auc") for index, value in enumerate((0.5, 0.9))]
    claim = next(claim for claim in CLAIMS if claim.number == 10)
    text = claim.check(Evidence([*seeds, *twins, *scores])).measured
    assert text.endswith("best minus worst on the same images 0.400, in untrained twins 0.100")


def test_middle_registers_must_beat_both_ends() -> None:
    first, last = (measured(f"middle_registers_over_{end}", "mamba2", 0.1) for end in ("first", "last"))
    follows = measured("register_auc_follows_probe", "mamba2", 0.9)
    assert status(12, first, last, follows) == "supported"
    assert status(12, first, last) == "supported in part"
    assert status(12, first, last, replace(follows, value=-0.5, low=-0.6, high=-0.4)) == "contradicted"
    assert status(12, first, replace(last, value=0.0, low=-0.01, high=0.01), follows) == "not resolved at this scale"
    twin = replace(first, metric="untrained_middle_over_first", value=0.08)
    claim = next(claim for claim in CLAIMS if claim.number == 12)
    assert "untrained middle over first: +0.080" in claim.check(Evidence([first, last, twin])).measured


def test_layers() -> None:
    def layers(values: list[float]) -> list[Measurement]:
        return [measured("binary_auc_raw", "attention", v, layer=i) for i, v in enumerate(values)]

    assert status(13, *layers([0.4, 0.5, 0.6, 0.7])) == "supported"
    assert status(13, *layers([0.6, 0.62, 0.64, 0.7])) == "contradicted"
    assert status(13, *layers([0.4, 0.5])) == "not measured"


def test_probes_causality_and_the_gated_cnn() -> None:
    probes = {(1, "cls"): 0.6, (4, "cls"): 0.8, (4, "mean"): 0.7, (4, "max"): 0.65}
    records = [measured("probe_top1", "mamba2", v, blocks=b, strategy=s) for (b, s), v in probes.items()]
    assert status(18, *records) == "supported"
    assert status(18, *records[:3]) == "supported in part", "max pooling was not tried"
    assert status(18, *records, measured("probe_top1", "mamba2", 0.9, blocks=4, strategy="mean", seed=1)) != "supported"
    seen, causal = measured("knn_top1", "attention", 0.8), measured("knn_top1", "attention", 0.7, causal=True)
    assert status(21, seen, causal) == "supported"
    assert status(21, seen) == "not measured"
    own = [measured("top1", "attention", value, causal=hidden) for value, hidden in ((0.7, False), (0.8, True))]
    assert status(21, seen, causal, *own) == "contradicted", "the classifier's own accuracy is what the paper measured"
    conv, scan = (measured("top1", f, v, training="supervised") for f, v in (("gated_conv", 0.8), ("mamba2", 0.7)))
    assert status(22, conv, scan) == "supported"
    dense = [measured("miou", f, v) for f, v in (("gated_conv", 0.5), ("mamba2", 0.4))]
    assert status(23, *dense) == "contradicted"


def test_ablations_are_judged_over_seeds_and_causality_at_one_size() -> None:
    cells = {(1, "cls"): 0.6, (4, "cls"): 0.8}
    seeds = [
        measured("probe_top1", "mamba2", value + 0.01 * seed, blocks=b, strategy=s, seed=seed, label=f"vim-s{seed}")
        for (b, s), value in cells.items()
        for seed in range(3)
    ]
    claim = next(claim for claim in CLAIMS if claim.number == 18)
    verdict = claim.check(Evidence(seeds))
    assert verdict.status == "supported in part" and "Bonferroni" not in verdict.measured, "one comparison in all"
    twins = [
        measured("probe_top1", "mamba2", v, blocks=4, strategy=s, training="untrained")
        for s, v in (("cls", 0.1), ("mean", 0.9))
    ]
    assert claim.check(Evidence([*seeds, *twins])).status == "supported in part"
    pooled, with_token = (
        measured("top1", "attention", v, num_parameters=n) for v, n in ((0.8, 6_000_000), (0.1, 6_100_000))
    )
    assert status(21, pooled, with_token, measured("top1", "attention", 0.7, causal=True)) == "supported"


def test_cells_of_an_ablation_are_not_taken_for_a_models_accuracy() -> None:
    order = {"attention": 0.9, "mamba2": 0.8, "linear_attention": 0.7}
    best = [measured("probe_top1", family, value) for family, value in order.items()]
    cells = [measured("probe_top1", "attention", 0.1, blocks=1, strategy=s) for s in ("cls", "mean")]
    registers = [measured("probe_top1", "mamba2", 0.1, register=r) for r in range(3)]
    assert status(14, *best, *cells, *registers) == "supported"
    table = [measured("probe_top1", f, 1 - v, blocks=4, strategy="cls") for f, v in order.items()]
    assert status(14, *best, *table) == "contradicted", "the paper's own cell decides where there is one"
    heavier = measured("probe_top1", "mamba2", 0.99, num_registers=12, model="dinomambareg_tiny")
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
    assert {statuses[number] for number in (8, 11, 14, 15, 16, 17, 21, 22, 23)} == {"not measured"}
