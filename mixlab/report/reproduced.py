"""Figures of a paper beside ours, as tables show them: results of `mixlab reproduce`."""

from typing import Any

from mixlab.report.findings import Findings
from mixlab.statistics import with_interval

OURS, DIFFERENCE = ("ours", "low", "high"), ("difference", "difference_low", "difference_high")  # of a row


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
    form = f".{row['digits']}f"
    ours, gap = ([row[name] for name in names] for names in (OURS, DIFFERENCE))
    return {
        "ours": "" if ours[0] is None else with_interval(*ours, form=form),
        "paper": str(row.get("said") or "") if row["paper"] is None else f"{row['paper']:{form}}",
        "difference": "" if gap[0] is None else with_interval(*gap, form=f"+{form}"),
    }
