"""Results that name their own table, pictures and captions: shown without knowing what was analysed."""

from pathlib import Path
from typing import Any

from mixlab.report.findings import Findings, Record
from mixlab.report.pictures import MIME, file_picture

KNOWN = ("matrices",)  # kinds with a section of their own


def exhibit_part(findings: Findings) -> list[dict[str, Any]]:
    """Each with its table and the pictures that are there."""
    return [_shown(r) for r in findings.records if r.content.get("exhibit") and r.kind not in KNOWN]


def _shown(record: Record) -> dict[str, Any]:
    about = record.content["exhibit"]
    width = len(about["columns"])
    rows = [[*row[:width], *[None] * (width - len(row))] for row in about["rows"]]
    folder = record.run.path / "figures"
    figures = [
        {"source": file_picture(place), "caption": figure["caption"], "name": figure["file"]}
        for figure in about["figures"]
        if (place := _inside(folder, figure["file"])) is not None
    ]
    return {"record": record, "about": about, "rows": rows, "figures": figures}


def _inside(folder: Path, name: str) -> Path | None:
    """A picture of that folder; a result may name no other file."""
    place = folder / name
    return place if place.parent == folder and place.suffix in MIME and place.is_file() else None
