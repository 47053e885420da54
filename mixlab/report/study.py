"""The sections of a study: on what and how long, the learning rates tried, and cost against tokens."""

from collections.abc import Callable
from typing import Any

from mixlab.analysis import figures
from mixlab.report.records import Findings, Record
from mixlab.report.sections import Styles, inline


def study_part(findings: Findings) -> list[dict[str, Any]]:
    """Each study with its minutes, and its tuning where it has one."""
    tunings = {record.run.path: record for record in findings.of("tuning")}
    return [
        {
            "record": record,
            "content": record.content,
            "num_steps": sum(len(steps) for steps in record.content["steps"].values()),
            "tuning": _tuning(tunings[record.run.path]) if record.run.path in tunings else None,
        }
        for record in findings.of("study")
    ]


def scaling_part(record: Record, styles: Styles) -> dict[str, Any]:
    rows = [
        {**row, "rate": row["images_per_s"]["value"]}
        for row in sorted(record.content["rows"], key=lambda row: row["tokens"])
    ]
    shown = {}
    for kind, title in (("forward", "Forward"), ("training", "Forward and backward")):
        own = [row for row in rows if row["pass"] == kind]
        name = f"{title}: images per second"
        speeds = _by_label(own, lambda row: row["rate"])
        shown[name] = inline(figures.cost_by_tokens(speeds, "images/s", name, styles))
        if all(row["peak_gib"] for row in own):
            name = f"{title}: GiB per image"
            memory = _by_label(own, lambda row: row["peak_gib"] / row["batch"])
            shown[name] = inline(figures.cost_by_tokens(memory, "GiB / image", name, styles))
    table: dict[int, dict[str, dict[str, Any]]] = {}
    for row in rows:
        if row["pass"] == "training":
            table.setdefault(row["tokens"], {})[row["label"]] = row
    labels = list(dict.fromkeys(row["label"] for row in rows))
    return {"record": record, "charts": shown, "labels": labels, "table": table}


def _by_label(
    rows: list[dict[str, Any]], value: Callable[[dict[str, Any]], float]
) -> dict[str, tuple[list[int], list[float]]]:
    """Tokens and values of each model."""
    labels = dict.fromkeys(row["label"] for row in rows)
    own = {label: [row for row in rows if row["label"] == label] for label in labels}
    return {label: ([row["tokens"] for row in part], [value(row) for row in part]) for label, part in own.items()}


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
    return {"record": record, "rates": rates, "rows": rows, "steps": steps, "n": trials[0]["n"]}
