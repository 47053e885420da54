"""One number of one network: metric, value, interval and protocol; at the end, the reader of older run directories.

Evaluators and analyses return these, run directories store them, and all comparisons, verdicts and charts
read them. Two numbers are the same measurement if metric, network, protocol and seed are equal; else both are kept.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixlab.errors import InputError, short
from mixlab.run import codec
from mixlab.run.protocols import BY_IMAGE, CHOICES, METRICS, PROTOCOLS, EvaluationProtocol

UNTRAINED = "untrained"
_MOST = 1e15  # of any number here; beyond it, sums of squares would leave what a float holds
_SEED = re.compile(r"[-_]s(eed)?\d+$")  # of a label such as vit-s0


def base_label(label: str) -> str:
    """A label without the seed at its end."""
    return _SEED.sub("", label)


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
    native_image: int | None = None  # the side of the images it was made for; None in older run directories
    native_crop_share: float | None = None  # of a side, that its own centre crop keeps; None likewise
    step: int | None = field(default=None, compare=False)  # of the checkpoint of a run that was not finished

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
    """A number with its interval, the network, the protocol and the seed. Checked when it is made."""

    metric: str
    value: float
    n: int  # images, or whatever the value is a mean over
    subject: Subject
    protocol: EvaluationProtocol
    seed: int | None = None  # of the network's training, or of its untrained weights
    low: float | None = None  # the 95 % interval
    high: float | None = None
    by_image: NDArray[np.float64] | None = field(default=None, compare=False, repr=False)  # or by group of images

    def __post_init__(self) -> None:
        _check_metric(self.metric)
        metric = METRICS[self.metric]
        if type(self.protocol) is not metric.protocol:
            given, wanted = type(self.protocol).__name__, metric.protocol.__name__
            raise InputError(f"{self.metric} was given a {given}; it is measured by a {wanted}")
        for name in ("value", "low", "high"):
            number = getattr(self, name)
            if number is None and name != "value":
                continue
            if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) < _MOST:
                raise InputError(f"{name} of {self.metric} is {short(number)}; it must be a finite number")
        if not metric.lowest <= self.value <= metric.highest:
            raise InputError(f"{self.metric} is {self.value}; it lies between {metric.lowest} and {metric.highest}")
        if (self.low is None) != (self.high is None) or (self.low or 0) > (self.high or 0):
            raise InputError(f"the interval of {self.metric} is {self.low} to {self.high}; give both ends, in order")
        if isinstance(self.n, bool) or not isinstance(self.n, int) or not 1 <= self.n < _MOST:
            raise InputError(f"n of {self.metric} is {short(self.n)}; it must be a whole number from 1 on")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise InputError(f"seed of {self.metric} is {short(self.seed)}; it must be a whole number, or null")
        if self.by_image is not None and (self.by_image.ndim != 1 or np.isnan(self.by_image).all()):
            raise InputError(f"the scores of images of {self.metric} are not a list of numbers")
        if self.by_image is not None and not abs(np.nanmean(self.by_image) - self.value) < 1e-3:
            mean = np.nanmean(self.by_image)
            raise InputError(f"{self.metric} is {self.value}, but the scores of its images have the mean {mean:.6g}")

    @classmethod
    def of(
        cls, metric: str, estimate: Any, *, subject: Subject, protocol: EvaluationProtocol, seed: int | None
    ) -> "Measurement":
        """From an estimate of `mixlab.statistics`: value, low, high and n; and the scores of images, where it has them
        and the metric keeps them (not of every head and register)."""
        given: dict[str, Any] = {"metric": metric, "value": estimate.value, "n": estimate.n, "seed": seed}
        if None not in (estimate.low, estimate.high):
            given |= {"low": estimate.low, "high": estimate.high}
        if metric in BY_IMAGE and getattr(protocol, "index", None) is None:
            given["by_image"] = getattr(estimate, "by_image", None)
        return cls(**given, subject=subject, protocol=protocol)

    @cached_property
    def identity(self) -> str:
        """A key that is equal if and only if two numbers are the same measurement."""
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
        given: dict[str, Any] = {"metric": self.metric, "value": self.value, "low": self.low, "high": self.high}
        given |= {"n": self.n, "seed": self.seed, "subject": asdict(self.subject), "protocol": self.protocol.to_json()}
        return given if self.by_image is None else given | {"by_image": scores_to_text(self.by_image)}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "Measurement":
        _check_complete(record, "metric", "value", "n", "subject", "protocol")
        numbers: dict[str, Any] = {key: record.get(key) for key in ("metric", "value", "low", "high", "n", "seed")}
        subject = codec.from_json(Subject, record["subject"], where="subject")
        kinds = {EvaluationProtocol: PROTOCOLS}
        protocol = codec.from_json(EvaluationProtocol, record["protocol"], kinds=kinds, where="protocol")
        scores = None if record.get("by_image") is None else scores_from_text(record["by_image"])
        return cls(**numbers, subject=subject, protocol=protocol, by_image=scores)


def scores_to_text(scores: NDArray[np.float64]) -> str:
    """The scores of images as text: "0110" for wrong and right answers, else numbers with four decimals."""
    if np.isin(scores, (0.0, 1.0)).all():
        return "".join("01"[int(score)] for score in scores)
    return " ".join(f"{score:.4f}" for score in scores)


def scores_from_text(text: object) -> NDArray[np.float64]:
    if not isinstance(text, str):
        raise InputError(f"scores of images are {short(text)}; they are one text of zeros and ones, or of numbers")
    numbers = text.split() if " " in text or "." in text else list(text)
    try:
        return np.array([float(number) for number in numbers])
    except ValueError as error:
        raise InputError(
            f"scores of images are {text[:40]!r}; they are zeros and ones, or numbers with spaces"
        ) from error


_FACTS = frozenset(item.name for item in fields(Subject))


def once(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Each measurement once, however many files hold it; of one that was repeated, the last, with the scores of images
    that any of them has."""
    found: dict[str, Measurement] = {}
    for each in measurements:
        known = found.get(each.identity)
        scores = None if known is None or each.by_image is not None else known.by_image
        if known is not None and scores is not None and abs(known.value - each.value) < 1e-4:  # two ways of rounding
            each = replace(each, by_image=scores)
        found[each.identity] = each
    return list(found.values())


def _check_metric(metric: object) -> None:
    if not isinstance(metric, str) or metric not in METRICS:
        raise InputError(f"unknown metric {short(metric)}; known are {', '.join(METRICS)}")


def _check_complete(record: dict[str, Any], *keys: str) -> None:
    if missing := [key for key in keys if record.get(key) is None]:
        raise InputError(f"a measurement lacks {', '.join(missing)}; it has {', '.join(sorted(record))}")


# Older run directories: flat records from before measurements had a type.
_OWN = ("blocks", "strategy", "register", "layer", "index", "map", "definition", "k", "mode")  # of a record alone
_PARTS = ("settings", "view", "inference")  # of a result: objects that hold choices
_BESIDE = {  # other numbers in the same record
    "minimum": "smallest_{metric}",
    "bound": "{metric}_bound",
    "peak_gib": "{pass}_peak_gib",
}


def measurements_of_older(record: dict[str, Any], result: dict[str, Any]) -> list[Measurement]:
    """The measurement of a flat record, completed from its result, and one for each other number in the record."""
    _check_complete(record, "metric", "value", "n")
    metric = record["metric"]
    _check_metric(metric)
    facts = {key: record[key] for key in _FACTS if record.get(key) is not None}
    subject = codec.from_json(Subject, facts, where="a measurement")
    protocol = METRICS[metric].protocol(**_choices(record, result))
    seed = record.get("seed")
    common: dict[str, Any] = {"n": record["n"], "subject": subject, "protocol": protocol, "seed": seed}
    ends = {} if None in (record.get("low"), record.get("high")) else {"low": record["low"], "high": record["high"]}
    raw = _object(result.get("raw_auc_by_image")).get(str(record.get("label"))) if metric == "binary_auc" else None
    try:
        scores = None if raw is None else np.array(raw, dtype=np.float64)  # None as NaN
    except (ValueError, TypeError) as error:
        raise InputError(f"raw_auc_by_image is {short(raw)}; it is a list of numbers for each label") from error
    by_image = None if scores is None else np.maximum(scores, 1 - scores)
    found = [Measurement(metric=metric, value=record["value"], by_image=by_image, **ends, **common)]
    for key, name in _BESIDE.items():
        if record.get(key) is not None:
            beside = name.format_map({"metric": metric, "pass": record.get("pass")})
            found.append(Measurement(metric=beside, value=record[key], **common))
    return found


def _choices(record: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """The protocol's fields, from the record, else from its result and the objects in it."""
    known = {item.name for item in fields(METRICS[record["metric"]].protocol)}
    inside = {key: value for part in _PARTS for key, value in _object(result.get(part)).items()}
    about = {
        key: value for key, value in (inside | result).items() if record["metric"] == "knn_top1" or key not in _OWN
    }
    inference = _object(result.get("inference"))
    given = about | {key: value for key, value in inference.items() if key == "mode"} | record
    if record["metric"] in ("shift_top1", "shifted_top1"):
        data, _, change = str(record.get("data", "")).rpartition(", ")
        given |= {"data": data, "change": change}
    if record["metric"] in ("knn_top1", "probe_top1") and given.get("label_share", 1.0) != 1.0:
        given["label_seed"] = result.get("seed")
    if "initial_weights" in known:
        given["initial_weights"] = result.get("weights")
    chosen = {key: given[key] for key in known if given.get(key) is not None}
    for key in ("layers", "heads", "lrs", "weight_decays", "settings", "num_train"):  # other things had these names
        if isinstance(chosen.get(key), dict | list):
            del chosen[key]
    return {key: tuple(value) if isinstance(value, list) else value for key, value in chosen.items()}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
