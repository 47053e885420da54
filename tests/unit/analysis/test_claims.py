"""The ledger: verdicts follow from measurements by fixed rules, and theorems are computed."""

import json

import numpy as np
import pytest
import torch
from scipy import stats

import mixlab
from mixlab.analysis.claims import CLAIMS, draw_up
from mixlab.analysis.evidence import (
    Difference,
    Evidence,
    Measurement,
    difference,
    grouped,
    judge,
    matched_pairs,
    mutual_pairs,
    own_difference,
    scale_of,
)
from mixlab.analysis.rank import RankSettings, measure_ranks
from mixlab.analysis.rank_summary import rank_measurements, summarise_ranks
from mixlab.analysis.scores import Scorer
from mixlab.analysis.studies import run_study
from mixlab.analysis.subjects import MaskedImages, Subject
from mixlab.data.mask_formats import parse_masks

RANKED = ("attention", "mamba2", "linear_attention")
MODELS = {
    "attention": "vit_tiny",
    "mamba2": "dinovim_tiny",
    "linear_attention": "linearvit_tiny",
    "gated_conv": "gatedconv_tiny",
}


def measured(metric: str, family: str, value: float, **other: object) -> Measurement:
    record = {
        "metric": metric,
        "value": value,
        "low": value - 0.01,
        "high": value + 0.01,
        "n": 100,
        "model": MODELS[family],
        "family": family,
        "training": "dino",
        "num_parameters": 6_000_000,
        "data": "photos",
        "study": "model",
    }
    return Measurement.from_record(record | other, "test")


def status(number: int, *measurements: Measurement) -> str:
    claim = next(claim for claim in CLAIMS if claim.number == number)
    return claim.check(Evidence(measurements)).status


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
    json.dumps([entry.as_json() for entry in entries.values()], allow_nan=False)


def test_theorems_give_way_to_evidence_against_them() -> None:
    assert status(4, measured("rank_bound_holds", "mamba2", 0.0)) == "contradicted"
    short = {"definition": "numerical", "minimum": 200.0, "chunk": 256}
    assert status(4, measured("off_diagonal_rank", "attention", 230.0, **short)) == "contradicted"
    assert status(4, measured("off_diagonal_rank", "attention", 254.0, **short)) == "supported"  # up to rounding
    assert status(5, measured("mask_rank", "mamba2", 3.0)) == "supported"
    assert status(5, measured("mask_rank", "mamba2", 1.0)) == "contradicted"


# ---------------------------------------------------------------- differences


def test_differences_over_seeds_are_welchs() -> None:
    a, b = [0.80, 0.83, 0.79], [0.70, 0.74, 0.75]
    groups = [[measured("knn_top1", "attention", v, seed=i) for i, v in enumerate(values)] for values in (a, b)]
    found = difference(*groups)
    errors = [np.var(values, ddof=1) / 3 for values in (a, b)]
    freedom = sum(errors) ** 2 / sum(e**2 / 2 for e in errors)
    half = stats.t.ppf(0.975, int(freedom)) * np.sqrt(sum(errors))
    assert found.mean == pytest.approx(np.mean(a) - np.mean(b))
    assert found.high - found.mean == pytest.approx(half, rel=1e-3)


def test_differences_of_single_runs_use_their_intervals_over_images() -> None:
    found = difference([measured("miou", "attention", 0.5)], [measured("miou", "mamba2", 0.45)])
    assert (found.mean, found.high - found.mean) == (pytest.approx(0.05), pytest.approx(np.hypot(0.01, 0.01)))
    unknown = measured("miou", "mamba2", 0.45, low=None, high=None)
    assert (
        judge([difference([measured("miou", "attention", 0.9)], [unknown])], "").status == "not resolved at this scale"
    )


def test_the_spread_of_seeds_stands_for_a_single_run_too() -> None:
    values = [0.5, 0.6, 0.7]
    seeds = [measured("binary_auc", "attention", value, seed=seed) for seed, value in enumerate(values)]
    alone = [measured("binary_auc", "attention", 0.9)]
    half = 4.303 * np.std(values, ddof=1) * np.sqrt(1 + 1 / 3)  # far wider than 0.01, the interval over images
    for gap, sign in ((difference(alone, seeds), 1), (difference(seeds, alone), -1)):
        assert (gap.mean, gap.high - gap.mean) == pytest.approx((sign * 0.3, half), abs=1e-6)


def test_differences_of_their_own_are_students_over_seeds() -> None:
    gaps = [0.1, 0.2, 0.6]
    seeds = [measured("best_head_over_worst", "attention", gap, layer=3, seed=seed) for seed, gap in enumerate(gaps)]
    found = own_difference(seeds)
    half = 4.303 * np.std(gaps, ddof=1) / np.sqrt(3)  # t, 97.5 %, two degrees of freedom
    assert (found.mean, found.low, found.high) == pytest.approx((0.3, 0.3 - half, 0.3 + half), abs=1e-6)
    assert found.what == "vit_tiny (dino) x3, layer 3: best head over worst" and found.n == 300
    alone = own_difference(seeds[:1])
    assert (alone.low, alone.high) == (seeds[0].low, seeds[0].high)
    wide = [measured("register_auc_follows_probe", "mamba2", value, seed=seed) for seed, value in enumerate((0.4, 0.9))]
    assert own_difference(wide)[2:4] == (-1.0, 1.0), "no correlation lies beyond"
    assert status(10, *seeds) == "not resolved at this scale" and status(10, seeds[2]) == "supported"


def test_no_rival_of_a_family_is_left_out() -> None:
    vit = grouped([measured("probe_top1", "attention", 0.8)])
    mambas = grouped([measured("probe_top1", "mamba2", 0.7, model=name) for name in ("dinovim_tiny", "mambareg_tiny")])
    assert [(a[0].model, b[0].model) for a, b in mutual_pairs(vit, mambas)] == [
        ("vit_tiny", "dinovim_tiny"), ("vit_tiny", "mambareg_tiny")
    ]  # fmt: skip
    assert len(mutual_pairs(mambas, vit)) == 2


def test_judgement_needs_every_difference_to_be_sure() -> None:
    up, open_, down = (Difference("x", mean, mean - 0.1, mean + 0.1, 9) for mean in (0.2, 0.05, -0.2))
    assert judge([], "").status == "not measured"
    assert judge([up, up], "").status == "supported"
    assert judge([up, open_], "").status == "not resolved at this scale"
    assert judge([up, down], "").status == "contradicted"
    assert judge([Difference("x", 0.0, 0.0, 0.0, 9)], "").status == "contradicted"


def test_only_models_of_one_training_data_and_size_are_paired() -> None:
    vit = grouped([measured("binary_auc", "attention", 0.8)])
    rivals = [
        measured("binary_auc", "mamba2", 0.7, num_parameters=90_000_000),
        measured("binary_auc", "mamba2", 0.7, training="supervised"),
        measured("binary_auc", "mamba2", 0.7, data="drawings"),
        measured("binary_auc", "mamba2", 0.7, num_parameters=11_000_000),
    ]
    (pair,) = matched_pairs(vit, grouped(rivals))
    assert pair[1][0].num_parameters == 11_000_000


def test_detectors_of_two_kinds_are_neither_pooled_nor_paired() -> None:
    ours = [measured("box_ap", "mamba2", value, head=head) for head, value in (("mask", 0.3), ("cascade", 0.4))]
    assert sorted(len(group) for group in grouped(ours)) == [1, 1]
    theirs = grouped([measured("box_ap", "gated_conv", 0.2, head="mask")])
    assert [(a[0].value, b[0].value) for a, b in matched_pairs(grouped(ours), theirs)] == [(0.3, 0.2)]


def test_the_same_figure_out_of_two_studies_counts_once() -> None:
    twice = [measured("binary_auc", "attention", 0.8, study=study, label="a") for study in ("model", "size")]
    assert len(Evidence(twice).measurements) == 1
    seeds = [measured("binary_auc", "attention", 0.8, seed=seed, label="a") for seed in (0, 1)]
    assert len(Evidence(seeds).measurements) == 2


def test_a_wrong_record_is_named_with_its_file() -> None:
    with pytest.raises(ValueError, match=r"run/results/x.json: a measurement lacks value, n; it has metric"):
        Evidence.from_results([("run/results/x.json", {"measurements": [{"metric": "miou"}]})])
    with pytest.raises(ValueError, match="must be numbers"):
        Measurement.from_record({"metric": "miou", "value": "high", "n": 3}, "x")


def test_the_scale_names_sizes_data_and_seeds() -> None:
    found = [measured("miou", "attention", 0.5, seed=s, num_parameters=n) for s, n in ((0, 5_500_000), (1, 10_700_000))]
    assert scale_of(found) == "5.5 to 10.7 M parameters, photos, n = 100, 2 seeds"


# ---------------------------------------------------------------- each measured claim, both ways


def test_orders_of_families_are_judged_pair_by_pair() -> None:
    order = {"attention": 0.9, "mamba2": 0.8, "linear_attention": 0.7}
    metrics = [
        (7, "binary_auc"), (14, "probe_top1"), (15, "miou"), (16, "box_ap"), (17, "robust_top1"), (17, "shift_top1")
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
    sizes = [
        measured("off_diagonal_rank", f, 9.0, definition="numerical", chunk=c)
        for f, c in zip(RANKED, (256, 64, 64), strict=True)
    ]
    assert status(6, *sizes) == "not measured"  # blocks of different sizes say nothing about each other


def test_training_size_and_registers() -> None:
    dino, taught = (measured("binary_auc", "attention", v, training=t) for v, t in ((0.8, "dino"), (0.7, "supervised")))
    assert status(8, dino, taught) == "supported"
    assert status(8, dino, measured("binary_auc", "attention", 0.95, training="supervised")) == "contradicted"
    big = measured("binary_auc", "attention", 0.85, num_parameters=22_000_000)
    assert status(9, dino, big) == "supported"
    v2 = [
        measured("binary_auc", "attention", v, training="dinov2", num_parameters=n) for v, n in ((0.6, 22), (0.7, 86))
    ]
    assert status(9, dino, big, *v2) == "contradicted"  # the paper says that DINOv2 falls with size
    registers = [
        measured("binary_auc", "attention", v, training="dinov2", num_registers=r) for v, r in ((0.8, 4), (0.7, 0))
    ]
    assert status(11, *registers) == "supported"
    assert status(11, registers[0]) == "not measured"


def test_heads_registers_and_layers() -> None:
    assert status(10, measured("best_head_over_worst", "attention", 0.2, layer=3)) == "supported"
    assert status(10, measured("best_head_over_worst", "attention", 0.005)) == "not resolved at this scale"
    assert status(12, measured("middle_registers_over_outer", "mamba2", 0.1)) == "supported"
    falls = measured("register_auc_follows_probe", "mamba2", -0.5)
    assert status(12, measured("middle_registers_over_outer", "mamba2", 0.1), falls) == "contradicted"

    def layers(values: list[float]) -> list[Measurement]:
        return [measured("binary_auc_raw", "attention", v, study="layer", layer=i) for i, v in enumerate(values)]

    assert status(13, *layers([0.4, 0.5, 0.6, 0.7])) == "supported"
    assert status(13, *layers([0.6, 0.62, 0.64, 0.7])) == "contradicted"
    assert status(13, *layers([0.4, 0.5])) == "not measured"


def test_probes_causality_and_the_gated_cnn() -> None:
    probes = {(1, "cls"): 0.6, (4, "cls"): 0.8, (4, "mean"): 0.7, (4, "max"): 0.65}
    records = [measured("probe_top1", "mamba2", v, blocks=b, strategy=s) for (b, s), v in probes.items()]
    assert status(18, *records) == "supported"
    assert status(18, *records, measured("probe_top1", "mamba2", 0.9, blocks=4, strategy="mean", seed=1)) != "supported"
    seen, causal = measured("knn_top1", "attention", 0.8), measured("knn_top1", "attention", 0.7, causal=True)
    assert status(21, seen, causal) == "supported"
    assert status(21, seen) == "not measured"
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
    assert verdict.status == "supported" and verdict.measured.count(";") == 0, "one comparison, not one per seed"
    twins = [
        measured("probe_top1", "mamba2", v, blocks=4, strategy=s, training="untrained")
        for s, v in (("cls", 0.1), ("mean", 0.9))
    ]
    assert claim.check(Evidence([*seeds, *twins])).status == "supported"
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
    for name in ("vit_tiny", "dinovim_tiny", "linearvit_tiny"):
        model = mixlab.create_model(name, dim=64, depth=4, image=64, patch=8, head_dim=16).eval()
        subjects.append(Subject(label=name, backbone=model, training="dino"))
        found = list(measure_ranks(model, torch.randn(2, 3, 64, 64), layers=1, settings=RankSettings(chunk=32)))
        result, _ = summarise_ranks(found, model.layout)
        records = rank_measurements(result, subjects[-1].describe(), "noise")
        results.append((name, {"measurements": json.loads(json.dumps(records, allow_nan=False))}))
    scorer = Scorer(MaskedImages(parse_masks("shapes:n=8"), size=64), twins=False)
    studies = ("layer", "model", "head")
    results += [(study, run_study(study, subjects, scorer).as_json("shapes")) for study in studies]
    statuses = {entry.claim.number: entry.verdict.status for entry in draw_up(Evidence.from_results(results))}
    assert statuses[5] == "contradicted"
    assert {statuses[number] for number in (6, 7, 10, 13)} <= {
        "supported",
        "contradicted",
        "not resolved at this scale",
    }
    assert {statuses[number] for number in (8, 11, 14, 15, 16, 17, 21, 22, 23)} == {"not measured"}


def test_runs_that_learnt_nothing_give_no_verdict_on_learning() -> None:
    scores = [measured("binary_auc", family, 0.8 - 0.1 * place, map="cosine") for place, family in enumerate(RANKED)]
    sure = {"low": 0.29, "high": 0.31}
    twins = [measured("knn_top1", family, 0.3, training="untrained", **sure) for family in RANKED]
    same = [measured("knn_top1", family, 0.3, **sure) for family in RANKED]
    better = [measured("knn_top1", family, 0.6, low=0.59, high=0.61) for family in RANKED]
    (claim,) = [claim for claim in CLAIMS if claim.number == 7]
    alone, unlearnt, learnt = (
        next(draw_up(Evidence([*scores, *other]), [claim])).verdict
        for other in ([], [*twins, *same], [*twins, *better])
    )
    assert alone.status == learnt.status != "not resolved at this scale"
    assert unlearnt.status == "not resolved at this scale"
    assert "untrained twins" in unlearnt.measured
