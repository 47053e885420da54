"""One number of one network: what was measured, how, and how sure it is.

Every evaluator and analysis makes these, run directories store them, and whatever compares, judges or draws numbers
reads them. Two numbers are the same measurement if metric, network, protocol and seed are equal; otherwise both stand.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

from mixlab.errors import InputError
from mixlab.run import codec
from mixlab.run.protocols import (
    CHOICES,
    PROTOCOLS,
    AccuracyProtocol,
    DetectionProtocol,
    EvaluationProtocol,
    KnnProtocol,
    MapProtocol,
    ProbeProtocol,
    RankProtocol,
    RobustnessProtocol,
    SegmentationProtocol,
    SpeedProtocol,
)

UNTRAINED = "untrained"
_SEED = re.compile(r"[-_]s(eed)?\d+$")  # of a label such as vit-s0


def base_label(label: str) -> str:
    """A label without the seed at its end."""
    return _SEED.sub("", label)


class Metric(NamedTuple):
    about: str
    protocol: type[EvaluationProtocol]
    lowest: float = 0.0
    highest: float = 1.0


_ANY = math.inf
METRICS = {
    "knn_top1": Metric("accuracy of nearest neighbours", KnnProtocol),
    "probe_top1": Metric("accuracy of a linear probe", ProbeProtocol),
    "top1": Metric("accuracy of the classifier that was trained with the network", AccuracyProtocol),
    "robust_top1": Metric("accuracy on a shifted set", RobustnessProtocol),
    "shift_top1": Metric("accuracy on images that were changed", RobustnessProtocol),
    "shifted_top1": Metric("mean accuracy over the changes", RobustnessProtocol),
    "miou": Metric("mean IoU of semantic segmentation", SegmentationProtocol),
    "box_ap": Metric("COCO AP of boxes", DetectionProtocol),
    "mask_ap": Metric("COCO AP of masks", DetectionProtocol),
    "binary_auc": Metric("mean of max(AUC, 1 - AUC) over images", MapProtocol),
    "binary_auc_raw": Metric("mean AUC over images", MapProtocol),
    "centre_matched_auc": Metric("mean AUC among pairs of pixels at equal distance from the centre", MapProtocol),
    "centre_prior": Metric("binary_auc of a centre blob on the same images", MapProtocol),
    "above_centre_prior": Metric("binary_auc minus that of a centre blob, same images", MapProtocol, -1),
    "untrained": Metric("binary_auc of the untrained twin", MapProtocol),
    "above_untrained": Metric("binary_auc minus that of the untrained twin, same images", MapProtocol, -1),
    "best_head_over_worst": Metric("best head minus worst head, on images that did not choose them", MapProtocol, -1),
    "middle_registers_over_first": Metric("raw AUC of the middle third of registers minus the first", MapProtocol, -1),
    "middle_registers_over_last": Metric("raw AUC of the middle third of registers minus the last", MapProtocol, -1),
    "untrained_middle_over_first": Metric("the same of the untrained twin", MapProtocol, -1),
    "untrained_middle_over_last": Metric("the same of the untrained twin", MapProtocol, -1),
    "register_auc_follows_probe": Metric("rank correlation of registers' AUC with their probes", MapProtocol, -1),
    "auc_follows_probe": Metric("rank correlation of models' Binary-AUC with their probes", MapProtocol, -1),
    "diagonal_rank": Metric("mean rank of diagonal blocks", RankProtocol, 0, _ANY),
    "off_diagonal_rank": Metric("mean rank of off-diagonal blocks that are not zero", RankProtocol, 0, _ANY),
    "smallest_diagonal_rank": Metric("the lowest of them", RankProtocol, 0, _ANY),
    "smallest_off_diagonal_rank": Metric("the lowest of them", RankProtocol, 0, _ANY),
    "diagonal_rank_bound": Metric("what theory allows a diagonal block", RankProtocol, 0, _ANY),
    "off_diagonal_rank_bound": Metric("what theory allows an off-diagonal block", RankProtocol, 0, _ANY),
    "mask_rank": Metric("largest rank of an off-diagonal block of a scan's mask", RankProtocol, 0, _ANY),
    "rank_bound_holds": Metric("1 if no block exceeds its bound, else 0", RankProtocol),
    "forward_images_per_s": Metric("speed of the forward pass", SpeedProtocol, 0, _ANY),
    "training_images_per_s": Metric("speed of forward and backward", SpeedProtocol, 0, _ANY),
    "forward_peak_gib": Metric("peak memory of the forward pass", SpeedProtocol, 0, _ANY),
    "training_peak_gib": Metric("peak memory of forward and backward", SpeedProtocol, 0, _ANY),
    "images_per_s": Metric("speed of the forward pass", SpeedProtocol, 0, _ANY),
}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The network that was measured."""

    label: str = ""  # its name in tables
    model: str = ""  # its architecture
    family: str = ""  # the kind of its mixer
    training: str = ""  # "dino", "supervised", ..., or UNTRAINED
    num_parameters: int = 0
    num_layers: int | None = None
    num_registers: int = 0
    causal: bool = False
    weights: str | None = None  # a digest of its weights; None in older run directories

    @property
    def name(self) -> str:
        """Its label without the seed: repetitions have it in common."""
        return base_label(self.label)

    @property
    def identity(self) -> tuple[Any, ...]:
        """Its weights where they are known: a network stays the same under another label."""
        name = self.label if self.weights is None else self.weights
        return (name, self.model, self.training, self.num_parameters, self.num_registers, self.causal)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    metric: str
    value: float
    n: int  # images, or whatever the value is a mean over
    subject: Subject
    protocol: EvaluationProtocol
    seed: int | None = None  # of the network's training, or of its untrained weights
    low: float | None = None  # the 95 % interval
    high: float | None = None

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise InputError(f"unknown metric {self.metric!r}; known are {', '.join(METRICS)}")
        metric = METRICS[self.metric]
        if type(self.protocol) is not metric.protocol:
            given, wanted = type(self.protocol).__name__, metric.protocol.__name__
            raise InputError(f"{self.metric} was given a {given}; it is measured by a {wanted}")
        for name in ("value", "low", "high"):
            number = getattr(self, name)
            if number is None and name != "value":
                continue
            if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
                raise InputError(f"{name} of {self.metric} is {number!r}; it must be a finite number")
        if not metric.lowest <= self.value <= metric.highest:
            raise InputError(f"{self.metric} is {self.value}; it lies between {metric.lowest} and {metric.highest}")
        if (self.low is None) != (self.high is None) or (self.low or 0) > (self.high or 0):
            raise InputError(f"the interval of {self.metric} is {self.low} to {self.high}; give both ends, in order")
        if isinstance(self.n, bool) or not isinstance(self.n, int) or self.n < 1:
            raise InputError(f"n of {self.metric} is {self.n!r}; it must be a whole number from 1 on")

    @classmethod
    def of(
        cls, metric: str, estimate: Any, *, subject: Subject, protocol: EvaluationProtocol, seed: int | None
    ) -> "Measurement":
        """From an estimate of `mixlab.statistics`: value, low, high and n."""
        ends = {} if None in (estimate.low, estimate.high) else {"low": estimate.low, "high": estimate.high}
        return cls(
            metric=metric, value=estimate.value, n=estimate.n, subject=subject, protocol=protocol, seed=seed, **ends
        )

    @cached_property
    def identity(self) -> str:
        """The same for two numbers if and only if they are the same measurement."""
        parts = (self.metric, self.subject.identity, self.protocol.to_json(), self.seed)
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    def __getitem__(self, name: str) -> Any:
        """A choice of its protocol or a fact of its subject by name; None where it does not apply."""
        if name in _FACTS:
            return getattr(self.subject, name)
        if name not in CHOICES:
            raise KeyError(f"no protocol has a choice {name!r}, and no subject a fact of that name")
        return getattr(self.protocol, name, None)

    def to_json(self) -> dict[str, Any]:
        given = {"metric": self.metric, "value": self.value, "low": self.low, "high": self.high, "n": self.n}
        return given | {"seed": self.seed, "subject": asdict(self.subject), "protocol": self.protocol.to_json()}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "Measurement":
        missing = [key for key in ("metric", "value", "n", "subject", "protocol") if record.get(key) is None]
        if missing:
            raise InputError(f"a measurement lacks {', '.join(missing)}; it has {', '.join(sorted(record))}")
        numbers: dict[str, Any] = {key: record.get(key) for key in ("metric", "value", "low", "high", "n", "seed")}
        subject = codec.from_json(Subject, record["subject"], where="subject")
        kinds = {EvaluationProtocol: PROTOCOLS}
        protocol = codec.from_json(EvaluationProtocol, record["protocol"], kinds=kinds, where="protocol")
        return cls(**numbers, subject=subject, protocol=protocol)


_FACTS = frozenset(item.name for item in fields(Subject))


def once(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Each measurement once, however many files hold it; of one that was repeated, the last."""
    return list({measurement.identity: measurement for measurement in measurements}.values())
