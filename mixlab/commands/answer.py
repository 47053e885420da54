"""What a command answers: tables and sentences on stdout, and the same as JSON where it is asked for.

On a terminal, tables are aligned; elsewhere they are tab-separated, without decoration. Notes and progress are on
stderr, as is everything else while `--json -` has stdout.
"""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixlab.commands.tables import aligned, tab_separated
from mixlab.console import console, put
from mixlab.errors import InputError
from mixlab.run.directory import is_kept, run_around
from mixlab.run.files import write_json


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Where results go. Every command has these options."""

    json: str | None = None  # also write the result as JSON to this file; "-": to stdout.

    @property
    def _to_stderr(self) -> bool:
        return self.json == "-"

    def check(self) -> None:
        """Check before the work that the file can be written."""
        if self.json in (None, "", "-"):
            return
        place = Path(str(self.json))
        if place.is_dir():
            raise IsADirectoryError(f"--json {place} is a folder; name a file in it")
        if place.exists() and not _is_json(place):
            raise InputError(f"--json {place} exists and is not a JSON object; name another file, or - for stdout")
        if place.exists() and (run := run_around(place)) and is_kept(place, run):
            raise InputError(f"--json {place} belongs to the run {run} and cannot be replaced; name another file")
        if not place.parent.is_dir():
            raise FileNotFoundError(f"--json {place}: {place.parent} is not a folder; create it, or name another file")
        if not os.access(place.parent, os.W_OK):
            raise PermissionError(f"--json {place}: {place.parent} is not writable; name another file")

    def line(self, text: str) -> None:
        """A sentence of the result; on a terminal, lines are broken between words."""
        wrap = textwrap.wrap if (sys.stderr if self._to_stderr else sys.stdout).isatty() else lambda whole, _: [whole]
        for part in text.splitlines() or [""]:
            for line in wrap(part, shutil.get_terminal_size().columns) or [""]:
                put(line, to_stderr=self._to_stderr)

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Print a table."""
        _print_table(title, columns, [list(row) for row in rows], to_stderr=self._to_stderr)

    def emit(self, result: dict[str, Any]) -> dict[str, Any]:
        """The result itself; written as JSON where that was asked for."""
        if self.json == "-":
            put(json.dumps(result, indent=2, ensure_ascii=False).encode(errors="backslashreplace").decode())
        elif self.json:
            write_json(Path(self.json), result)
            console.print(f"written to {self.json}")
        return result


@dataclass(frozen=True, kw_only=True)
class WideAnswer(Answer):
    """Of commands that measure more than 80 characters hold."""

    wide: bool = False  # print every column of the tables, not only the main ones.

    def table(
        self,
        title: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[Any]],
        *,
        more: Collection[str] = (),
        hint: bool = True,
    ) -> None:
        """Print a table; the columns in `more` only with --wide, as a `hint` says."""
        shown = [i for i, name in enumerate(columns) if self.wide or name not in more]
        super().table(title, [columns[i] for i in shown], ([row[i] for i in shown] for row in rows))
        if hint and len(shown) < len(columns) and sys.stderr.isatty():
            console.print(f"--wide shows {', '.join(more)}", style="dim")


def _is_json(file: Path) -> bool:
    """Whether it may be an earlier answer, by its first and last characters; so may an empty file."""
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        first = opened.read(1)
        opened.seek(-min(2, file.stat().st_size), os.SEEK_END)
        return (first, opened.read().strip()[-1:]) in ((b"{", b"}"), (b"", b""))


def _print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, to_stderr: bool) -> None:
    """Of a table for a program, the title is a note."""
    if not (sys.stderr if to_stderr else sys.stdout).isatty():
        console.print(title)
        for text in tab_separated(columns, rows):
            put(text, to_stderr=to_stderr)
        return
    width = shutil.get_terminal_size().columns
    for line in textwrap.wrap(title, width):
        put(line, bold=True, to_stderr=to_stderr)
    for text, is_header in aligned(columns, rows, width):
        put(text, bold=is_header, to_stderr=to_stderr)
