"""Claims that only measurement settles: from the runs at hand to a verdict, by rules fixed beforehand.

Each is judged by what its paper measured and on the models that it compared, where runs have that. Orders are judged by
differences whose intervals hold together (`differences.judge`): supported if every interval lies above zero,
contradicted if one lies below. Models of different families are compared where training and data are the same and
their sizes are within a factor of 2.5, as the papers' own pairs are.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from mixlab.analysis.differences import Difference, difference, judge, over_images, own_difference
from mixlab.analysis.evidence import (
    NOT_MEASURED,
    Evidence,
    Group,
    Measurement,
    Verdict,
    grouped,
    is_default_map,
    is_final_map,
    is_headline,
    matched_pairs,
    mutual_pairs,
    scale_of,
)
from mixlab.statistics import correlate

Check = Callable[[Evidence], Verdict]

RANKING = ("attention", "mamba2", "linear_attention")  # the first paper's order, best first
SELF_SUPERVISED = "dino"
LAZY = 0.05  # a head surely this near to an AUC of 0.5 does nothing of use


def orders_families(
    metrics: Sequence[str],
    *,
    families: Sequence[str] = RANKING,
    training: str | None = SELF_SUPERVISED,
    keep: Callable[[Measurement], bool] = lambda m: True,
) -> Check:
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


def first_measured(*checks: Check) -> Check:
    """By the paper's own measure, or else by the next best that runs have."""

    def check(evidence: Evidence) -> Verdict:
        verdicts = [one(evidence) for one in checks]
        return next((verdict for verdict in verdicts if verdict.status != "not measured"), verdicts[-1])

    return check


def _named(gap: Difference, group: Group, metrics: Sequence[str]) -> Difference:
    """With the metric, where there are several."""
    return gap._replace(what=f"{group[0].metric}, {gap.what}") if len(metrics) > 1 else gap


def _plain(m: Measurement) -> bool:
    """Without registers, as the models of the first paper's orders are."""
    return not m["num_registers"]


def _paper_probe(m: Measurement) -> bool:
    """Its Table 1 up to the heavier heads: the class token of four blocks."""
    return _plain(m) and (m["blocks"], m["strategy"]) == (4, "cls")


auc_order = orders_families(["binary_auc"], keep=lambda m: is_final_map(m) and _plain(m))
probe_order = first_measured(
    orders_families(["probe_top1"], keep=_paper_probe),
    orders_families(["probe_top1"], keep=lambda m: is_headline(m) and _plain(m)),
)
segmentation_order = orders_families(["miou"], keep=_plain)
detection_order = orders_families(["box_ap", "mask_ap"], keep=_plain)
robustness_order = first_measured(
    orders_families(["robust_top1"], keep=_plain), orders_families(["shifted_top1"], keep=_plain)
)
gated_cnn_classifies_better = first_measured(
    *(
        orders_families([metric], families=("gated_conv", "mamba2"), training="supervised", keep=is_headline)
        for metric in ("top1", "probe_top1")
    )
)
mamba_does_dense_better = orders_families(["miou", "box_ap"], families=("mamba2", "gated_conv"), training=None)


def rank_order(evidence: Evidence) -> Verdict:
    """Claim 6: measured ranks; and where theory lets no block of a scan exceed what linear attention's reach, no larger
    measurement could help.
    """

    def numerical(m: Measurement) -> bool:
        return m["definition"] == "numerical"

    verdict = orders_families(["off_diagonal_rank"], training=None, keep=numerical)(evidence)
    found = evidence.select("off_diagonal_rank", keep=numerical)
    scans, linear = (grouped(m for m in found if m.family == family) for family in RANKING[1:])
    capped = [
        f"no block of {a[0].model} can exceed {a[0]['bound']:.0f}, which those of {b[0].model} reach"
        for a, b in mutual_pairs(scans, linear)
        if a[0]["bound"] is not None and a[0]["bound"] <= min(m.value for m in b)
    ]
    if not capped or verdict.status == "not measured":
        return verdict
    return replace(verdict, status="contradicted", measured="; ".join([verdict.measured, *capped]), proven=True)


def dino_beats_supervised(evidence: Evidence) -> Verdict:
    """Claim 8: one architecture with softmax attention or a scan, two trainings."""
    found = evidence.select("binary_auc", keep=lambda m: is_final_map(m) and m.family in ("attention", "mamba2"))
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
    found = evidence.select("binary_auc", keep=lambda m: is_final_map(m) and m.training in (SELF_SUPERVISED, "dinov2"))

    def kind(m: Measurement) -> tuple[str, str, str, bool]:
        return (m.training, m.family, m.data, bool(m["num_registers"]))

    differences, trainings = [], set()
    for key in sorted({kind(m) for m in found}):
        groups = sorted(grouped(m for m in found if kind(m) == key), key=lambda group: group[0].num_parameters)
        if groups[-1][0].num_parameters > 1.2 * groups[0][0].num_parameters:
            ends = (groups[-1], groups[0]) if key[0] == SELF_SUPERVISED else (groups[0], groups[-1])
            differences.append(difference(*ends))
            trainings.add(key[0])
    wanted = {SELF_SUPERVISED: "DINO", "dinov2": "DINOv2"}
    return judge(differences, scale_of(found), [name for training, name in wanted.items() if training not in trainings])


def heads_are_unequal(evidence: Evidence) -> Verdict:
    """Claim 10: the best head above the worst on images that did not choose them, network by network; and heads that
    are surely near chance. An untrained twin's heads stand beside: they are unequal too.
    """

    def of_attention(m: Measurement) -> bool:
        return m.training != "untrained" and m.family in ("attention", "linear_attention")

    gaps = evidence.select("best_head_over_worst", keep=of_attention)
    heads = evidence.select("binary_auc_raw", keep=lambda m: of_attention(m) and m["map"] == "mixing_rows")
    lazy = sum(m.low is not None and m.high is not None and 0.5 - LAZY < m.low <= m.high < 0.5 + LAZY for m in heads)
    missing = () if lazy else ("a head that does nothing of use",)
    verdict = judge([over_images(group) for group in grouped(gaps, "layer")], scale_of(gaps), missing)
    found = f"{lazy} of {len(heads)} heads are surely within {LAZY} of chance"
    trained, untrained = (
        _mean_spread(evidence.select(metric, keep=lambda m: of_attention(m) and m["map"] == "mixing_rows"))
        for metric in ("binary_auc", "untrained")
    )
    if trained is not None and untrained is not None:
        found += f"; best less worst on the same images {trained:.3f}, in untrained twins {untrained:.3f}"
    return _with_text(verdict, f"{verdict.measured}; {found}")


def _mean_spread(heads: Group) -> float | None:
    """The highest less the lowest value of a layer's heads, on average over layers and networks."""
    layers = [[m.value for m in group] for group in grouped(heads, "label", "layer")]
    return sum(max(values) - min(values) for values in layers) / len(layers) if layers else None


def registers_help_dinov2(evidence: Evidence) -> Verdict:
    """Claim 11."""
    found = evidence.select("binary_auc", keep=lambda m: is_final_map(m) and m.training == "dinov2")
    having, lacking = (grouped(m for m in found if bool(m["num_registers"]) == wanted) for wanted in (True, False))
    return judge([difference(a, b) for a, b in matched_pairs(having, lacking)], scale_of(found))


def central_registers_score_highest(evidence: Evidence) -> Verdict:
    """Claim 12: the middle third above the first and above the last (raw scores), and scores that follow probes on
    single registers. What the place alone does stands beside: the same of untrained twins.
    """
    places, follows = ("middle_registers_over_first", "middle_registers_over_last"), "register_auc_follows_probe"
    found = evidence.select(*places, follows, keep=lambda m: m.training != "untrained")
    asked = {places[0]: "the first registers", places[1]: "the last registers", follows: "probes on single registers"}
    missing = [name for metric, name in asked.items() if metric not in {m.metric for m in found}]
    verdict = judge([own_difference(group) for group in grouped(found)], scale_of(found), missing)
    twins = grouped(evidence.select("untrained_middle_over_first", "untrained_middle_over_last"))
    text = "".join(f"; {gap.what}: {gap.mean:+.3f}" for gap in map(own_difference, twins))
    return _with_text(verdict, f"{verdict.measured}{text}")


def score_rises_with_depth(evidence: Evidence) -> Verdict:
    """Claim 13: the first layers surely below 0.5 (raw AUC), and the score surely rising with depth."""
    found = evidence.select("binary_auc_raw", keep=lambda m: is_default_map(m) and m.training != "untrained")
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
            low, high = gap.interval()
            changes.append(replace(first, metric=name, value=gap.mean, low=low, high=high))
        correlations.append(correlate([m["layer"] for m in ordered], [m.value for m in ordered]).spearman or 0.0)
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
    differences, tried = [], set()
    for group in grouped(found):
        for a, b in (((4, "cls"), (1, "cls")), ((4, "cls"), (4, "mean")), ((4, "cls"), (4, "max"))):
            first, second = ([m for m in group if (m["blocks"], m["strategy"]) == cell] for cell in (a, b))
            if first and second:
                gap = difference(first, second)
                name = gap.what.split(" over ")[0]
                what = f"{name}: {a[0]} blocks, {a[1]} over {b[0]} blocks, {b[1]}"
                differences.append(gap._replace(what=what))
                tried.add(b)
    asked = {(1, "cls"): "one block", (4, "mean"): "mean pooling", (4, "max"): "max pooling"}
    return judge(differences, scale_of(found), [name for cell, name in asked.items() if cell not in tried])


def _causal_costs(metric: str) -> Check:
    def check(evidence: Evidence) -> Verdict:
        found = evidence.select(metric, keep=lambda m: m.family == "attention" and is_headline(m))
        seen, causal = (grouped(m for m in found if bool(m["causal"]) == wanted) for wanted in (False, True))
        differences = []
        for hidden, visible in matched_pairs(causal, seen):  # nearest in size: with or without a class token, as it is
            lead = hidden[0]
            what = f"{metric} of {lead.model} ({lead.training}): fully visible over causal"
            differences.append(difference(visible, hidden)._replace(what=what))
        return judge(differences, scale_of(found))

    return check


causal_mixing_costs = first_measured(*map(_causal_costs, ("top1", "probe_top1", "knn_top1")))


def _averaged(group: Group) -> Measurement:
    """The mean of several on the same images: its interval as wide as theirs are on average."""
    value = sum(m.value for m in group) / len(group)
    known = [(m.high - m.low) / 2 for m in group if m.low is not None and m.high is not None]
    half = sum(known) / len(known) if len(known) == len(group) else math.inf
    about = {key: kept for key, kept in group[0].where.items() if key != "layer"}
    return replace(group[0], value=value, low=value - half, high=value + half, where=about)


def _with_text(verdict: Verdict, text: str) -> Verdict:
    return verdict if verdict.status == "not measured" else replace(verdict, measured=text)
