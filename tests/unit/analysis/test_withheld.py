"""What rests on networks that learnt nothing is no verdict, and the ledger names those networks."""

from dataclasses import replace
from typing import Any

from mixlab.analysis.claims import CLAIMS, Evidence, Verdict, draw_up
from mixlab.run import Measurement
from tests.unit.analysis.records import RANKED, measured, seeds

SCORES = [
    m for place, family in enumerate(RANKED) for m in seeds("binary_auc", family, 0.8 - 0.1 * place, map="cosine")
]


def verdict(number: int, *measurements: Measurement) -> Verdict:
    claims = [claim for claim in CLAIMS if claim.number == number]
    return next(draw_up(Evidence(measurements), claims)).verdict


def knn(value: float, families: tuple[str, ...] = RANKED, **other: Any) -> list[Measurement]:
    return [measured("knn_top1", family, value, **other) for family in families]


def test_runs_that_learnt_nothing_give_no_verdict_on_learning() -> None:
    twins = knn(0.3, training="untrained")
    assert verdict(7, *SCORES).status == verdict(7, *SCORES, *twins, *knn(0.6)).status == "supported"
    unlearnt = verdict(7, *SCORES, *twins, *knn(0.3))
    assert unlearnt.status == "not resolved at this scale"
    assert "but features of dinovim_tiny (6 M, dino), linearvit_tiny" in unlearnt.measured
    assert unlearnt.measured.endswith("not significantly better than those of their untrained twins")


def test_a_withheld_verdict_names_the_networks_that_learnt_nothing_and_no_others() -> None:
    """linearvit_tiny contains vit_tiny, but they are two models."""
    twins = knn(0.3, training="untrained")
    learnt, unlearnt = knn(0.6, ("mamba2", "linear_attention")), knn(0.3, ("attention",))
    other = knn(0.3, ("gated_conv",)) + knn(0.3, ("gated_conv",), training="untrained")
    for first, rest in ((unlearnt, learnt), (knn(0.3, ("linear_attention",)), knn(0.6, ("attention", "mamba2")))):
        text = verdict(7, *SCORES, *twins, *first, *rest, *other).measured
        assert text.split("features of ")[1].split(" (")[0] == first[0]["model"]
        assert text.split("features of ")[1].count("dino)") == 1


def test_what_was_fine_tuned_is_judged_by_the_network_it_started_from() -> None:
    def miou(family: str, value: float) -> list[Measurement]:
        return seeds("miou", family, value, label=f"{family}-segment-s0")

    order = [m for place, family in enumerate(RANKED) for m in miou(family, 0.8 - 0.1 * place)]
    named = [
        measured("knn_top1", f, 0.3, label=f"{f}-s0", seed=0, training=training)
        for f in RANKED
        for training in ("dino", "untrained")
    ]
    assert verdict(15, *order).status == "supported"
    assert verdict(15, *order, *named).status == "not resolved at this scale"


def test_what_theory_forbids_is_contradicted_whatever_runs_learnt() -> None:
    values = {"attention": 256.0, "mamba2": 60.0, "linear_attention": 64.5}
    ranks = [
        m for family, value in values.items() for m in seeds("off_diagonal_rank", family, value, definition="numerical")
    ]
    unlearnt = knn(0.3) + knn(0.3, training="untrained")
    for bound, status in ((64.0, "contradicted"), (256.0, "not resolved at this scale")):
        bounds = [replace(m, metric="off_diagonal_rank_bound", value=bound, low=None, high=None) for m in ranks]
        assert verdict(6, *ranks, *bounds, *unlearnt).status == status


def test_maps_no_better_than_untrained_ones_give_no_verdict_on_maps() -> None:
    gains = [measured("above_untrained", family, 0.1, map="cosine") for family in RANKED]
    none = [replace(gain, value=0.0, low=-0.01, high=0.01) for gain in gains]
    assert verdict(7, *SCORES, *gains).status == "supported"
    unlearnt = verdict(7, *SCORES, *none)
    assert unlearnt.status == "not resolved at this scale" and "but maps of dinovim_tiny" in unlearnt.measured


def test_where_registers_stand_is_judged_by_maps_that_learnt_something() -> None:
    asked = ("middle_registers_over_first", "middle_registers_over_last", "register_auc_follows_probe")
    gaps = [m for metric in asked for m in seeds(metric, "mamba2", 0.2)]
    gain = measured("above_untrained", "mamba2", 0.1, map="cosine")
    none = replace(gain, value=0.0, low=-0.01, high=0.01)
    assert verdict(12, *gaps, gain).status == "supported"
    assert verdict(12, *gaps, none).status == "not resolved at this scale"
