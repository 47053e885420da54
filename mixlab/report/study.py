"""The section on a study: its steps, the minutes of its parts, and the learning rates that were tried."""

from typing import Any

from mixlab.report.findings import Findings, Record

MOST_PARTS = 12  # of a study that are named one by one


def study_part(findings: Findings) -> list[dict[str, Any]]:
    """Each study with its minutes, and its tuning where it has one."""
    tunings = {record.run.path: record for record in findings.of("tuning")}
    return [
        {
            "record": record,
            "content": record.content,
            "num_steps": sum(len(steps) for steps in record.content["steps"].values()),
            "minutes": _by_kind(record.content["minutes"]),
            "tuning": _tuning(tunings[record.run.path]) if record.run.path in tunings else None,
        }
        for record in findings.of("study")
    ]


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
    return {"record": record, "rates": rates, "rows": rows, "steps": steps, "n": trials[0]["n"] if trials else 0}
