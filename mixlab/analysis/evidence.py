"""What the ledger rests on: flat measurements out of run directories.

A result file of a run may carry `measurements`, a list of records. Each has `metric`, `value` and `n`, `low` and
`high` (a 95 % interval) where known, says what was measured (`model`, `family`, `training`, `num_parameters`, `seed`,
`data`), and may add anything else (`layer`, `index`, `blocks`, ...). The ledger reads nothing but these records.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby
from typing import Any, Literal, NamedTuple

from mixlab.errors import InputError
from mixlab.run.directory import flat_records

Status = Literal["supported", "supported in part", "contradicted", "not resolved at this scale", "not measured"]

METRICS = {
    "binary_auc": "mean of max(AUC, 1 - AUC) over images",
    "binary_auc_raw": "mean AUC over images",
    "centre_matched_auc": "mean AUC among pairs at equal distance from the centre",
    "above_centre_prior": "binary_auc less that of a centre blob on the same images",
    "untrained": "binary_auc of the untrained twin",
    "above_untrained": "binary_auc less that of the untrained twin on the same images",
    "best_head_over_worst": "binary_auc of the best head less the worst's, on images that did not choose them",
    "middle_registers_over_first": "raw AUC of the middle third of the registers less that of the first",
    "middle_registers_over_last": "raw AUC of the middle third of the registers less that of the last",
    "untrained_middle_over_first": "the same of the untrained twin",
    "untrained_middle_over_last": "the same of the untrained twin",
    "register_auc_follows_probe": "rank correlation of registers' raw AUC with probes on them",
    "auc_follows_probe": "rank correlation of models' binary_auc with their probes",
    "off_diagonal_rank": "mean rank of off-diagonal blocks that are not zero; `definition` says which rank",
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
            raise InputError(f"{origin}: a measurement lacks {', '.join(missing)}; it has {', '.join(sorted(record))}")
        given = {key: value for key, value in record.items() if value is not None}
        own = {item.name for item in fields(cls)} - {"where"}
        known = {key: value for key, value in given.items() if key in own}
        if not all(isinstance(known.get(key, 0.0), int | float) for key in ("value", "low", "high", "n")):
            raise InputError(f"{origin}: value, low, high and n of {known['metric']} must be numbers")
        return cls(**known, where={key: value for key, value in given.items() if key not in own})

    def __getitem__(self, key: str) -> Any:
        return self.where.get(key)


@dataclass(frozen=True)
class Verdict:
    """What became of a claim. `measured` says in words and figures what was found, `scale` on what.

    `proven`: no training could have changed it.
    """

    status: Status
    measured: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    scale: str = ""
    proven: bool = False


NOT_MEASURED = "no run given here measured this"


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
            for record in flat_records(result, origin)
        )

    def select(self, *metrics: str, keep: Callable[[Measurement], bool] = lambda m: True) -> list[Measurement]:
        return [m for m in self.measurements if m.metric in metrics and keep(m)]

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


def is_headline(m: Measurement) -> bool:
    """A model's own accuracy, not a cell of an ablation or a probe on one register."""
    return m["blocks"] is None and m["register"] is None


def is_default_map(m: Measurement) -> bool:
    """A score of the paper's map of a whole model, not of a head, a register or another kind of map."""
    return m["index"] is None and m["map"] in (None, "cosine", "pooled_cosine")


def is_final_map(m: Measurement) -> bool:
    """Such a score after the last layer."""
    return is_default_map(m) and (m["layer"] is None or m["layer"] == m["num_layers"] - 1)


def _comparable(a: Measurement, b: Measurement) -> bool:
    """Same metric, data and training; of ranks, also blocks of about one size (C may follow the number of tokens); of
    dense tasks, the same on top."""
    chunks = sorted((a["chunk"] or 1, b["chunk"] or 1))
    same_task = (a.metric, a.data, a.training) == (b.metric, b.data, b.training)
    return same_task and all(a[name] == b[name] for name in ON_TOP) and chunks[1] <= 1.1 * chunks[0]


def _size_ratio(a: Measurement, b: Measurement) -> float:
    sizes = sorted((max(a.num_parameters, 1), max(b.num_parameters, 1)))
    return sizes[1] / sizes[0]
