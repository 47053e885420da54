"""Measurements as run directories stored them before they had a type: flat records that lean on their result."""

from dataclasses import fields
from typing import Any

from mixlab.errors import InputError
from mixlab.run.measurement import METRICS, Measurement, Subject

_SUBJECT = {item.name for item in fields(Subject)}
_OWN = ("blocks", "strategy", "register", "layer", "index", "map", "definition", "k", "mode")  # of a record alone
_PARTS = ("settings", "view", "inference")  # of a result: objects that hold choices
_BESIDE = {  # numbers that a record carried beside its own
    "minimum": "smallest_{metric}",
    "bound": "{metric}_bound",
    "peak_gib": "{pass}_peak_gib",
}


def measurements_of_older(record: dict[str, Any], result: dict[str, Any]) -> list[Measurement]:
    """The measurement of a flat record, and one more for each number that it carried beside."""
    missing = [key for key in ("metric", "value", "n") if record.get(key) is None]
    if missing:
        raise InputError(f"a measurement lacks {', '.join(missing)}; it has {', '.join(sorted(record))}")
    metric = record["metric"]
    if metric not in METRICS:
        raise InputError(f"unknown metric {metric!r}; known are {', '.join(METRICS)}")
    subject = Subject(**{key: record[key] for key in _SUBJECT if record.get(key) is not None})
    protocol = METRICS[metric].protocol(**_choices(record, result))
    seed = record.get("seed")
    common: dict[str, Any] = {"n": record["n"], "subject": subject, "protocol": protocol, "seed": seed}
    ends = {} if None in (record.get("low"), record.get("high")) else {"low": record["low"], "high": record["high"]}
    found = [Measurement(metric=metric, value=record["value"], **ends, **common)]
    for key, name in _BESIDE.items():
        if record.get(key) is not None:
            found.append(Measurement(metric=name.format(**record), value=record[key], **common))
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
    if record["metric"] == "shift_top1" or record["metric"] == "shifted_top1":
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
