"""The studies of Binary-AUC, by the panels of the paper's Figure 4: scores, and what makes a difference.

Every score comes with the centre prior, the untrained twin, the paired differences to both and the
centre-matched score, all with 95 % intervals over images.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mixlab.analysis.comparisons import grouped
from mixlab.analysis.map_scores import (
    AucResult,
    MapScorer,
    MapScores,
    ScoreRow,
    either_sign,
    mean_rates,
    to_measurements,
)
from mixlab.analysis.score_differences import ScoreDifference
from mixlab.backbones.backbone import Layers
from mixlab.errors import InputError
from mixlab.evaluation.target import Target
from mixlab.run import UNTRAINED, Subject
from mixlab.run.directory import file_name
from mixlab.run.protocols import MapProtocol
from mixlab.statistics import Estimate, bootstrap_difference, bootstrap_mean, correlate

BESIDE = ("norm", "isolation", "mixing_mean")  # maps that show another thing than similarity to the summary
HEAD_MAP, HEAD_LAYERS = "mixing_rows", 2
REGISTER_MAP = "register_cosine"
TOKEN_MAPS = {"cosine": "in the middle", "front_cosine": "in front"}
_mean = partial(bootstrap_mean, low=0.0, high=1.0)  # of scores, which are shares
_difference = partial(bootstrap_difference, low=-1.0, high=1.0)


def by_model(targets: Sequence[Target], scorer: MapScorer, map_name: str | None = None) -> AucResult:
    """Figure 4f: networks compared pairwise and, where known, with their probe accuracy.

    Without a map, each network is also scored by the others that it has of BESIDE: the paper's need not suit it. Two
    networks are compared by the map of each, and by every other that both have.
    """
    others = {target.label: beside_maps(target, scorer, map_name) for target in targets}
    beside = [
        row
        for target in targets
        for name in others[target.label]
        for row in _scored("model", [target], scorer, name).rows
    ]
    result = replace(_scored("model", targets, scorer, map_name), beside=tuple(beside))
    pairs = [
        _compare(scorer, name, a, b)
        for a, b in combinations(targets, 2)
        for name in (map_name, *(each for each in others[a.label] if each in others[b.label]))
    ]
    roc = {target.label: mean_rates(scorer.scores(target, map_name).roc.mean(1)) for target in targets}
    result = replace(result, comparisons=tuple(pairs), roc={label: rates for label, rates in roc.items() if rates})
    probed = [row for row in result.rows if row.probe_accuracy is not None and row.scores["auc"].n]
    if len(probed) < 3:
        return result
    found = correlate([row.scores["auc"].value for row in probed], [row.probe_accuracy or 0.0 for row in probed])
    measured = to_measurements("auc_follows_probe", found, result.protocol, _group_of(probed), None)
    return replace(result, correlations={"probe_accuracy": found}, findings=tuple(measured))


def by_size(targets: Sequence[Target], scorer: MapScorer, map_name: str | None = None) -> AucResult:
    """Figure 4a: in a family trained one way, each size against the next smaller, the largest against the smallest; of
    several seeds, each against its own.
    """
    pairs = []
    for group in _grouped(targets, lambda t: (t.family, t.training, t.num_registers > 0)):
        sizes = sorted({target.num_parameters for target in group})
        steps = list(pairwise(sizes)) + ([(sizes[0], sizes[-1])] if len(sizes) > 2 else [])
        for (small, large), a, b in product(steps, group, group):
            same_seed = a.seed == b.seed or None in (a.seed, b.seed)
            if (a.num_parameters, b.num_parameters) == (large, small) and same_seed:
                pairs.append((a, b))
    return _compared("size", targets, pairs, scorer, map_name, needs="two sizes of one family, trained the same way")


def by_training(targets: Sequence[Target], scorer: MapScorer, map_name: str | None = None) -> AucResult:
    """Figure 4a, solid against dashed: the same architecture trained in different ways."""
    pairs = []
    for group in _grouped(targets, lambda t: (t.backbone.name, t.num_parameters)):
        ordered = sorted(group, key=lambda target: target.training == "supervised")
        pairs += [(a, b) for a, b in combinations(ordered, 2) if a.training != b.training]
    return _compared("training", targets, pairs, scorer, map_name, needs="one architecture trained in two ways")


def by_registers(targets: Sequence[Target], scorer: MapScorer, map_name: str | None = None) -> AucResult:
    """Figure 4c: with registers against without, in one family trained one way at about one size."""
    pairs = []
    for group in _grouped(targets, lambda t: (t.family, t.training)):
        for a, b in product(group, group):
            sizes = (a.num_parameters, b.num_parameters)
            if a.num_registers and not b.num_registers and max(sizes) < 1.25 * min(sizes):
                pairs.append((a, b))
    needs = "one architecture with registers and one without, of the same size and training"
    return _compared("registers", targets, pairs, scorer, map_name, needs=needs)


def by_head(targets: Sequence[Target], scorer: MapScorer, map_name: str | None = None) -> AucResult:
    """Figure 4b: every head of the last two layers, by its row of the mixing matrix; the best against the worst.

    Best and worst are chosen on every second image and compared on the others: choosing on the same images would find a
    difference in pure noise.
    """
    map_name = map_name or HEAD_MAP
    result = _scored("head", targets, scorer, map_name, HEAD_LAYERS)
    comparisons, findings = [], []
    for target in targets:
        scores = scorer.scores(target, map_name, HEAD_LAYERS)
        for place, layer in enumerate(scores.layers):
            auc = either_sign(scores.raw[:, place])
            means = auc[::2].nanmean(0)
            best, worst = int(means.argmax()), int(means.argmin())
            gap = _difference(auc[1::2, best], auc[1::2, worst])
            name = f"{target.label}, layer {layer}, head"
            comparisons.append(ScoreDifference(f"{name} {best}", f"{name} {worst}", map_name, map_name, gap))
            protocol = scorer.protocol(map_name, layer, None, None)
            findings += to_measurements("best_head_over_worst", gap, protocol, target.subject, target.seed)
    return replace(result, comparisons=tuple(comparisons), findings=tuple(findings))


def by_register_position(targets: Sequence[Target], scorer: MapScorer, map_name: str | None = None) -> AucResult:
    """Figure 4d: each register by its place, against probes on them; the middle third against the first and the last,
    in the untrained twin too.
    """
    map_name = map_name or REGISTER_MAP
    result = _scored("register", targets, scorer, map_name)
    comparisons, findings, correlations = [], [], {}
    for target in targets:
        scores = scorer.scores(target, map_name)
        raw = scores.raw[:, -1]  # (n, R), before normalisation, as in the paper
        protocol = scorer.protocol(map_name, scores.layers[-1], None, None)
        twin = scorer.twin_scores(target, map_name) if target.training != UNTRAINED else None
        for part, gap in _middle_over_ends(raw):
            names = (f"{target.label}, middle registers by raw AUC", f"{target.label}, {part} registers")
            comparisons.append(ScoreDifference(names[0], names[1], map_name, map_name, gap))
            metric = f"middle_registers_over_{part}"
            findings += to_measurements(metric, gap, protocol, target.subject, target.seed)
        for part, gap in _middle_over_ends(twin.raw[:, -1]) if twin is not None else ():
            beside = replace(protocol, twin_seed=scorer.twin_seed(target))
            findings += to_measurements(f"untrained_middle_over_{part}", gap, beside, target.subject, target.seed)
        if len(target.register_accuracies) == raw.shape[1]:
            found = correlate(raw.nanmean(0).tolist(), target.register_accuracies)
            correlations[target.label] = found
            findings += to_measurements("register_auc_follows_probe", found, protocol, target.subject, target.seed)
    return replace(result, comparisons=tuple(comparisons), findings=tuple(findings), correlations=correlations)


def by_token(targets: Sequence[Target], scorer: MapScorer, map_name: str | None = None) -> AucResult:
    """Figure 8: the class token in the middle against its copy in front, of backbones that have both."""
    if map_name is not None:
        raise InputError(f"the study by token scores {' and '.join(TOKEN_MAPS)}; leave --map {map_name} out")
    together = "+".join(TOKEN_MAPS)
    result = _scored("token", targets, scorer, together)
    kinds = [*TOKEN_MAPS] * len(targets)
    rows = [
        replace(row, protocol=replace(row.protocol, map=kind, index=None))
        for row, kind in zip(result.rows, kinds, strict=True)
    ]
    comparisons, findings = [], []
    roc: dict[str, list[float]] = {}
    for target in targets:
        scores = scorer.scores(target, together)
        auc = either_sign(scores.raw[:, -1])  # (n, 2)
        names = [f"{target.label}, class token {place}" for place in TOKEN_MAPS.values()]
        gap = _difference(auc[:, 0], auc[:, 1])
        middle, front = TOKEN_MAPS
        comparisons.append(ScoreDifference(names[0], names[1], middle, front, gap))
        protocol = scorer.protocol(together, scores.layers[-1], None, None)
        findings += to_measurements("middle_token_over_front", gap, protocol, target.subject, target.seed)
        curves = dict(zip(names, scores.roc.unbind(1), strict=True))
        roc |= {name: rates for name, curve in curves.items() if (rates := mean_rates(curve))}
    return replace(result, rows=tuple(rows), roc=roc, comparisons=tuple(comparisons), findings=tuple(findings))


def by_layer(targets: Sequence[Target], scorer: MapScorer, map_name: str | None = None) -> AucResult:
    """Figure 4e: the raw AUC after every layer, and its rank correlation with depth, without an interval: layers
    are no independent sample.
    """
    result = _scored("layer", targets, scorer, map_name, layers=None)
    correlations = {}
    for target in targets:
        scores = scorer.scores(target, map_name, None)
        means = scores.raw.nanmean(0).mean(-1).tolist()
        if len(means) >= 3:
            correlations[target.label] = replace(correlate(means, scores.layers), low=None, high=None)
    return replace(result, correlations=correlations)


def by_map(targets: Sequence[Target], scorer: MapScorer, map_name: str | None = None) -> AucResult:
    """Every kind of map that has one picture per image, after the last layer: how much does the choice matter?"""
    if map_name is not None:
        raise InputError(f"the study by map scores every kind; leave --map {map_name} out")
    rows: list[ScoreRow] = []
    arrays: dict[str, NDArray[np.float64]] = {}
    for target in targets:
        for name in scorer.single_maps(target):
            scored = _scored("map", [target], scorer, name)
            rows += scored.rows
            arrays[file_name(f"{target.label}.{name}")] = scored.arrays[file_name(target.label)]
    return replace(_result("map", targets, scorer, None), rows=tuple(rows), arrays=arrays)


def beside_maps(target: Target, scorer: MapScorer, map_name: str | None) -> list[str]:
    """Other maps than the default, if no map is asked for."""
    return [] if map_name else scorer.single_maps(target, BESIDE)


def _result(study: str, targets: Sequence[Target], scorer: MapScorer, map_name: str | None) -> AucResult:
    """A study without its rows. The images must have been read."""
    return AucResult(
        study=study,
        subjects=tuple(target.describe() for target in targets),
        protocol=MapProtocol(**scorer.images.choices, map=map_name),
        rows=(),
        arrays={},
        skipped=dict(scorer.images.skipped.reasons),
        unpaired=scorer.images.source.unpaired,
    )


def _scored(
    study: str, targets: Sequence[Target], scorer: MapScorer, map_name: str | None, layers: Layers = 1
) -> AucResult:
    rows: list[ScoreRow] = []
    arrays: dict[str, NDArray[np.float64]] = {}
    for target in targets:
        scores = scorer.scores(target, map_name, layers)
        twin = scorer.twin_scores(target, map_name, layers) if target.training != UNTRAINED else None
        rows += _rows(target, scorer, scores, twin)
        arrays[file_name(target.label)] = scores.raw.numpy().astype(np.float64)
    return replace(_result(study, targets, scorer, map_name), rows=tuple(rows), arrays=arrays)


def _rows(target: Target, scorer: MapScorer, scores: MapScores, twin: MapScores | None) -> Iterator[ScoreRow]:
    twin_seed = None if twin is None else scorer.twin_seed(target)
    for place, layer in enumerate(scores.layers):
        prior = either_sign(scores.prior[:, place])
        for index in range(scores.num_maps):
            raw = scores.raw[:, place, index]
            auc = either_sign(raw)
            found = {
                "auc": _mean(auc),
                "raw_auc": _mean(raw),
                "centre_matched_auc": _mean(scores.matched[:, place, index]),
                "centre_prior": _mean(prior),
                "above_centre_prior": _difference(auc, prior),
            }
            if twin is not None:
                twin_auc = either_sign(twin.raw[:, place, index])
                found |= {"untrained": _mean(twin_auc), "above_untrained": _difference(auc, twin_auc)}
            part = index if scores.num_maps > 1 else None
            protocol = scorer.protocol(scores.map_name, layer, part, twin_seed)
            yield ScoreRow(
                subject=target.subject,
                seed=target.seed,
                probe_accuracy=target.probe_accuracy,
                protocol=protocol,
                scores=found,
            )


def _compared(
    study: str,
    targets: Sequence[Target],
    pairs: Sequence[tuple[Target, Target]],
    scorer: MapScorer,
    map_name: str | None,
    *,
    needs: str,
) -> AucResult:
    """All networks scored, and the pairs compared, of which there must be one."""
    if not pairs:
        labels = ", ".join(target.label for target in targets)
        raise InputError(f"the study by {study} needs {needs}; {labels} has no such pair")
    result = _scored(study, targets, scorer, map_name)
    return replace(result, comparisons=tuple(_compare(scorer, map_name, a, b) for a, b in pairs))


def _compare(scorer: MapScorer, map_name: str | None, a: Target, b: Target) -> ScoreDifference:
    """By one map, or by the default of each."""
    first, second = (scorer.scores(target, map_name) for target in (a, b))
    gap = _difference(*(either_sign(scores.raw[:, -1]).mean(-1) for scores in (first, second)))  # of (n,) each
    return ScoreDifference(a.label, b.label, first.map_name, second.map_name, gap)


def _middle_over_ends(raw: Tensor) -> Iterable[tuple[str, Estimate]]:
    """The middle third of three or more registers (n, R) minus the first and minus the last third, over images."""
    third = raw.shape[1] // 3
    if not third:
        return
    middle = raw[:, third:-third].mean(1)
    for part, end in (("first", raw[:, :third]), ("last", raw[:, -third:])):
        yield part, _difference(middle, end.mean(1))


def _group_of(rows: Sequence[ScoreRow]) -> Subject:
    """What several networks are as one subject: their labels, and a digest of their weights."""
    weights = " ".join(sorted(str(row.subject.weights) for row in rows))
    digest = hashlib.sha256(weights.encode()).hexdigest()[:16]
    return Subject(label=", ".join(row.subject.label for row in rows), weights=digest)


def _grouped(targets: Sequence[Target], key: Callable[[Target], Any]) -> list[list[Target]]:
    return grouped(sorted(targets, key=lambda target: str(key(target))), key)
