"""How commands speak: tables and progress for people, JSON for programs."""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from mixlab.console import console
from mixlab.run.directory import write_json


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table; numbers are aligned right."""
    rows = [list(row) for row in rows]
    view = Table(title=title, title_justify="left", header_style="bold")
    for index, column in enumerate(columns):
        numeric = all(isinstance(row[index], int | float) or row[index] in ("", "-", None) for row in rows)
        view.add_column(column, justify="right" if numeric else "left")
    for row in rows:
        view.add_row(*(_cell(value) for value in row))
    console.print(view)


def check_json(target: str | None) -> None:
    """Refuse a file for `emit` that cannot be written, before the work."""
    if target in (None, "", "-"):
        return
    place = Path(str(target))
    if place.is_dir():
        raise IsADirectoryError(f"--json {target} is a folder; name a file in it")
    if not place.parent.is_dir():
        raise FileNotFoundError(f"--json {target}: {place.parent} is no folder; make it, or name another file")
    if not os.access(place.parent, os.W_OK):
        raise PermissionError(f"--json {target}: {place.parent} may not be written to; name another file")


def emit(result: dict[str, Any], target: str | None) -> dict[str, Any]:
    """Write the result as JSON to a file, or to stdout for `-`."""
    if target == "-":
        json.dump(result, sys.stdout, indent=2, ensure_ascii=False)
        print()
    elif target:
        write_json(Path(target), result)
        console.print(f"written to {target}")
    return result


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)
