"""What commands share around their answers: progress bars, notes, the directory for results, and how training ends.

Imports of whatever needs torch are late, so that `--help` need not wait for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from mixlab.console import console
from mixlab.errors import MissingExtraError, WorkError, counted, few, naming_extras
from mixlab.run import RunDirectory

if TYPE_CHECKING:
    from mixlab.analysis.viewed_images import ViewedImages
    from mixlab.evaluation.machine import Machine

DEFAULT_RUN = Path("runs/look")


@contextmanager
def drawing() -> Iterator[None]:
    """Around code that draws figures: without matplotlib it is skipped, and a line says what to install."""
    try:
        with naming_extras():
            yield
    except MissingExtraError as missing:
        warn(f"no figures: {missing}")


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Any]:
    """Yield a function that advances the bar by a number of steps, with an optional note."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),  # which alone gives way where the terminal is narrow
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
    )
    hidden = not console.is_terminal  # a log would get an empty line
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, disable=hidden) as progress:
        task = progress.add_task(description, total=total)

        def step(count: int = 1, note: str | None = None) -> None:
            progress.update(task, advance=count, description=note or description)

        yield step


@contextmanager
def evaluation_machine(
    device: str | None, *, workers: int | None, batch: int = 256, features: Path | None = None
) -> Iterator[Machine]:
    """This process, or all that torchrun started; the first rank shows bars and notes. `features` is a folder of a run,
    which is removed if nothing was written."""
    from mixlab.evaluation.machine import Machine, no_bar
    from mixlab.training.distributed import join_world, num_workers

    with join_world(device) as world, ExitStack() as stack:
        if features is not None and world.is_first:
            stack.enter_context(RunDirectory(features.parent).kept_if_used())

        def say(text: str) -> None:
            if world.is_first:
                warn(text)

        yield Machine(
            world, num_workers(workers, world), batch, features, progress_bar if world.is_first else no_bar, say
        )


def print_left_out(images: ViewedImages) -> None:
    """Name the images that could not be read, and the files that have no partner."""
    from mixlab.data.masks import unpaired_note

    notes = (images.skipped.summary() if len(images.skipped) else None, unpaired_note(images.source))
    for note in filter(None, notes):
        warn(note)


def open_run(run: Path | None, targets: Sequence[str]) -> RunDirectory:
    """The directory for results: --run, else the target if it is the only one and a run, else runs/look.

    It is checked, and created with the first result: a command that is refused leaves no empty folder.
    """
    from mixlab.evaluation.target import split_target

    names = [split_target(text)[0] for text in targets]
    if run is None and len(names) == 1 and Path(names[0]).is_dir():
        run = RunDirectory.open(names[0]).path  # nothing is written into a folder that is no run
    place = run or DEFAULT_RUN
    nearest = next(each for each in (place, *place.absolute().parents) if os.path.lexists(each))
    if not nearest.is_dir():
        raise NotADirectoryError(f"cannot write to {place} ({nearest} is not a directory); choose another --run")
    folders = (nearest, place / "results", place / "figures")
    if not all(os.access(folder, os.W_OK) for folder in folders if folder.is_dir()):
        raise PermissionError(f"{place} is not writable; choose another --run")
    return RunDirectory(place)


def percent(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 2)


def percent_interval(row: dict[str, Any]) -> str:
    """The ends of an interval in per cent, with the decimals of `percent`: those of 0.01 % are not both 0.0."""
    return "-" if row["low"] is None else f"{100 * row['low']:.2f} to {100 * row['high']:.2f}"


def with_margin(figure: dict[str, Any], form: str = ".3f") -> str:
    """A mean and its margin: the larger half of its 95 % interval. `--wide` and the JSON have both ends."""
    if figure["mean"] is None:
        return "-"
    if figure["low"] is None:
        return format(figure["mean"], form)
    margin = max(figure["mean"] - figure["low"], figure["high"] - figure["mean"])
    return f"{figure['mean']:{form}} ± {margin:{form.removeprefix('+')}}"


def warn(note: str) -> None:
    console.print(note, style="yellow")


def name_unreadable(images: dict[str, str]) -> None:
    if images:
        console.print(f"{counted(images, 'image', 'images')} could not be read: {few(images, most=3)}")


def is_first() -> bool:
    """Whether this process prints and writes."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def stoppable() -> Iterator[None]:
    """Around training: a signal ends the command with its own exit code, and one line."""
    from mixlab.data.skipped import TooManyUnreadableError
    from mixlab.training.stopping import Stopped

    try:
        yield
    except Stopped as stopped:
        if is_first():
            console.print(f"{stopped}; run the same command again to resume")
        raise SystemExit(stopped.exit_code) from stopped
    except TooManyUnreadableError as error:
        raise WorkError(f"{error} (data.skip_limit)") from error
