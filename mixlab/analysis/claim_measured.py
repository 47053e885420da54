"""Claims that only measurement settles: from the runs at hand to a verdict, by rules fixed beforehand.

Orders are judged by differences with 95 % intervals (`evidence.difference`): supported if every interval lies above
zero, contradicted if one lies below. Models of different families are compared where training and data are the same
and their sizes are within a factor of 2.5, as the papers' own pairs are.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from mixlab.analysis.evidence import (
    NOT_MEASURED,
    Difference,
    Evidence,
    Group,
    Measurement,
    Verdict,
    difference,
    grouped,
    judge,
    matched_pairs,
    mutual_pairs,
    own_difference,
    scale_of,
)
from mixlab.analysis.studies import correlate

RANKING = ("attention", "mamba2", "linear_attention")  # the first paper's order, best first
SELF_SUPERVISED = "dino"


def orders_families(
    metrics: Sequence[str],
    *,
    families: Sequence[str] = RANKING,
    training: str | None = SELF_SUPERVISED,
    keep: Callable[[Measurement], bool] = lambda m: True,
) -> Callable[[Evidence], Verdict]:
    """The claim that families rank in the given order by each of the metrics."""

    def check(evidence: Evidence) -> Verdict:
        found = evidence.select(*metrics, keep=lambda m: training in (None, m.training) and not m["causal"] and keep(m))
        differences = []
        for better, worse in pairwise(families):
            groups = [grouped([m for m in found if m.family == family]) for family in (better, worse)]
            pairs = [_named(difference(a, b), a, metrics) for a, b in mutual_pairs(*groups)]
            if not pairs:
                have = sorted({m.family for m in found})
                return Verdict(
                    "not measured",
                    f"{NOT_MEASURED}: it needs {better} and {worse}, runs have {', '.join(have) or 'none'}",
                )
            differences += pairs
        return judge(differences, scale_of(found))

    return check


def _named(gap: Difference, group: Group, metrics: Sequence[str]) -> Difference:
    """With the metric, where there are several."""
    return gap._replace(what=f"{group[0].metric}, {gap.what}") if len(metrics) > 1 else gap


def _headline(m: Measurement) -> bool:
    """A model's own accuracy, not a cell of an ablation or a probe on one register."""
    return m["blocks"] is None and m["register"] is None


def _default_map(m: Measurement) -> bool:
    """A score of the paper's map of a whole model, not of a head, a register or another kind of map."""
    return m["index"] is None and m["map"] in (None, "cosine", "pooled_cosine")


def _whole_model(m: Measurement) -> bool:
    """Such a score after the last layer."""
    return _default_map(m) and (m["layer"] is None or m["layer"] == m["num_layers"] - 1)


auc_order = orders_families(["binary_auc"], keep=_whole_model)
rank_order = orders_families(["off_diagonal_rank"], training=None, keep=lambda m: m["definition"] == "numerical")
probe_order = orders_families(["probe_top1"], keep=_headline)
segmentation_order = orders_families(["miou"])
detection_order = orders_families(["box_ap", "mask_ap"])
robustness_order = orders_families(["robust_top1", "shift_top1"])
gated_cnn_classifies_better = orders_families(
    ["top1", "probe_top1"], families=("gated_conv", "mamba2"), training="supervised", keep=_headline
)
mamba_does_dense_better = orders_families(["miou", "box_ap"], families=("mamba2", "gated_conv"), training=None)


def dino_beats_supervised(evidence: Evidence) -> Verdict:
    """Claim 8: one architecture, two trainings."""
    found = evidence.select("binary_auc", keep=_whole_model)
    return judge(
        [
            difference(a, b)
            for a in grouped(m for m in found if m.training == SELF_SUPERVISED)
            for b in grouped(m for m in found if m.training == "supervised")
            if (a[0].model, a[0].num_parameters, a[0].data) == (b[0].model, b[0].num_parameters, b[0].data)
        ],
        scale_of(found),
    )


def bigger_scores_higher(evidence: Evidence) -> Verdict:
    """Claim 9: in each family, the largest model against the smallest; for DINOv2 the other way round."""
    found = evidence.select("binary_auc", keep=lambda m: _whole_model(m) and m.training in (SELF_SUPERVISED, "dinov2"))

    def kind(m: Measurement) -> tuple[str, str, str, bool]:
        return (m.training, m.family, m.data, bool(m["num_registers"]))

    differences = []
    for key in sorted({kind(m) for m in found}):
        groups = sorted(grouped(m for m in found if kind(m) == key), key=lambda group: group[0].num_parameters)
        if groups[-1][0].num_parameters > 1.2 * groups[0][0].num_parameters:
            ends = (groups[-1], groups[0]) if key[0] == SELF_SUPERVISED else (groups[0], groups[-1])
            differences.append(difference(*ends))
    return judge(differences, scale_of(found))


def heads_are_unequal(evidence: Evidence) -> Verdict:
    """Claim 10: the best head above the worst on images that did not choose them; and how many heads are at chance."""
    gaps = evidence.select("best_head_over_worst", keep=lambda m: m.training != "untrained")
    heads = evidence.select("binary_auc_raw", keep=lambda m: m["map"] == "mixing_rows" and m.training != "untrained")
    lazy = sum(m.low is not None and m.high is not None and m.low <= 0.5 <= m.high for m in heads)
    verdict = judge([own_difference(group) for group in grouped(gaps, "layer")], scale_of(gaps))
    return _with_text(verdict, f"{verdict.measured}; {lazy} of {len(heads)} heads are not told apart from chance")


def registers_help_dinov2(evidence: Evidence) -> Verdict:
    """Claim 11."""
    found = evidence.select("binary_auc", keep=lambda m: _whole_model(m) and m.training == "dinov2")
    having, lacking = (grouped(m for m in found if bool(m["num_registers"]) == wanted) for wanted in (True, False))
    return judge([difference(a, b) for a, b in matched_pairs(having, lacking)], scale_of(found))


def central_registers_score_highest(evidence: Evidence) -> Verdict:
    """Claim 12: the middle third above the rest (raw scores), and scores that follow probes on single registers."""
    found = evidence.select(
        "middle_registers_over_outer", "register_auc_follows_probe", keep=lambda m: m.training != "untrained"
    )
    return judge([own_difference(group) for group in grouped(found)], scale_of(found))


def score_rises_with_depth(evidence: Evidence) -> Verdict:
    """Claim 13: the first layers surely below 0.5 (raw AUC), and the score surely rising with depth."""
    found = evidence.select("binary_auc_raw", keep=lambda m: _default_map(m) and m.training != "untrained")
    changes, correlations = Group(), list[float]()
    for run in grouped((m for m in found if m["layer"] is not None), "label"):
        ordered = sorted(run, key=lambda m: m["layer"])
        if len(ordered) < 4:
            continue
        quarter = len(ordered) // 4
        first, last = _averaged(ordered[:quarter]), _averaged(ordered[-quarter:])
        chance = replace(first, value=0.5, low=0.5, high=0.5)
        for name, a, b in (("0.5 over its first layers", chance, first), ("last over first layers", last, first)):
            gap = difference([a], [b])
            changes.append(replace(first, metric=name, value=gap.mean, low=gap.low, high=gap.high))
        correlations.append(correlate([m["layer"] for m in ordered], [m.value for m in ordered])["spearman"] or 0.0)
    verdict = judge([own_difference(group) for group in grouped(changes)], scale_of(found))
    if not correlations:
        return verdict
    mean = sum(correlations) / len(correlations)
    span = f"{min(correlations):+.2f} to {max(correlations):+.2f}"
    return _with_text(verdict, f"{verdict.measured}; rank correlation with depth {mean:+.2f} on average ({span})")


def probe_ablations(evidence: Evidence) -> Verdict:
    """Claim 18: more blocks probe better (1 to 4), and the class token alone beats mean and max pooling."""
    found = evidence.select(
        "probe_top1",
        keep=lambda m: m.training == SELF_SUPERVISED and m["blocks"] is not None and m["strategy"] is not None,
    )
    differences = []
    for group in grouped(found):
        for a, b in (((4, "cls"), (1, "cls")), ((4, "cls"), (4, "mean")), ((4, "cls"), (4, "max"))):
            first, second = ([m for m in group if (m["blocks"], m["strategy"]) == cell] for cell in (a, b))
            if first and second:
                what = f"{group[0].model}: {a[0]} blocks, {a[1]} over {b[0]} blocks, {b[1]}"
                differences.append(difference(first, second)._replace(what=what))
    return judge(differences, scale_of(found))


def causal_mixing_costs(evidence: Evidence) -> Verdict:
    """Claim 21: attention fully visible against causal, at one size."""
    accuracies = ("top1", "probe_top1", "knn_top1")
    found = evidence.select(*accuracies, keep=lambda m: m.family == "attention" and _headline(m))
    seen, causal = (grouped(m for m in found if bool(m["causal"]) == wanted) for wanted in (False, True))
    differences = []
    for hidden, visible in matched_pairs(causal, seen):  # nearest in size: with or without a class token, as it is
        lead = hidden[0]
        what = f"{lead.metric} of {lead.model} ({lead.training}): fully visible over causal"
        differences.append(difference(visible, hidden)._replace(what=what))
    return judge(differences, scale_of(found))


def _averaged(group: Group) -> Measurement:
    """The mean of several on the same images: its interval as wide as theirs are on average."""
    value = sum(m.value for m in group) / len(group)
    known = [(m.high - m.low) / 2 for m in group if m.low is not None and m.high is not None]
    half = sum(known) / len(known) if len(known) == len(group) else math.inf
    about = {key: kept for key, kept in group[0].where.items() if key != "layer"}
    return replace(group[0], value=value, low=value - half, high=value + half, where=about)


def _with_text(verdict: Verdict, text: str) -> Verdict:
    if verdict.status == "not measured":
        return verdict
    return Verdict(verdict.status, text, verdict.value, verdict.low, verdict.high, verdict.n, verdict.scale)
