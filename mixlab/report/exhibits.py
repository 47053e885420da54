"""Results that name their own table, pictures and captions: shown without knowing what was analysed."""

from typing import Any

from mixlab.analysis.exhibit import figure_files
from mixlab.report.findings import Findings, Record
from mixlab.report.pictures import file_picture

KNOWN = ("matrices",)  # kinds with a section of their own


def exhibit_part(findings: Findings) -> list[dict[str, Any]]:
    """Each with its table and the pictures that are there."""
    return [_shown(r) for r in findings.records if r.content.get("exhibit") and r.kind not in KNOWN]


def _shown(record: Record) -> dict[str, Any]:
    about = record.content["exhibit"]
    width = len(about["columns"])
    rows = [[*row[:width], *[None] * (width - len(row))] for row in about["rows"]]
    figures = [
        {"source": file_picture(place), "caption": caption, "name": place.name}
        for place, caption in figure_files(record.run, about["figures"])
    ]
    return {"record": record, "about": about, "rows": rows, "figures": figures}
