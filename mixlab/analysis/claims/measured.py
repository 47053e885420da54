"""Claims that only measurements can decide: from the given runs to a verdict, by rules fixed beforehand.

Each is decided by the metric and the models of its paper, where runs have these. Networks of
different families are compared where training and data are the same and their sizes are within a factor of 2.5, as the
papers' own pairs are; always by one protocol, the most preferred that both were measured with (`comparisons.py`).
Differences are judged together (`evidence.verdict_of`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from mixlab.analysis.claims.evidence import (
    NOT_MEASURED,
    Comparison,
    Evidence,
    Status,
    Verdict,
    compare,
    compare_to_zero,
    title,
    verdict_of,
)
from mixlab.analysis.comparisons import (
    Group,
    Network,
    Pair,
    averaged,
    is_default_map,
    is_final_map,
    is_headline,
    over_seeds,
    pairs,
    preferred,
    preferred_runs,
    size_ratio,
)
from mixlab.run import UNTRAINED, Measurement
from mixlab.statistics import Difference, Estimate, correlate, difference, mean_over_images, mean_over_seeds

Check = Callable[[Evidence], Verdict]

RANKING = ("attention", "mamba2", "linear_attention")  # the first paper's order, best first
SELF_SUPERVISED = "dino"
CHANCE = 0.5
LAZY = 0.05  # a head whose AUC is within this of 0.5 counts as idle
_SIZE_RATIO = 2.5
_MASK_RCNN = {"head": ("mask", "cascade")}  # MambaOut's detector


def orders_families(
    metrics: Sequence[str],
    *,
    families: Sequence[str] = RANKING,
    training: str | None = SELF_SUPERVISED,
    keep: Callable[[Measurement], bool] = lambda m: True,
    papers: Mapping[str, Sequence[Any]] | None = None,
) -> Check:
    """The claim that families rank in the given order by each of the metrics."""

    def check(evidence: Evidence) -> Verdict:
        found = evidence.select(
            *metrics, keep=lambda m: training in (None, m["training"]) and not m["causal"] and keep(m)
        )
        comparisons = []
        for better, worse in pairwise(families):
            first, second = (over_seeds(m for m in found if m["family"] == family) for family in (better, worse))
            ordered = [_named(compare(a, b), a, metrics) for a, b in mutual_pairs(first, second, papers)]
            if not ordered:
                have = ", ".join(sorted({m["family"] for m in found})) or "none"
                text = f"{NOT_MEASURED}: it needs {better} and {worse} by one protocol, runs have {have}"
                return Verdict(Status.NOT_MEASURED, text)
            comparisons += ordered
        return verdict_of(comparisons)

    return check


def first_measured(*checks: Check) -> Check:
    """By the paper's own metric, or else by the next one that the runs have."""

    def check(evidence: Evidence) -> Verdict:
        verdicts = [one(evidence) for one in checks]
        return next((verdict for verdict in verdicts if verdict.status != Status.NOT_MEASURED), verdicts[-1])

    return check


def mutual_pairs(
    first: Sequence[Group], second: Sequence[Group], papers: Mapping[str, Sequence[Any]] | None = None
) -> list[Pair]:
    """Networks of two kinds, nearest in size, from either side: none is left out, and no pair stands twice."""
    found = pairs(first, second, allowed=_matched, papers=papers)
    others = pairs(second, first, allowed=_matched, papers=papers)
    return found + [(a, b) for b, a in others if not any(a is x and b is y for x, y in found)]


def _matched(a: Network, b: Network) -> bool:
    return a.training == b.training and size_ratio(a, b) <= _SIZE_RATIO


def _named(gap: Comparison, group: Group, metrics: Sequence[str]) -> Comparison:
    """With the metric, where there are several."""
    return gap._replace(what=f"{group[0].metric}, {gap.what}") if len(metrics) > 1 else gap


def _plain(m: Measurement) -> bool:
    """Without registers, as the models of the first paper's orders are."""
    return not m["num_registers"]


def _paper_probe(m: Measurement) -> bool:
    """Its Table 1 up to the heavier heads: the class token of four blocks, with all labels."""
    return _plain(m) and (m["blocks"], m["strategy"], m["label_share"]) == (4, "cls", 1.0)


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
mamba_does_dense_better = orders_families(
    ["miou", "box_ap"], families=("mamba2", "gated_conv"), training=None, papers=_MASK_RCNN
)


def rank_order(evidence: Evidence) -> Verdict:
    """Claim 6: measured ranks; and where theory lets no block of a scan exceed what linear attention's reach, no larger
    measurement could help.
    """

    def numerical(m: Measurement) -> bool:
        return m["definition"] == "numerical"

    verdict = orders_families(["off_diagonal_rank"], training=None, keep=numerical)(evidence)
    found = evidence.select("off_diagonal_rank", keep=numerical)
    scans, linear = (over_seeds(m for m in found if m["family"] == family) for family in RANKING[1:])
    bounds = {_same_blocks(m): m.value for m in evidence.select("off_diagonal_rank_bound", keep=numerical)}
    capped = [
        f"no block of {a[0]['model']} can exceed {bound:.0f}, which those of {b[0]['model']} reach"
        for a, b in mutual_pairs(scans, linear)
        if (bound := bounds.get(_same_blocks(a[0]))) is not None and bound <= min(m.value for m in b)
    ]
    if not capped or verdict.status == Status.NOT_MEASURED:
        return verdict
    text = "; ".join([verdict.measured, *capped])
    return replace(verdict, status=Status.CONTRADICTED, measured=text, proven=True)


def _same_blocks(m: Measurement) -> tuple[Network, str]:
    return Network.of(m), str(sorted(m.protocol.choices.items()))


def dino_beats_supervised(evidence: Evidence) -> Verdict:
    """Claim 8: one architecture with softmax attention or a scan, two trainings."""
    found = evidence.select("binary_auc", keep=lambda m: is_final_map(m) and m["family"] in ("attention", "mamba2"))
    dino, supervised = (
        over_seeds(m for m in found if m["training"] == training) for training in (SELF_SUPERVISED, "supervised")
    )
    same = pairs(dino, supervised, allowed=lambda a, b: a.architecture == b.architecture)
    return verdict_of([compare(a, b) for a, b in same])


def bigger_scores_higher(evidence: Evidence) -> Verdict:
    """Claim 9: in each family, the largest model against the smallest; for DINOv2 the other way round."""
    wanted = {SELF_SUPERVISED: "DINO", "dinov2": "DINOv2"}
    found = evidence.select("binary_auc", keep=lambda m: is_final_map(m) and m["training"] in wanted)
    kinds: dict[tuple[str, str, bool], list[Group]] = {}
    for group in over_seeds(found):
        lead = group[0]
        kinds.setdefault((lead["training"], lead["family"], bool(lead["num_registers"])), []).append(group)
    comparisons, missing = [], dict(wanted)
    for (training, _, _), groups in sorted(kinds.items()):
        sizes = [group[0]["num_parameters"] for group in groups]
        largest, smallest = ([g for g in groups if g[0]["num_parameters"] == end(sizes)] for end in (max, min))
        if max(sizes) > 1.2 * min(sizes):
            ends = (largest, smallest) if training == SELF_SUPERVISED else (smallest, largest)
            comparisons += [compare(a, b) for a, b in pairs(*ends)]
            missing.pop(training, None)
    return verdict_of(comparisons, missing.values())


def heads_are_unequal(evidence: Evidence) -> Verdict:
    """Claim 10: the best head above the worst on images that did not choose them, network by network; and heads whose
    intervals lie near chance. The heads of untrained twins are reported too: they are unequal as well.
    """

    def of_attention(m: Measurement) -> bool:
        return m["training"] != UNTRAINED and m["family"] in ("attention", "linear_attention")

    gaps = preferred(over_seeds(evidence.select("best_head_over_worst", keep=of_attention)), "layer")
    rows = evidence.select(
        "binary_auc_raw", "binary_auc", UNTRAINED, keep=lambda m: of_attention(m) and m["map"] == "mixing_rows"
    )
    heads = [m for m in rows if m.metric == "binary_auc_raw"]
    intervals = [(m.low, m.high) for m in heads if m.low is not None and m.high is not None]
    lazy = sum(CHANCE - LAZY < low <= high < CHANCE + LAZY for low, high in intervals)
    missing = () if lazy else ("a head that does nothing of use",)
    verdict = verdict_of([compare_to_zero(group, mean_over_images) for group in gaps], missing)
    found = f"the intervals of {lazy} of {len(heads)} heads lie within {LAZY} of chance"
    trained, untrained = (_mean_spread(m for m in rows if m.metric == metric) for metric in ("binary_auc", UNTRAINED))
    if trained is not None and untrained is not None:
        found += f"; best minus worst on the same images {trained:.3f}, in untrained twins {untrained:.3f}"
    return verdict.with_text(f"{verdict.measured}; {found}")


def _mean_spread(heads: Iterable[Measurement]) -> float | None:
    """The highest minus the lowest value of a layer's heads, on average over layers and networks."""
    spreads = []
    for run in (run for seeds in preferred_runs(heads, "layer", "index") for run in seeds):
        for layer in {m["layer"] for m in run}:
            values = [m.value for m in run if m["layer"] == layer]
            spreads.append(max(values) - min(values))
    return sum(spreads) / len(spreads) if spreads else None


def registers_help_dinov2(evidence: Evidence) -> Verdict:
    """Claim 11."""
    found = evidence.select("binary_auc", keep=lambda m: is_final_map(m) and m["training"] == "dinov2")
    having, lacking = (over_seeds(m for m in found if bool(m["num_registers"]) == wanted) for wanted in (True, False))
    return verdict_of([compare(a, b) for a, b in pairs(having, lacking, allowed=_matched)])


def central_registers_score_highest(evidence: Evidence) -> Verdict:
    """Claim 12: the middle third above the first and above the last (raw scores), and scores that follow probes on
    single registers. The same numbers of untrained twins show what the position alone does.
    """
    asked = {
        "middle_registers_over_first": "the first registers",
        "middle_registers_over_last": "the last registers",
        "register_auc_follows_probe": "probes on single registers",
    }
    found = preferred(over_seeds(evidence.select(*asked, keep=lambda m: m["training"] != UNTRAINED)))
    measured = {group[0].metric for group in found}
    verdict = verdict_of(
        list(map(compare_to_zero, found)), [name for metric, name in asked.items() if metric not in measured]
    )
    twins = preferred(over_seeds(evidence.select("untrained_middle_over_first", "untrained_middle_over_last")))
    text = "".join(f"; {gap.what}: {gap.difference.value:+.3f}" for gap in map(compare_to_zero, twins))
    return verdict.with_text(f"{verdict.measured}{text}")


def score_rises_with_depth(evidence: Evidence) -> Verdict:
    """Claim 13: the first layers significantly below 0.5 (raw AUC), and the score significantly rising with depth."""
    found = evidence.select(
        "binary_auc_raw", keep=lambda m: is_default_map(m) and m["training"] != UNTRAINED and m["layer"] is not None
    )
    networks = [
        [sorted(run, key=lambda m: m["layer"]) for run in seeds if len(run) >= 4]
        for seeds in preferred_runs(found, "layer")
    ]
    comparisons = [
        Comparison(f"{title([run[0] for run in seeds])}: {what}", mean_over_seeds(list(map(change, seeds))), used)
        for what, change in (("0.5 minus its first layers", _below_chance), ("last minus first layers", _rise))
        for seeds in networks
        if (used := tuple(m for run in seeds for m in run))
    ]
    verdict = verdict_of(comparisons)
    correlations = [
        correlate([m["layer"] for m in run], [m.value for m in run]).spearman or 0.0
        for seeds in networks
        for run in seeds
    ]
    if not correlations:
        return verdict
    mean = sum(correlations) / len(correlations)
    span = f"{min(correlations):+.2f} to {max(correlations):+.2f}"
    return verdict.with_text(f"{verdict.measured}; rank correlation with depth {mean:+.2f} on average ({span})")


def _below_chance(layers: Group) -> Difference:
    first = averaged(layers[: len(layers) // 4])
    return difference([Estimate(CHANCE, CHANCE, CHANCE, first.n)], [first])


def _rise(layers: Group) -> Difference:
    quarter = len(layers) // 4
    return difference([averaged(layers[-quarter:])], [averaged(layers[:quarter])])


def probe_ablations(evidence: Evidence) -> Verdict:
    """Claim 18: more blocks probe better (1 to 4), and the class token alone beats mean and max pooling."""
    asked = {(1, "cls"): "one block", (4, "mean"): "mean pooling", (4, "max"): "max pooling"}
    cells = over_seeds(evidence.select("probe_top1", keep=lambda m: m["training"] == SELF_SUPERVISED))

    def of(blocks: int, strategy: str) -> list[Group]:
        return [group for group in cells if (group[0]["blocks"], group[0]["strategy"]) == (blocks, strategy)]

    comparisons, missing = [], dict(asked)
    for cell in asked:
        for a, b in pairs(of(4, "cls"), of(*cell), "blocks", "strategy", allowed=lambda a, b: a == b):
            comparisons.append(compare(a, b, f"{title(a)}: cls of 4 blocks minus {cell[1]} of {cell[0]}"))
            missing.pop(cell, None)
    return verdict_of(sorted(comparisons, key=lambda gap: gap.what.partition(":")[0]), missing.values())


def _causal_costs(metric: str) -> Check:
    def check(evidence: Evidence) -> Verdict:
        found = evidence.select(metric, keep=lambda m: m["family"] == "attention" and is_headline(m))
        seen, causal = (over_seeds(m for m in found if m["causal"] == wanted) for wanted in (False, True))
        return verdict_of(
            [
                compare(visible, hidden, f"{metric} of {title(hidden)}: fully visible minus causal")
                for hidden, visible in pairs(causal, seen, allowed=_matched)  # with or without a class token, as it is
            ]
        )

    return check


causal_mixing_costs = first_measured(*map(_causal_costs, ("top1", "probe_top1", "knn_top1")))
