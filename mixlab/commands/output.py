"""Output of commands: tables, progress bars, JSON, and the directory for results."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from mixlab.analysis.viewed_images import ViewedImages
from mixlab.console import console
from mixlab.data.masks import unpaired_note
from mixlab.errors import MissingExtraError, naming_extras
from mixlab.evaluation.machine import Machine, no_bar
from mixlab.evaluation.target import split_target
from mixlab.run import RunDirectory
from mixlab.run.directory import write_json
from mixlab.training.distributed import describe_workers, join_world, num_workers

DEFAULT_RUN = Path("runs/look")


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table; numbers are aligned right and never cut.

    One that is wider than the console is printed in parts, each with the columns that say which row it is.
    """
    rows = [list(row) for row in rows]
    numeric = [all(isinstance(row[i], int | float) or row[i] in ("", "-", None) for row in rows) for i in _all(columns)]
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, [*columns[i].split(), *(row[i] for row in cells)]), default=0) for i in _all(columns)]
    named = next((i for i in _all(columns) if any(isinstance(row[i], float) for row in rows)), len(columns))
    tight = sum(max(width, len(column)) + 3 for width, column in zip(widths, columns, strict=True)) >= console.width
    for number, part in enumerate(_parts(widths, named, console.width)):
        view = Table(title=None if number else title, title_justify="left", header_style="bold")
        for i in part:
            width = widths[i] if numeric[i] and tight else None
            view.add_column(columns[i], justify="right" if numeric[i] else "left", overflow="fold", width=width)
        for row in cells:
            view.add_row(*(row[i] for i in part))
        console.print(view)


def _all(columns: Sequence[str]) -> range:
    return range(len(columns))


def _parts(widths: Sequence[int], named: int, width: int) -> list[list[int]]:
    """Columns by number, in parts that fit: the first `named` in each of them, then as many others as there is room."""

    def needed(part: Sequence[int]) -> int:
        return sum(widths[i] + 3 for i in part) + 1  # a space on either side, and the lines

    names = list(range(named))
    parts = [names]
    for i in range(named, len(widths)):
        if needed([*parts[-1], i]) > width and len(parts[-1]) > named > 0:
            parts.append(names)
        parts[-1] = [*parts[-1], i]
    return parts


@contextmanager
def drawing() -> Iterator[None]:
    """Around code that draws figures: without matplotlib it is skipped, and a line says what to install."""
    try:
        with naming_extras():
            yield
    except MissingExtraError as missing:
        warn(f"no figures: {missing}")


def check_json(target: str | None) -> None:
    """Check before the work that the file for `emit` can be written."""
    if target in (None, "", "-"):
        return
    place = Path(str(target))
    if place.is_dir():
        raise IsADirectoryError(f"--json {target} is a folder; name a file in it")
    if not place.parent.is_dir():
        raise FileNotFoundError(f"--json {target}: {place.parent} is not a folder; create it, or name another file")
    if not os.access(place.parent, os.W_OK):
        raise PermissionError(f"--json {target}: {place.parent} may not be written to; name another file")


def emit(result: dict[str, Any], target: str | None) -> dict[str, Any]:
    """Write the result as JSON to a file, or to stdout for `-`."""
    if target == "-":
        print(json.dumps(result, indent=2, ensure_ascii=False).encode(errors="backslashreplace").decode())
    elif target:
        write_json(Path(target), result)
        console.print(f"written to {target}")
    return result


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Any]:
    """Yield a function that advances the bar by a number of steps, with an optional note."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(description, total=total)

        def step(count: int = 1, note: str | None = None) -> None:
            progress.update(task, advance=count, description=note or description)

        yield step


@contextmanager
def evaluation_machine(
    device: str | None, *, workers: int | None, batch: int = 256, features: Path | None = None
) -> Iterator[Machine]:
    """This process, or all that torchrun started; the first rank shows bars and notes."""
    with join_world(device) as world:

        def say(text: str) -> None:
            if world.is_first:
                warn(text)

        if world.is_first and workers is None:
            console.print(describe_workers(workers, world))
        yield Machine(
            world, num_workers(workers, world), batch, features, progress_bar if world.is_first else no_bar, say
        )


def print_left_out(images: ViewedImages) -> None:
    """Name the images that could not be read, and the files that have no partner."""
    notes = (images.skipped.summary() if len(images.skipped) else None, unpaired_note(images.source))
    for note in filter(None, notes):
        warn(note)


def open_run(run: Path | None, targets: Sequence[str]) -> RunDirectory:
    """The directory for results: --run, else the target if it is the only one and a run, else runs/look."""
    names = [split_target(text)[0] for text in targets]
    if run is None and len(names) == 1 and Path(names[0]).is_dir():
        run = Path(names[0])
    place = run or DEFAULT_RUN
    try:
        directory = RunDirectory.create(place)
    except OSError as error:
        raise OSError(f"cannot write to {place} ({error.strerror or error}); choose another --run") from error
    folders = (place, place / "results", place / "figures")
    if not all(os.access(folder, os.W_OK) for folder in folders if folder.is_dir()):
        raise PermissionError(f"{place} may not be written to; choose another --run")
    return directory


def percent(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 2)


def percent_interval(row: dict[str, Any]) -> str:
    """The ends of an interval in per cent."""
    return "-" if row["low"] is None else f"{100 * row['low']:.1f} to {100 * row['high']:.1f}"


def warn(note: str) -> None:
    console.print(note, style="yellow", soft_wrap=True)


def name_unreadable(images: dict[str, str]) -> None:
    if images:
        console.print(f"{len(images)} images could not be read: {next(iter(images))} ...")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)
