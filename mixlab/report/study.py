"""What the page says besides its charts: the study and its learning rates, the ledger, commands and machines."""

from collections import Counter
from typing import Any

from mixlab.analysis.claims.evidence import Status
from mixlab.report.findings import Findings, Record


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


def ledger_part(record: Record) -> dict[str, Any]:
    claims = record.content["claims"]
    counts = Counter(claim["status"] for claim in claims)
    return {"record": record, "claims": claims, "counts": {str(s): counts[s] for s in Status if counts[s]}}


def chance_level(findings: Findings) -> float | None:
    """The accuracy of guessing, where all kNN and probes had as many classes."""
    records = [record for kind in ("knn", "probe") for record in findings.of(kind)]
    counts = {record.content["num_classes"] for record in records if record.content.get("num_classes")}
    return 1 / counts.pop() if len(counts) == 1 else None


def commands_with_records(findings: Findings) -> list[dict[str, Any]]:
    """Commands with the records that they left."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in findings.records:
        origin = record.content.get("provenance") or {}
        if "command" in origin:
            n = _sample_size(record)
            key = (origin["command"], origin.get("seed"), n, record.run.path)
            row = {"records": [], "n": n, "command": origin["command"], "seed": origin.get("seed")}
            rows.setdefault(key, row)["records"].append(record)
    return list(rows.values())


def machines_of(findings: Findings) -> list[str]:
    """What the records were made on, and when, each combination once."""
    found: dict[str, list[str]] = {}
    for record in findings.records:
        origin = record.content.get("provenance") or {}
        machine, versions = origin.get("machine") or {}, origin.get("versions") or {}
        if machine:
            place = f"{machine.get('processor')} ({machine.get('device')})"
            place += "".join(f", {name} {versions[name]}" for name in ("torch", "mixlab") if versions.get(name))
            commit = f" at {origin['commit']}" if origin.get("commit") else ""
            found.setdefault(place + commit, []).append(str(origin.get("date"))[:10])
    return [f"{place}, {' to '.join(sorted({min(dates), max(dates)}))}" for place, dates in found.items()]


def _sample_size(record: Record) -> int | None:
    content = record.content
    if record.kind == "auc" and content["rows"]:
        return content["rows"][0]["auc"]["n"]
    if isinstance(content.get("images"), list):
        return len(content["images"])
    return content.get("num_images") or (record.measurements[0].n if record.measurements else None)
