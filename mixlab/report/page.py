"""Run directories as one self-contained page: every figure inside, nothing fetched."""

import base64
import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from mixlab.run import RunDirectory
from mixlab.run.directory import write_aside

MIME = {".svg": "image/svg+xml", ".png": "image/png"}


def write_report(runs: list[RunDirectory], out: Path) -> Path:
    """Write the page of these runs. Results that carry a title are shown; their JSON is on the page, too."""
    environment = Environment(
        loader=PackageLoader("mixlab.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    sections = [section for run in runs for section in _sections(run)]
    if not sections:
        raise ValueError(f"nothing to report in {', '.join(str(run.path) for run in runs)}: no results with a title")
    page = environment.get_template("page.html").render(sections=sections)
    write_aside(out, lambda file: file.write(page.encode()))
    return out


def _sections(run: RunDirectory) -> list[dict[str, Any]]:
    sections = []
    for name, result in run.results().items():
        if "title" not in result:
            continue
        figures = [{**figure, "source": _embed(run.path / "figures" / figure["file"])} for figure in result["figures"]]
        sections.append({**result, "figures": figures, "run": run.path.name, "name": name, "json": _dump(result)})
    return sections


def _embed(path: Path) -> str:
    return f"data:{MIME[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"


def _dump(result: dict[str, Any]) -> str:
    return json.dumps(result, indent=2, ensure_ascii=False)
