"""The ledger's table, its theorems, protocols, and what real results give."""

import json
from typing import Any

import pytest
import torch

import mixlab
from mixlab.analysis.auc import run_study
from mixlab.analysis.claims import CLAIMS, Evidence, draw_up
from mixlab.analysis.layer_ranks import RankSettings
from mixlab.analysis.map_scores import MapScorer
from mixlab.analysis.rank import measure_ranks
from mixlab.analysis.viewed_images import ViewedImages
from mixlab.evaluation.target import Target
from mixlab.run import Measurement, measurements_of
from tests.test_docs import parse
from tests.unit.analysis.records import ORDERED, measured, seeds, status, verdict


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
    assert "each of its masks has rank 1, their sum" in entries[5].verdict.measured
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
