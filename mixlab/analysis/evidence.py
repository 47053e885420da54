"""What the ledger rests on: flat measurements out of run directories, and honest differences between them.

A result file of a run may carry `measurements`, a list of records. Each has `metric`, `value` and `n`, `low` and
`high` (a 95 % interval) where known, says what was measured (`model`, `family`, `training`, `num_parameters`, `seed`,
`data`), and may add anything else (`layer`, `index`, `blocks`, ...). The ledger reads nothing but these records.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby
from typing import Any, Literal, NamedTuple

from mixlab.student import mean_interval, student, variance

Status = Literal["supported", "contradicted", "not resolved at this scale", "not measured"]

METRICS = {
    "binary_auc": "mean of max(AUC, 1 - AUC) over images",
    "binary_auc_raw": "mean AUC over images",
    "centre_matched_auc": "mean AUC among pairs at equal distance from the centre",
    "above_centre_prior": "binary_auc less that of a centre blob on the same images",
    "above_untrained": "binary_auc less that of the untrained twin on the same images",
    "best_head_over_worst": "binary_auc of the best head less the worst's, on images that did not choose them",
    "middle_registers_over_outer": "raw AUC of the middle third of the registers less that of the others",
    "register_auc_follows_probe": "rank correlation of registers' raw AUC with probes on them",
    "auc_follows_probe": "rank correlation of models' binary_auc with their probes",
    "off_diagonal_rank": "mean rank of off-diagonal blocks; `definition` says which rank",
    "diagonal_rank": "mean rank of diagonal blocks; `definition` says which rank",
    "mask_rank": "largest rank of an off-diagonal block of a scan's mask",
    "rank_bound_holds": "1 if no block exceeds its bound, else 0",
    "top1": "accuracy of the trained classifier itself",
    "probe_top1": "accuracy of a linear probe; `blocks`, `strategy` and `register` where they were varied",
    "knn_top1": "accuracy of nearest neighbours",
    "robust_top1": "accuracy on a shifted set, named by `data`",
    "shift_top1": "accuracy on images that were changed, as `data` says",
    "shifted_top1": "its mean over the changes",
    "miou": "mean IoU of semantic segmentation",
    "box_ap": "COCO AP of boxes",
    "mask_ap": "COCO AP of masks",
}

CORRELATIONS = ("auc_follows_probe", "register_auc_follows_probe")
ON_TOP = ("head", "frozen")  # of a dense task: which detector; the backbone fixed or fine-tuned
_SIZE_RATIO = 2.5  # models of different families are held against each other up to this ratio of parameters


@dataclass(frozen=True)
class Measurement:
    """One figure of one model on one set of data."""

    metric: str
    value: float
    n: int
    low: float | None = None
    high: float | None = None
    model: str = ""
    family: str = ""
    training: str = ""
    num_parameters: int = 0
    seed: int | None = None
    data: str = ""
    where: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_record(cls, record: dict[str, Any], origin: str) -> "Measurement":
        missing = [key for key in ("metric", "value", "n") if record.get(key) is None]
        if missing:
            raise ValueError(f"{origin}: a measurement lacks {', '.join(missing)}; it has {', '.join(sorted(record))}")
        given = {key: value for key, value in record.items() if value is not None}
        own = {item.name for item in fields(cls)} - {"where"}
        known = {key: value for key, value in given.items() if key in own}
        if not all(isinstance(known.get(key, 0.0), int | float) for key in ("value", "low", "high", "n")):
            raise ValueError(f"{origin}: value, low, high and n of {known['metric']} must be numbers")
        return cls(**known, where={key: value for key, value in given.items() if key not in own})

    def __getitem__(self, key: str) -> Any:
        return self.where.get(key)


@dataclass(frozen=True)
class Verdict:
    """What became of a claim. `measured` says in words and figures what was found, `scale` on what."""

    status: Status
    measured: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    scale: str = ""


NOT_MEASURED = "no run given here measured this"


class Difference(NamedTuple):
    """How much the first of two groups of measurements exceeds the second, with a 95 % interval."""

    what: str
    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.what}: {self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


class Evidence:
    """All measurements of the runs at hand; the same figure out of two studies counts once."""

    def __init__(self, measurements: Iterable[Measurement] = ()) -> None:
        self.measurements = list({_identity(measurement): measurement for measurement in measurements}.values())

    @classmethod
    def from_results(cls, results: Iterable[tuple[str, dict[str, Any]]]) -> "Evidence":
        """From (origin, result) of every result file; the origin is named if a record is wrong."""
        return cls(
            Measurement.from_record(record, origin)
            for origin, result in results
            for record in result.get("measurements", [])
        )

    def select(self, *metrics: str, keep: Callable[[Measurement], bool] = lambda m: True) -> list[Measurement]:
        return [m for m in self.measurements if m.metric in metrics and keep(m)]

    def unlearnt(self) -> set["Trained"]:
        """Trained models whose features no accuracy tells apart from those of their untrained twins."""
        accuracies = [m for m in self.select("knn_top1", "probe_top1") if m["blocks"] is None and m["register"] is None]
        twins = [m for m in accuracies if m.training == "untrained"]
        better: dict[Trained, list[bool]] = {}
        for group in grouped(m for m in accuracies if m.training != "untrained"):
            lead = group[0]
            twin = [t for t in twins if _same_network(t, lead)]
            if twin:
                better.setdefault(Trained.of(lead), []).append(difference(group, twin).low > 0)
        return {model for model, gains in better.items() if not any(gains)}

    def without(self, models: set["Trained"]) -> "Evidence":
        return Evidence(m for m in self.measurements if Trained.of(m) not in models)


class Trained(NamedTuple):
    """A model of one size, trained in one way."""

    model: str
    num_parameters: int
    training: str

    @classmethod
    def of(cls, m: Measurement) -> "Trained":
        return cls(m.model, m.num_parameters, m.training)


Group = list[Measurement]


def _identity(measurement: Measurement) -> str:
    m = measurement
    fixed = (m.metric, m.model, m.num_parameters, m.training, m.seed, m.data)
    return str((fixed, sorted((key, str(value)) for key, value in measurement.where.items() if key != "study")))


def grouped(measurements: Iterable[Measurement], *where: str) -> list[Group]:
    """Measurements that repeat one thing: same metric, model, size, training and data, and what stands on the model;
    `where` tells further apart."""

    def key(m: Measurement) -> str:
        about = (m.metric, m.data, m.training, m.family, m.model, m.num_parameters)
        return str((about, [m[name] for name in (*ON_TOP, *where)]))

    return [list(group) for _, group in groupby(sorted(measurements, key=key), key=key)]


def matched_pairs(first: Sequence[Group], second: Sequence[Group]) -> list[tuple[Group, Group]]:
    """Each group of the first kind with the one of the second nearest in size: same metric, data and training."""
    pairs = []
    for group in first:
        lead = group[0]
        rivals = [other for other in second if _comparable(lead, other[0])]
        nearest = min(rivals, key=lambda other: _size_ratio(lead, other[0]), default=None)
        if nearest is not None and _size_ratio(lead, nearest[0]) <= _SIZE_RATIO:
            pairs.append((group, nearest))
    return pairs


def mutual_pairs(first: Sequence[Group], second: Sequence[Group]) -> list[tuple[Group, Group]]:
    """The same from either side: no group of the second kind is left out, and no pair stands twice."""
    pairs = matched_pairs(first, second)
    return pairs + [(a, b) for b, a in matched_pairs(second, first) if not any(a is x and b is y for x, y in pairs)]


def difference(first: Group, second: Group) -> Difference:
    """First less second. Over seeds (Welch's t) where both sides have two or more; where one has, its spread stands for
    that of the other too; else from the intervals over images, as if those were independent, which is cautious for
    models scored on the same images.
    """
    means = [sum(m.value for m in group) / len(group) for group in (first, second)]
    fewer, more = sorted((first, second), key=len)
    if len(fewer) == 1 < len(more):
        spread = variance([m.value for m in more])
        half = student(len(more) - 1) * math.sqrt(spread * (1 + 1 / len(more)))
    elif len(fewer) > 1:
        errors = [variance([m.value for m in group]) / len(group) for group in (first, second)]
        total = sum(errors)
        freedom = total**2 / max(sum(e**2 / (len(g) - 1) for e, g in zip(errors, (first, second), strict=True)), 1e-300)
        half = student(freedom) * math.sqrt(total)
    else:
        half = math.hypot(*(_half_width(group) for group in (first, second)))
    gap = means[0] - means[1]
    n = min(sum(m.n for m in group) for group in (first, second))
    return Difference(f"{_name(first)} over {_name(second)}", gap, gap - half, gap + half, n)


def own_difference(group: Group) -> Difference:
    """Measurements that are themselves differences (paired over images) or correlations: over seeds (Student's t) where
    there are two or more, else the one with its interval over images.
    """
    lead = group[0]
    if len(group) > 1:
        mean, low, high = mean_interval([m.value for m in group])
    else:
        mean, low, high = lead.value, lead.low, lead.high
    layer = "" if lead["layer"] is None else f", layer {lead['layer']}"
    if lead.metric in CORRELATIONS and low is not None and high is not None:
        low, high = max(low, -1.0), min(high, 1.0)
    low, high = (-math.inf if low is None else low), (math.inf if high is None else high)
    return Difference(
        f"{_name(group)}{layer}: {lead.metric.replace('_', ' ')}", mean, low, high, sum(m.n for m in group)
    )


def judge(differences: Sequence[Difference], scale: str) -> Verdict:
    """Supported if every difference is surely positive, contradicted if any is surely not, else not resolved."""
    if not differences:
        return Verdict("not measured", NOT_MEASURED)
    if all(d.low > 0 for d in differences):
        status: Status = "supported"
    elif any(d.high < 0 or d.low == d.high == 0 for d in differences):
        status = "contradicted"
    else:
        status = "not resolved at this scale"
    least = min(differences, key=lambda d: d.mean)
    text = "; ".join(map(str, differences))
    return Verdict(status, text, least.mean, _finite(least.low), _finite(least.high), least.n, scale)


def scale_of(measurements: Iterable[Measurement]) -> str:
    """On what: sizes, data and seeds, in words."""
    found = list(measurements)
    if not found:
        return ""
    sizes = [m.num_parameters / 1e6 for m in found if m.num_parameters]
    span = f"{min(sizes):.3g} to {max(sizes):.3g} M parameters, " if sizes else ""
    data = ", ".join(sorted({m.data for m in found if m.data})) or "unnamed data"
    seeds = len({m.seed for m in found})
    return f"{span}{data}, n = {max(m.n for m in found)}, {seeds} seed{'s' if seeds > 1 else ''}"


def _name(group: Group) -> str:
    lead = group[0]
    return f"{lead.model}{f' ({lead.training})' if lead.training else ''}{f' x{len(group)}' if len(group) > 1 else ''}"


def _comparable(a: Measurement, b: Measurement) -> bool:
    """Same metric, data and training; of ranks, also blocks of about one size (C may follow the number of tokens); of
    dense tasks, the same on top."""
    chunks = sorted((a["chunk"] or 1, b["chunk"] or 1))
    same_task = (a.metric, a.data, a.training) == (b.metric, b.data, b.training)
    return same_task and all(a[name] == b[name] for name in ON_TOP) and chunks[1] <= 1.1 * chunks[0]


def _same_network(a: Measurement, b: Measurement) -> bool:
    return (a.metric, a.data, a.model, a.num_parameters) == (b.metric, b.data, b.model, b.num_parameters)


def _size_ratio(a: Measurement, b: Measurement) -> float:
    sizes = sorted((max(a.num_parameters, 1), max(b.num_parameters, 1)))
    return sizes[1] / sizes[0]


def _half_width(group: Group) -> float:
    """Half the interval of a mean over images; unknown intervals are infinitely wide."""
    widths = [(m.high - m.low) / 2 if m.low is not None and m.high is not None else math.inf for m in group]
    return math.sqrt(sum(width**2 for width in widths)) / len(widths)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
