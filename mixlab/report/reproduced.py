"""Figures of a paper beside ours, as tables show them: results of `mixlab reproduce`."""

from typing import Any

from mixlab.report.findings import Findings


def reproduced_part(findings: Findings) -> list[dict[str, Any]]:
    """Each item with its measured rows; items of which nothing was measured are left out."""
    found = []
    for record in findings.of("reproduce"):
        rows = [row for row in record.content["rows"] if row["ours"] is not None]
        if rows:
            lines = [{"row": row["row"], "column": row["column"], "n": row["n"], **beside(row)} for row in rows]
            lacking = len(record.content["rows"]) - len(rows)
            found.append({"record": record, "content": record.content, "lines": lines, "lacking": lacking})
    return found


def beside(row: dict[str, Any]) -> dict[str, str]:
    """Ours, the paper's and the difference as text, with intervals in brackets; what a picture says in its place."""
    return {
        "ours": _with_interval(row, "ours", "low", "high", ""),
        "paper": str(row.get("said") or "") if row["paper"] is None else f"{row['paper']:.{row['digits']}f}",
        "difference": _with_interval(row, "difference", "difference_low", "difference_high", "+"),
    }


def _with_interval(row: dict[str, Any], name: str, low: str, high: str, sign: str) -> str:
    places = row["digits"]
    if row[name] is None:
        return ""
    text = f"{row[name]:{sign}.{places}f}"
    known = row[low] is not None and row[high] is not None
    return f"{text} [{row[low]:{sign}.{places}f}, {row[high]:{sign}.{places}f}]" if known else text
