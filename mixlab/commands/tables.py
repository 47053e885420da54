"""Tables as text. Names and numbers are never shortened: what is wider than the terminal is printed in parts, and
sentences are wrapped at words."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from rich.cells import cell_len

Rows = Sequence[Sequence[Any]]
GAP = 2  # spaces between columns, or one where that makes a table fit
PROSE = 24  # characters of a cell with spaces in it that may be wrapped
NARROW = 20  # characters that wrapped sentences keep at least


def tab_separated(columns: Sequence[str], rows: Rows) -> Iterator[str]:
    """For other programs: a header and one line per row, numbers without separators of thousands."""
    yield "\t".join(columns)
    for row in rows:
        yield "\t".join(_plain(value) for value in row)


def aligned(columns: Sequence[str], rows: Rows, width: int) -> Iterator[tuple[str, bool]]:
    """For people: lines, and whether each is a header. Numbers are aligned right.

    Of a table that is wider than `width`, each part has the columns that say which row it is: those before the first
    number.
    """
    numeric = [all(isinstance(row[i], int | float) or row[i] in ("", "-", None) for row in rows) for i in _all(columns)]
    places = [_decimals(row[i] for row in rows) for i in _all(columns)]
    cells = [[_cell(value, places[i]) for i, value in enumerate(row)] for row in rows]
    widths = [max(map(cell_len, [columns[i], *(row[i] for row in cells)])) for i in _all(columns)]
    words = [max((cell_len(word) for row in cells for word in row[i].split()), default=0) for i in _all(columns)]
    widths = _narrowed(widths, [_is_prose(row[i] for row in cells) for i in _all(columns)], words, width)
    named = next((i for i in _all(columns) if any(_is_figure(row[i]) for row in rows)), len(columns))
    gap = GAP if sum(widths) + GAP * (len(widths) - 1) <= width else 1
    for part in _parts(widths, named, width, gap):
        yield _line([columns[i] for i in part], part, widths, numeric, gap), True
        for row in cells:
            wrapped = [textwrap.wrap(row[i], widths[i], break_long_words=False, break_on_hyphens=False) for i in part]
            for level in range(max(1, *map(len, wrapped))):
                found = [lines[level] if level < len(lines) else "" for lines in wrapped]
                yield _line(found, part, widths, numeric, gap), False


def _all(columns: Sequence[str]) -> range:
    return range(len(columns))


def _is_figure(value: Any) -> bool:
    """A measured number, also with its interval; whole numbers say which row it is."""
    return isinstance(value, float) or (isinstance(value, str) and bool(re.match(r"[-+]?\d+\.\d", value)))


def _is_prose(cells: Iterator[str]) -> bool:
    return any(" " in cell and cell_len(cell) > PROSE for cell in cells)


def _narrowed(widths: list[int], prose: list[bool], words: list[int], width: int) -> list[int]:
    """Columns of sentences share the room that the others leave; each has room for its longest word."""
    free = width - GAP * (len(widths) - 1)
    if sum(widths) <= free:
        return widths
    fixed = {i: own for i, own in enumerate(widths) if not prose[i]}
    while True:
        share = max(NARROW, (free - sum(fixed.values())) // max(1, len(widths) - len(fixed)))
        long = {i: words[i] for i in range(len(widths)) if i not in fixed and words[i] > share}
        if not long:
            return [fixed.get(i, min(own, share)) for i, own in enumerate(widths)]
        fixed |= long


def _parts(widths: Sequence[int], named: int, width: int, gap: int) -> list[list[int]]:
    """Columns by number, in parts that fit: the first `named` in each of them, then as many others as there is room."""
    names = list(range(named))
    parts = [names]
    for i in range(named, len(widths)):
        needed = sum(widths[j] + gap for j in [*parts[-1], i]) - gap
        if needed > width and len(parts[-1]) > named > 0:
            parts.append(names)
        parts[-1] = [*parts[-1], i]
    return parts


def _line(cells: Sequence[str], part: Sequence[int], widths: Sequence[int], numeric: Sequence[bool], gap: int) -> str:
    padded = []
    for cell, i in zip(cells, part, strict=True):
        space = " " * (widths[i] - cell_len(cell))
        padded.append(space + cell if numeric[i] else cell + space)
    return (" " * gap).join(padded).rstrip()


def _decimals(values: Iterator[Any]) -> int | None:
    """Of numbers that were rounded, the decimals that all are shown with, so that their points are aligned; of others,
    none: they have four significant digits."""
    texts = [repr(value).partition(".")[2] for value in values if isinstance(value, float)]
    most = max((len(text) if text != "0" else 0 for text in texts), default=0)
    return most if most <= 2 and all(text.isdigit() for text in texts) else None


def _cell(value: Any, decimals: int | None = None) -> str:
    if isinstance(value, float):
        if decimals is not None:
            return f"{value:,.{decimals}f}"
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return _plain(value)


def _plain(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "".join(letter if letter.isprintable() else " " for letter in str(value))
