"""Claims about activation maps: what Figure 4 of the first paper shows, panel by panel, and its Figure 9."""

from collections.abc import Iterable
from itertools import product

from mixlab.analysis.claims.evidence import (
    Comparison,
    Evidence,
    Verdict,
    compare,
    compare_to_zero,
    title,
    verdict_of,
)
from mixlab.analysis.claims.orders import SELF_SUPERVISED, SIZE_RATIO, is_matched, mutual_pairs
from mixlab.analysis.comparisons import (
    Group,
    Network,
    averaged,
    comparable,
    is_default_map,
    is_final_map,
    over_seeds,
    pairs,
    preferred,
    preferred_runs,
    size_ratio,
)
from mixlab.run import UNTRAINED, Measurement
from mixlab.statistics import Difference, Estimate, correlate, difference, mean_over_images, mean_over_seeds

CHANCE = 0.5
LAZY = 0.05  # a head whose AUC is within this of 0.5 counts as idle
_LARGER = 1.2  # models differ in size from this factor of parameters on


def dino_beats_supervised(evidence: Evidence) -> Verdict:
    """Claim 8: softmax attention or a scan with two trainings. Of one architecture; and as the paper has them, DinoVim
    and DinoMamba-Reg beside the supervised Vim and Mamba-Reg, whose scans are Mamba-1.
    """
    families = ("attention", "mamba2", "mamba1")
    found = evidence.select("binary_auc", keep=lambda m: is_final_map(m) and m["family"] in families)
    dino, supervised = (
        over_seeds(m for m in found if m["training"] == training) for training in (SELF_SUPERVISED, "supervised")
    )
    same = pairs(dino, supervised, allowed=lambda a, b: a.architecture == b.architecture)
    rivals = pairs(dino, supervised, allowed=_are_the_papers_pair)
    return verdict_of(
        [compare(a, b, part=f"maps of {a[0]['model']}") for a, b in same]
        + [compare(a, b, part=f"maps of {a[0]['model']} against {b[0]['model']}") for a, b in rivals]
    )


def _are_the_papers_pair(a: Network, b: Network) -> bool:
    """DinoVim and Vim, DinoMamba-Reg and Mamba-Reg, of one size."""
    return a.model == f"dino{b.model}" and size_ratio(a, b) <= SIZE_RATIO


def bigger_scores_higher(evidence: Evidence) -> Verdict:
    """Claim 9: in each family, the largest model against the smallest of those that may be compared; for DINOv2 the
    other way round."""
    wanted = {SELF_SUPERVISED: "DINO", "dinov2": "DINOv2"}
    found = evidence.select("binary_auc", keep=lambda m: is_final_map(m) and m["training"] in wanted)
    kinds: dict[tuple[str, str, bool], list[Group]] = {}
    for group in over_seeds(found):
        lead = group[0]
        kinds.setdefault((lead["training"], lead["family"], bool(lead["num_registers"])), []).append(group)
    comparisons, missing = [], dict(wanted)
    sets = [(kind, groups) for kind, every in sorted(kinds.items()) for groups in _comparable(every)]
    for (training, family, registers), groups in sets:
        sizes = [group[0]["num_parameters"] for group in groups]
        largest, smallest = ([g for g in groups if g[0]["num_parameters"] == end(sizes)] for end in (max, min))
        if max(sizes) > _LARGER * min(sizes):
            ends = (largest, smallest) if training == SELF_SUPERVISED else (smallest, largest)
            part = f"{wanted[training]} with {family}{' and registers' if registers else ''}"
            comparisons += [compare(a, b, part=part) for a, b in pairs(*ends)]
            missing.pop(training, None)
    return verdict_of(comparisons, missing.values())


def small_dinovim_scores_highest(evidence: Evidence) -> Verdict:
    """Claim 31: of three or more sizes of DinoVim, the second smallest above every other."""
    found = evidence.select(
        "binary_auc",
        keep=lambda m: (
            is_final_map(m) and (m["family"], m["training"]) == ("mamba2", SELF_SUPERVISED) and not m["num_registers"]
        ),
    )
    comparisons = []
    for groups in _comparable(over_seeds(found)):
        sizes = sorted({group[0]["num_parameters"] for group in groups})
        small = [group for group in groups if group[0]["num_parameters"] == sizes[1]] if len(sizes) > 2 else []
        rest = [group for group in groups if group not in small]
        for size in sizes if small else ():
            others = [group for group in rest if group[0]["num_parameters"] == size]
            part = f"small above {size / 1e6:.2g} M"
            comparisons += [compare(a, b, part=part) for a, b in pairs(small, others)]
    return verdict_of(comparisons)


def _comparable(groups: Iterable[Group]) -> list[list[Group]]:
    """Groups that were measured by one protocol, together: a size is the largest of those."""
    found: list[list[Group]] = []
    for group in groups:
        own = next((each for each in found if comparable(each[0][0], group[0])), None)
        if own is None:
            found.append([group])
        else:
            own.append(group)
    return found


def heads_are_unequal(evidence: Evidence) -> Verdict:
    """Claim 10: the best head above the worst on images that did not choose them, network by network; and heads whose
    intervals lie near chance. The heads of untrained twins are reported too: they are unequal as well. It speaks of
    these networks' heads, so one run of each is enough, and intervals are over images alone.
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
    verdict = verdict_of([compare_to_zero(group, mean_over_images, of_weights=True) for group in gaps], missing)
    found = f"intervals over images alone; those of {lazy} of {len(heads)} heads lie within {LAZY} of chance"
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


def linear_heads_score_lower(evidence: Evidence) -> Verdict:
    """Claim 26: the mean over all heads of the last layers, softmax attention minus linear attention."""
    rows = evidence.select(
        "binary_auc",
        keep=lambda m: (
            m["map"] == "mixing_rows"
            and m["training"] == SELF_SUPERVISED
            and m["index"] is not None
            and not m["causal"]
        ),
    )
    softmax, linear = (
        [[averaged(run) for run in seeds] for seeds in preferred_runs(of_family, "layer", "index")]
        for of_family in ([m for m in rows if m["family"] == family] for family in ("attention", "linear_attention"))
    )
    return verdict_of([compare(a, b) for a, b in mutual_pairs(softmax, linear)])


def registers_help_dinov2(evidence: Evidence) -> Verdict:
    """Claim 11: of the released weights."""
    found = evidence.select("binary_auc", keep=lambda m: is_final_map(m) and m["training"] == "dinov2")
    having, lacking = (over_seeds(m for m in found if bool(m["num_registers"]) == wanted) for wanted in (True, False))
    return verdict_of([compare(a, b) for a, b in pairs(having, lacking, allowed=is_matched)])


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
        [compare_to_zero(group, part=asked[group[0].metric]) for group in found],
        [name for metric, name in asked.items() if metric not in measured],
    )
    twins = preferred(over_seeds(evidence.select("untrained_middle_over_first", "untrained_middle_over_last")))
    text = "".join(f"; {gap.what}: {gap.difference.value:+.3f}" for gap in map(compare_to_zero, twins))
    return verdict.with_text(f"{verdict.measured}{text}")


def middle_token_is_clearer(evidence: Evidence) -> Verdict:
    """Claim 34: the class token in the middle minus its copy in front, on the same images."""
    found = evidence.select("middle_token_over_front", keep=lambda m: m["training"] == SELF_SUPERVISED)
    return verdict_of([compare_to_zero(group) for group in preferred(over_seeds(found))])


def score_rises_with_depth(evidence: Evidence) -> Verdict:
    """Claim 13: the first layers significantly below 0.5 (raw AUC), and the score significantly rising with depth."""
    found = evidence.select(
        "binary_auc_raw", keep=lambda m: is_default_map(m) and m["training"] != UNTRAINED and m["layer"] is not None
    )
    networks = [
        [sorted(run, key=lambda m: m["layer"]) for run in seeds if len(run) >= 4]
        for seeds in preferred_runs(found, "layer")
    ]
    changes = (("0.5 minus its first layers", _below_chance), ("last minus first layers", _rise))
    comparisons = [
        Comparison(
            f"{title([run[0] for run in seeds])}: {what}",
            mean_over_seeds(list(map(change, seeds))),
            tuple(m for run in seeds for m in run),
            part=f"{what} of {seeds[0][0]['family']}",
            trainings=2 if len(seeds) > 1 else 0,
        )
        for (what, change), seeds in product(changes, networks)
        if seeds
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
