"""Where the results of the page come from: commands and machines."""

from typing import Any

from mixlab.report.findings import Findings, Record


def commands_with_records(findings: Findings) -> list[dict[str, Any]]:
    """Commands with the records that they left."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in findings.files:
        origin = record.content.get("provenance") or {}
        if "command" in origin:
            n = _sample_size(record)
            key = (origin["command"], origin.get("seed"), n, record.run.path)
            row = {"records": [], "n": n, "command": origin["command"], "seed": origin.get("seed")}
            rows.setdefault(key, row)["records"].append(record)
    return list(rows.values())


def machines_of(findings: Findings) -> list[str]:
    """Machines, versions and dates of the results, each combination once."""
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
