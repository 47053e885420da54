"""Claims that families of networks rank in an order: by ranks, maps, probes, dense tasks, shifted images.

Each is decided by the metric and the models of its paper, where runs have these. Networks of different families are
compared where training and data are the same and their sizes are within a factor of 2.5, as the papers' own pairs are;
always by one protocol, the most preferred that both were measured with (`comparisons.py`). Each pair of neighbours in
an order is a part of its claim (`evidence.verdict_of`).
"""

from collections.abc import Callable, Mapping, Sequence
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
    title,
    verdict_of,
)
from mixlab.analysis.comparisons import (
    Group,
    Network,
    Pair,
    is_final_map,
    is_headline,
    over_seeds,
    pairs,
    size_ratio,
)
from mixlab.run import Measurement
from mixlab.run.protocols import ONE_HEAD

Check = Callable[[Evidence], Verdict]
Keep = Callable[[Measurement], bool]
Adjust = Callable[[Group, Group], Pair | None]

RANKING = ("attention", "mamba2", "linear_attention")  # the first paper's order, best first
SELF_SUPERVISED = "dino"
BEST_MAMBAS = ("vmamba", "localvmamba")  # MambaOut, Tables 2 and 3: the state of the art that it names
SIZE_RATIO = 2.5
_MASK_RCNN = {"head": ("mask", "cascade")}  # MambaOut's detector
_HEAVY = {"heads": ("heavy", "grid", "light")}  # Table 1 has Mamba-Reg with heavy heads alone


def orders_groups(
    metrics: Sequence[str],
    kinds: Mapping[str, Keep],
    *,
    keep: Keep = lambda m: True,
    papers: Mapping[str, Sequence[Any]] | None = None,
    adjusted: Adjust = lambda a, b: (a, b),
) -> Check:
    """The claim that networks of some kinds rank in the given order, best first, by each of the metrics. What two
    groups are compared by may be `adjusted` to each other; None of those that say nothing about each other."""

    def check(evidence: Evidence) -> Verdict:
        found = evidence.select(*metrics, keep=lambda m: not m["causal"] and keep(m))
        comparisons = []
        for better, worse in pairwise(kinds):
            first, second = (over_seeds(m for m in found if kinds[kind](m)) for kind in (better, worse))
            matched = mutual_pairs(first, second, papers)
            ordered = [
                _named(compare(*pair, part=f"{better} above {worse}"), pair[0], metrics)
                for pair in (adjusted(a, b) for a, b in matched)
                if pair is not None
            ]
            if matched and not ordered:
                text = f"{NOT_MEASURED}: {better} and {worse} both reach the limit of what was measured"
                return Verdict(Status.NOT_MEASURED, text)
            if not ordered:
                have = ", ".join(kind for kind, is_one in kinds.items() if any(map(is_one, found))) or "none"
                text = f"{NOT_MEASURED}: it needs {better} and {worse} by one protocol, the runs have {have}"
                return Verdict(Status.NOT_MEASURED, text)
            comparisons += ordered
        return verdict_of(comparisons)

    return check


def orders_families(
    metrics: Sequence[str],
    *,
    training: str | None = SELF_SUPERVISED,
    keep: Keep = lambda m: True,
    adjusted: Adjust = lambda a, b: (a, b),
) -> Check:
    """The same of the first paper's families of mixers."""
    kinds = {family: _of_family(family) for family in RANKING}

    def in_scope(m: Measurement) -> bool:
        return training in (None, m["training"]) and keep(m)

    return orders_groups(metrics, kinds, keep=in_scope, adjusted=adjusted)


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
    found = pairs(first, second, allowed=is_matched, papers=papers)
    others = pairs(second, first, allowed=is_matched, papers=papers)
    return found + [(a, b) for b, a in others if not any(a is x and b is y for x, y in found)]


def is_matched(a: Network, b: Network) -> bool:
    return a.training == b.training and size_ratio(a, b) <= SIZE_RATIO


def is_grid_cell(m: Measurement) -> bool:
    """A probe with one learning rate and weight decay, as the ablation has them: never a network's own accuracy."""
    return bool(m["heads"] == ONE_HEAD)


def _of_family(family: str) -> Keep:
    return lambda m: bool(m["family"] == family)


def _named(gap: Comparison, group: Group, metrics: Sequence[str]) -> Comparison:
    """With the metric, where there are several."""
    metric = group[0].metric
    return gap._replace(what=f"{metric}, {gap.what}", part=f"{gap.part} by {metric}") if len(metrics) > 1 else gap


def _plain(m: Measurement) -> bool:
    """Without registers, as the models of the first paper's orders are."""
    return not m["num_registers"]


def _paper_probe(m: Measurement) -> bool:
    """Its Table 1 up to the heavier heads: the class token of four blocks, with all labels."""
    return not is_grid_cell(m) and (m["blocks"], m["strategy"], m["label_share"]) == (4, "cls", 1.0)


def _is_gated_cnn(m: Measurement) -> bool:
    return bool(m["family"] == "gated_conv")


def _is_visual_mamba(m: Measurement) -> bool:
    return str(m["family"]).startswith("mamba")


def _is_mambaout(m: Measurement) -> bool:
    return str(m["model"]).removeprefix("timm/").startswith("mambaout")


def _is_rival_of_mambaout(m: Measurement) -> bool:
    """Vim, VMamba, LocalMamba, EfficientVMamba, PlainMamba: all scan with Mamba-1."""
    return bool(m["family"] == "mamba1")


def _is_best_mamba(m: Measurement) -> bool:
    return str(m["model"]).startswith(BEST_MAMBAS)


auc_order = orders_families(["binary_auc"], keep=lambda m: is_final_map(m) and _plain(m))
probe_order = first_measured(
    orders_families(["probe_top1"], keep=lambda m: _plain(m) and _paper_probe(m)),
    orders_families(["probe_top1"], keep=lambda m: is_headline(m) and _plain(m)),
)
segmentation_order = orders_families(["miou"], keep=_plain)
detection_order = orders_families(["box_ap", "mask_ap"], keep=_plain)
robustness_order = first_measured(
    orders_families(["robust_top1"], keep=_plain), orders_families(["shifted_top1"], keep=_plain)
)
registers_probe_better = orders_groups(
    ["probe_top1"],
    {"Mamba-Reg": lambda m: bool(m["num_registers"]), "DinoVim": _plain},
    keep=lambda m: m["family"] == "mamba2" and m["training"] == SELF_SUPERVISED and is_headline(m),
    papers=_HEAVY,
)
gated_cnn_classifies_better = first_measured(  # the paper's own models, or else stand-ins
    *(
        orders_groups([metric], kinds, keep=lambda m: m["training"] == "supervised" and is_headline(m))
        for metric, kinds in (
            ("top1", {"MambaOut": _is_mambaout, "a visual Mamba": _is_rival_of_mambaout}),
            ("top1", {"a gated CNN": _is_gated_cnn, "a visual Mamba": _is_visual_mamba}),
            ("probe_top1", {"a gated CNN": _is_gated_cnn, "a visual Mamba": _is_visual_mamba}),
        )
    )
)
_best_mambas_do_dense_better = first_measured(
    *(
        orders_groups(["miou", "box_ap"], {"VMamba or LocalVMamba": _is_best_mamba, name: other}, papers=_MASK_RCNN)
        for name, other in (("MambaOut", _is_mambaout), ("a gated CNN", _is_gated_cnn))
    )
)
_other_mambas_do_dense_better = orders_groups(
    ["miou", "box_ap"], {"a visual Mamba": _is_visual_mamba, "a gated CNN": _is_gated_cnn}, papers=_MASK_RCNN
)


def mamba_does_dense_better(evidence: Evidence) -> Verdict:
    """Claim 23: of the Mambas that MambaOut names as the state of the art. Others are reported, and decide nothing:
    MambaOut itself says that it surpasses some of them.
    """
    verdict = _best_mambas_do_dense_better(evidence)
    if verdict.status != Status.NOT_MEASURED:
        return verdict
    other = _other_mambas_do_dense_better(evidence)
    if other.status == Status.NOT_MEASURED:
        return verdict
    text = f"{NOT_MEASURED}: it needs VMamba or LocalVMamba; of other visual Mambas, {other.measured}"
    return replace(verdict, measured=text, scale=other.scale)


def rank_order(evidence: Evidence) -> Verdict:
    """Claim 6: measured ranks; and where theory lets no block of a scan exceed what linear attention's reach, no larger
    measurement could help.
    """

    def numerical(m: Measurement) -> bool:
        return m["definition"] == "numerical"

    verdict = orders_families(["off_diagonal_rank"], training=None, keep=numerical, adjusted=_in_equal_blocks)(evidence)
    found = evidence.select("off_diagonal_rank", keep=numerical)
    scans, linear = (over_seeds(m for m in found if m["family"] == family) for family in RANKING[1:])
    bounds = {
        _same_blocks(m): m.value
        for m in evidence.select("off_diagonal_rank_bound", keep=numerical)
        if m["chunk"] is None or m.value < m["chunk"]  # no block exceeds its side: that says nothing of the mixer
    }
    capped = [
        f"no block of {title(a)} can exceed {bound:.0f}, which those of {title(b)} reach"
        for a, b in mutual_pairs(scans, linear)
        if (bound := bounds.get(_same_blocks(a[0]))) is not None and bound <= min(m.value for m in b)
    ]
    if not capped or verdict.status == Status.NOT_MEASURED:
        return verdict
    text = "; ".join([verdict.measured, *capped])
    return replace(verdict, status=Status.CONTRADICTED, measured=text, proven=True)


def _in_equal_blocks(a: Group, b: Group) -> Pair | None:
    """Ranks as in blocks of the smaller side, since an image has a token more for one network; None of full blocks,
    which would have any rank."""
    sides = a[0]["chunk"], b[0]["chunk"]
    if None in sides:
        return a, b
    if all(round(m.value) >= side for group, side in zip((a, b), sides, strict=True) for m in group):
        return None
    return (a, b) if sides[0] == sides[1] else (_scaled(a, min(sides) / sides[0]), _scaled(b, min(sides) / sides[1]))


def _scaled(group: Group, share: float) -> Group:
    def scale(value: float | None) -> float | None:
        return None if value is None else share * value

    return [replace(m, value=share * m.value, low=scale(m.low), high=scale(m.high)) for m in group]


def _same_blocks(m: Measurement) -> tuple[Network, str]:
    return Network.of(m), str(sorted(m.protocol.choices.items()))


def _causal_costs(metric: str) -> Check:
    def check(evidence: Evidence) -> Verdict:
        measured = evidence.select(metric, keep=lambda m: m["family"] == "attention" and is_headline(m))
        visible, causal = (over_seeds(m for m in measured if m["causal"] == wanted) for wanted in (False, True))
        found = pairs(causal, visible, allowed=is_matched)  # with or without a class token, as it is
        return verdict_of([compare(b, a, f"{metric} of {title(a)}: fully visible minus causal") for a, b in found])

    return check


causal_mixing_costs = first_measured(*map(_causal_costs, ("top1", "probe_top1", "knn_top1")))
