"""The panels of the paper's Figure 4 over any subjects: who scores how well, and what makes the difference.

Every study returns rows (one per subject, layer, head or register; each with the centre prior, the untrained twin and
the centre-matched score beside it), comparisons (paired over images, with intervals), and per-image arrays.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, groupby, pairwise, product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mixlab.analysis.maps import MAPS, FeatureMap, single_maps
from mixlab.analysis.scores import MapScores, Scorer, as_array, as_dict, either_sign, score_row
from mixlab.backbones.backbone import Layers
from mixlab.errors import InputError
from mixlab.evaluation.target import Target
from mixlab.run import UNTRAINED
from mixlab.statistics import bootstrap_difference, correlate


@dataclass
class StudyResult:
    """What one study found; `arrays` holds raw AUC per image, by label, as (n, layers, maps)."""

    study: str
    rows: list[dict[str, Any]]
    comparisons: list[dict[str, Any]] = field(default_factory=list)
    correlations: dict[str, Any] = field(default_factory=dict)
    findings: list[dict[str, Any]] = field(default_factory=list)  # figures of the study beyond those of its rows
    arrays: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    for_ledger: bool = True  # whether rows are measurements that claims are judged by

    def as_json(self, data: str) -> dict[str, Any]:
        """The result on `data`, with the flat measurements that the ledger reads."""
        rows = self.rows if self.for_ledger else []
        records = [record for row in rows for record in _row_records(row)] + self.findings
        defined = [record for record in records if record["value"] is not None]
        return {
            "study": self.study,
            "data": data,
            "rows": self.rows,
            "comparisons": self.comparisons,
            "correlations": self.correlations,
            "measurements": [record | {"study": self.study, "data": data} for record in defined],
        }


def by_model(subjects: Sequence[Target], scorer: Scorer, map_name: str | None = None) -> StudyResult:
    """Figure 4f: subjects side by side, each against each; and, where known, against probe accuracy."""
    result = _scored("model", subjects, scorer, map_name)
    result.comparisons = [_compare(scorer, map_name, a, b) for a, b in combinations(subjects, 2)]
    known = [subject for subject in subjects if subject.probe_accuracy is not None]
    if len(known) >= 3:
        scores = {row["label"]: row["auc"]["mean"] for row in result.rows}
        found = correlate([scores[s.label] for s in known], [s.probe_accuracy or 0.0 for s in known]).to_json()
        result.correlations["probe_accuracy"] = found
        result.findings.append(_correlation_record("auc_follows_probe", found))
    return result


def by_size(subjects: Sequence[Target], scorer: Scorer, map_name: str | None = None) -> StudyResult:
    """Figure 4a: in a family trained one way, each size against the next smaller, the largest against the smallest; of
    several seeds, each against its own.
    """
    result = _scored("size", subjects, scorer, map_name)
    for group in _grouped(subjects, lambda s: (s.family, s.training, s.num_registers > 0)):
        sizes = sorted({subject.num_parameters for subject in group})
        pairs = list(pairwise(sizes)) + ([(sizes[0], sizes[-1])] if len(sizes) > 2 else [])
        for (small, large), a, b in product(pairs, group, group):
            if (a.num_parameters, b.num_parameters) == (large, small) and (
                a.seed == b.seed or None in (a.seed, b.seed)
            ):
                result.comparisons.append(_compare(scorer, map_name, a, b))
    _require(result, "two sizes of one family, trained the same way")
    return result


def by_training(subjects: Sequence[Target], scorer: Scorer, map_name: str | None = None) -> StudyResult:
    """Figure 4a, solid against dashed: the same architecture trained in different ways."""
    result = _scored("training", subjects, scorer, map_name)
    for group in _grouped(subjects, lambda s: (s.backbone.name, s.num_parameters)):
        for a, b in combinations(sorted(group, key=lambda subject: subject.training == "supervised"), 2):
            if a.training != b.training:
                result.comparisons.append(_compare(scorer, map_name, a, b))
    _require(result, "one architecture trained in two ways")
    return result


def by_registers(subjects: Sequence[Target], scorer: Scorer, map_name: str | None = None) -> StudyResult:
    """Figure 4c: with registers against without, in one family trained one way at about one size."""
    result = _scored("registers", subjects, scorer, map_name)
    for group in _grouped(subjects, lambda s: (s.family, s.training)):
        for a in group:
            for b in group:
                sizes = (a.num_parameters, b.num_parameters)
                if a.num_registers and not b.num_registers and max(sizes) < 1.25 * min(sizes):
                    result.comparisons.append(_compare(scorer, map_name, a, b))
    _require(result, "one architecture with registers and one without, of the same size and training")
    return result


def by_head(subjects: Sequence[Target], scorer: Scorer, map_name: str | None = None, layers: Layers = 2) -> StudyResult:
    """Figure 4b: every head of the last two layers, by its row of the mixing matrix; the best against the worst.

    Best and worst are chosen on every second image and compared on the others: choosing on the same images would find a
    difference in pure noise.
    """
    map_name = map_name or "mixing_rows"
    result = _scored("head", subjects, scorer, map_name, layers)
    for subject in subjects:
        scores = scorer.scores(subject, map_name, layers)
        for place, layer in enumerate(scores.layers):
            auc = either_sign(scores.raw[:, place])
            means = auc[::2].nanmean(0)
            best, worst = int(means.argmax()), int(means.argmin())
            gap = as_dict(bootstrap_difference(auc[1::2, best], auc[1::2, worst]))
            names = [f"{subject.label}, layer {layer}, head {head}" for head in (best, worst)]
            result.comparisons.append({"better": names[0], "worse": names[1], "difference": gap})
            result.findings.append(subject.describe() | {"layer": layer} | _record("best_head_over_worst", gap))
    return result


def by_register_position(subjects: Sequence[Target], scorer: Scorer, map_name: str | None = None) -> StudyResult:
    """Figure 4d: each register by its place, against probes on them; the middle third against the first and the last,
    in the untrained twin too.
    """
    map_name = map_name or "register_cosine"
    result = _scored("register", subjects, scorer, map_name)
    for subject in subjects:
        raw = scorer.scores(subject, map_name).raw[:, -1]  # (n, R), before normalisation, as in the paper
        if raw.shape[1] >= 3:
            for part, gap in _middle_over_ends(raw):
                names = [f"{subject.label}, {place} registers" for place in ("middle", part)]
                result.comparisons.append({"better": names[0], "worse": names[1], "difference": gap})
                result.findings.append(subject.describe() | _record(f"middle_registers_over_{part}", gap))
            twin = scorer.twin_scores(subject, map_name) if subject.training != UNTRAINED else None
            for part, gap in _middle_over_ends(twin.raw[:, -1]) if twin is not None else ():
                result.findings.append(subject.describe() | _record(f"untrained_middle_over_{part}", gap))
        if len(subject.register_accuracies) == raw.shape[1]:
            found = correlate(raw.nanmean(0).tolist(), subject.register_accuracies).to_json()
            result.correlations[subject.label] = found
            result.findings.append(subject.describe() | _correlation_record("register_auc_follows_probe", found))
    return result


def by_layer(subjects: Sequence[Target], scorer: Scorer, map_name: str | None = None) -> StudyResult:
    """Figure 4e: the raw AUC after every layer, and its rank correlation with depth."""
    result = _scored("layer", subjects, scorer, map_name, layers=None)
    for subject in subjects:
        scores = scorer.scores(subject, map_name, None)
        means = scores.raw.nanmean(0).mean(-1).tolist()
        if len(means) >= 3:
            result.correlations[subject.label] = correlate(means, scores.layers).to_json()
    return result


def by_map(subjects: Sequence[Target], scorer: Scorer, map_name: str | None = None) -> StudyResult:
    """Every kind of map with one picture per image, after the last layer: does the choice decide the score?"""
    if map_name is not None:
        raise InputError(f"the study by map scores every kind; leave --map {map_name} out")
    result = StudyResult("map", [], for_ledger=False)  # its claims are about the paper's map
    first = next(iter(scorer.images)).images[:1]
    for subject in subjects:
        names = single_maps(subject.backbone, subject.backbone.preprocess(first))
        of_features = [name for name in names if isinstance(MAPS[name], FeatureMap)]
        for kinds in (of_features, *([name] for name in names if name not in of_features)):
            scored = _scored("map", [subject], scorer, "+".join(kinds))
            for place, (name, row) in enumerate(zip(kinds, scored.rows, strict=True)):
                result.rows.append(row | {"map": name, "index": None})
                result.arrays[f"{subject.label}.{name}"] = scored.arrays[subject.label][..., place : place + 1]
    return result


STUDIES: dict[str, Callable[..., StudyResult]] = {
    "model": by_model,
    "size": by_size,
    "training": by_training,
    "head": by_head,
    "registers": by_registers,
    "register": by_register_position,
    "layer": by_layer,
    "map": by_map,
}


def run_study(name: str, subjects: Sequence[Target], scorer: Scorer, map_name: str | None = None) -> StudyResult:
    """One of STUDIES by its name."""
    if name not in STUDIES:
        raise InputError(f"there is no study {name!r}; choose one of {', '.join(STUDIES)}")
    labels = [subject.label for subject in subjects]
    if not labels or len(set(labels)) < len(labels):
        raise InputError(f"subjects need labels of their own, got {labels}; write TARGET=LABEL to tell them apart")
    return STUDIES[name](subjects, scorer, map_name)


def _scored(
    study: str, subjects: Sequence[Target], scorer: Scorer, map_name: str | None, layers: Layers = 1
) -> StudyResult:
    rows: list[dict[str, Any]] = []
    arrays: dict[str, NDArray[np.float64]] = {}
    for subject in subjects:
        scores = scorer.scores(subject, map_name, layers)
        twin = scorer.twin_scores(subject, map_name, layers) if subject.training != UNTRAINED else None
        rows += _rows(subject, scores, twin)
        arrays[subject.label] = as_array(scores.raw)
    return StudyResult(study, rows, arrays=arrays)


def _rows(subject: Target, scores: MapScores, twin: MapScores | None) -> Iterable[dict[str, Any]]:
    about = subject.describe() | {"map": scores.map_name, "probe_accuracy": subject.probe_accuracy}
    for place, layer in enumerate(scores.layers):
        for index in range(scores.num_maps):
            figures = score_row(
                scores.raw[:, place, index],
                scores.matched[:, place, index],
                scores.prior[:, place],
                None if twin is None else twin.raw[:, place, index],
            )
            yield about | {"layer": layer, "index": index if scores.num_maps > 1 else None} | figures


def _middle_over_ends(raw: Tensor) -> Iterable[tuple[str, dict[str, Any]]]:
    """The middle third of the registers (n, R) less the first and less the last third, over images."""
    third = raw.shape[1] // 3
    middle = raw[:, third:-third].mean(1)
    for part, end in (("first", raw[:, :third]), ("last", raw[:, -third:])):
        yield part, as_dict(bootstrap_difference(middle, end.mean(1)))


def _compare(scorer: Scorer, map_name: str | None, better: Target, worse: Target) -> dict[str, Any]:
    """The first subject's score minus the second's on the same images."""
    first, second = (_best_sign(scorer.scores(subject, map_name)) for subject in (better, worse))
    difference = as_dict(bootstrap_difference(first, second))
    return {"better": better.label, "worse": worse.label, "difference": difference}


def _best_sign(scores: MapScores) -> Tensor:
    return either_sign(scores.raw[:, -1]).mean(-1)  # (n,)


def _grouped(subjects: Sequence[Target], key: Callable[[Target], Any]) -> Iterable[list[Target]]:
    for _, group in groupby(sorted(subjects, key=lambda subject: str(key(subject))), key=key):
        yield list(group)


def _require(result: StudyResult, what: str) -> None:
    if not result.comparisons:
        labels = ", ".join(row["label"] for row in result.rows)
        raise InputError(f"the study by {result.study} needs {what}; {labels} has no such pair")


def _row_records(row: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """A row as the ledger reads it: one flat record per figure."""
    metrics = {"auc": "binary_auc", "raw_auc": "binary_auc_raw"}
    about = {key: value for key, value in row.items() if not isinstance(value, dict)}
    for name, figure in row.items():
        if isinstance(figure, dict):
            yield about | _record(metrics.get(name, name), figure)


def _record(metric: str, figure: dict[str, Any]) -> dict[str, Any]:
    return {"metric": metric, "value": figure["mean"], "low": figure["low"], "high": figure["high"], "n": figure["n"]}


def _correlation_record(metric: str, correlation: dict[str, Any]) -> dict[str, Any]:
    figure = {"mean": correlation["spearman"], "low": correlation["low"], "high": correlation["high"]}
    return _record(metric, figure | {"n": correlation["n"]})
