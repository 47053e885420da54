"""The section on a study: its steps, the minutes of its parts, its trainings, and the learning rates tried."""

from typing import Any

from mixlab.analysis.comparisons import grouped
from mixlab.report.findings import Findings, Record
from mixlab.run import base_label

TUNED_BY = {
    "knn_top1": "kNN accuracy{} after DINO",
    "top1": "accuracy of the classifier after training with labels",
}
MOST_PARTS = 12  # of a study that are named one by one


def study_part(findings: Findings) -> list[dict[str, Any]]:
    """Each study with its minutes, its trainings where these were timed, and its tuning where it has one."""
    tunings = {record.run.path: record for record in findings.of("tuning")}
    found = []
    for record in findings.of("study"):
        timed = [each for each in findings.of("speedrun") if each.run.path.is_relative_to(record.run.path)]
        minutes = _minutes(record.content, timed)
        about = {
            "record": record,
            "content": record.content,
            "num_steps": sum(len(steps) for steps in record.content["steps"].values()),
            "minutes": minutes,
            "total_minutes": sum(minutes.values()),
            "in_full": bool(timed),
            "trainings": _trainings(timed),
            "tuning": _tuning(tunings[record.run.path]) if record.run.path in tunings else None,
        }
        found.append(about)
    return found


def _minutes(study: dict[str, Any], timed: list[Record]) -> dict[str, float]:
    """Of parts, as they were noted. If networks were timed, the study may have been made on several machines, which
    noted only what they did themselves: then what networks and steps took, each in full, wherever they ran."""
    if not timed:
        return _by_kind(study["minutes"])
    minutes: dict[str, float] = {}
    for content in (record.content for record in timed):
        name = "networks trained several at a time" if content.get("shares_gpu", False) else "networks"
        minutes[name] = minutes.get(name, 0.0) + content["seconds"]["all_in"] / 60
    trained = {f"train {record.run.path.name}" for record in timed}
    steps = {
        part: sum((step.get("seconds") or 0.0) / 60 for step in own if step.get("step") not in trained)
        for part, own in study["steps"].items()
    }
    return minutes | {kind: spent for kind, spent in _by_kind(steps).items() if spent}


def _trainings(timed: list[Record]) -> list[dict[str, Any]]:
    """A row for each network: seconds are means over its seeds, and none where one of them shared its GPU."""
    rows = []
    for group in grouped(timed, lambda record: base_label(record.run.path.name)):
        contents = [record.content for record in group]
        shared = any(content.get("shares_gpu", False) for content in contents)
        means = {name: sum(c["seconds"][name] for c in contents) / len(group) for name in ("training", "all_in")}
        about = {
            "label": base_label(group[0].run.path.name),
            "records": group,
            "recipe": contents[0]["recipe"],
            "steps": contents[0]["steps"],
            "images": contents[0]["images_seen"],
            "seconds": None if shared else means,
            "on": contents[0]["timed_on"],
            "commits": sorted({str(each["commit"]) for content in contents for each in content["sessions"]}),
        }
        rows.append(about)
    return rows


def _by_kind(minutes: dict[str, float]) -> dict[str, float]:
    """Minutes of parts; of many parts, those of one kind together: look-tiny-vit-s0 is one of `look`."""
    if len(minutes) <= MOST_PARTS:
        return minutes
    kinds: dict[str, float] = {}
    for name, spent in minutes.items():
        kind = name.partition("-")[0]
        kinds[kind] = kinds.get(kind, 0.0) + spent
    return kinds


def _tuning(record: Record) -> dict[str, Any]:
    """A table: a row per training and family, a column per learning rate."""
    trials, chosen = record.content["trials"], record.content["chosen"]
    rates = sorted({trial["lr"] for trial in trials})
    rows = []
    for training, families in chosen.items():
        for family, best in sorted(families.items()):
            own = {t["lr"]: t for t in trials if (t["training"], t["family"]) == (training, family)}
            rows.append({"training": training, "family": family, "best": best, "cells": [own.get(r) for r in rates]})
    steps = {trial["training"]: trial["steps"] for trial in trials}
    ks = {metric: {t.get("k") for t in trials if t["metric"] == metric} for metric in TUNED_BY}
    metrics = [name.format(_neighbours(ks[metric])) for metric, name in TUNED_BY.items() if ks[metric]]
    half = max((trial["high"] - trial["low"] for trial in trials), default=0.0) / 2
    about = {"record": record, "rates": rates, "rows": rows, "steps": steps, "n": trials[0]["n"] if trials else 0}
    return about | {"metrics": ", ".join(metrics), "half": half}


def _neighbours(ks: set[int | None]) -> str:
    """Where all trials say it, and the same: early ones do not."""
    (first, *more) = ks
    return "" if more or first is None else f" (k = {first})"
