"""The step engine: command lines with dependencies, run in a few processes (`workers`), each recorded when finished."""

import contextlib
import re
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from mixlab.console import console
from mixlab.errors import InputError, WorkError, few
from mixlab.run import RunDirectory, provenance
from mixlab.run.files import read_json, write_json
from mixlab.signals import STOP_SIGNALS, StopSignal, held
from mixlab.studies.workers import SAID_FIRST, num_threads, run_step

LOG, MARK = "logs/{}.txt", "steps/{}.json"  # of a step, in the folder of the whole
POLL_S = 0.3
SHOWN_METRICS = {"loss": "loss", "knn_accuracy": "kNN", "accuracy": "accuracy"}  # while training


@dataclass(frozen=True)
class Step:
    """One stage. `arguments` is a command line of mixlab, or of one of OWN_JOBS."""

    name: str
    title: str
    why: str
    arguments: tuple[str, ...]
    result: Path  # there once the step is done
    here: tuple[str, ...] = ()  # more arguments, which change no result: a step is done whatever they were
    needs: tuple[str, ...] = ()
    reads: tuple[tuple[str, Path], ...] = ()  # steps that it needs, and what they left: if that is gone, they run again
    drops: tuple[Path, ...] = ()  # folders that it leaves, and that no other step may find
    trains: Path | None = None  # the run whose metrics show how far it is
    alone: bool = False  # measures time


def sets(*settings: str) -> tuple[str, ...]:
    """Settings as options of a command line."""
    return tuple(part for setting in settings for part in ("--set", setting))


@dataclass
class _Running:
    step: Step
    task: TaskID
    started: float


def run_steps(steps: Sequence[Step], folder: Path, pool: ProcessPoolExecutor, *, workers: int, command: str) -> None:
    """Run all unfinished steps in the pool of workers, each step after those it needs.

    `command` is what own jobs name as their origin.
    """
    done = {step.name for step in steps} - {step.name for step in _unfinished(steps, folder)}
    if len(done) == len(steps):
        console.print(f"all {len(steps)} steps are done already")
        return
    if done:
        console.print(f"{len(done)} of {len(steps)} steps are done already")
    left = [step for step in steps if step.name not in done]
    running: dict[Future[int], _Running] = {}
    told: set[str] = set()
    with Progress(*_columns(), console=console, transient=True) as progress:
        while left or running:
            while step := _ready(left, done, [part.step for part in running.values()], workers):
                left.remove(step)
                if step.why not in told:
                    told.add(step.why)
                    console.print(Text.assemble((step.title, "bold"), ": ", (step.why, "dim")))
                threads = num_threads(1 if step.alone else workers)
                with held():  # a worker may start here
                    future = pool.submit(
                        run_step, (*step.arguments, *step.here), _place(folder, step, LOG), threads, command
                    )
                task = progress.add_task(step.title, total=1.0 if step.trains else None, note="")
                running[future] = _Running(step, task, time.monotonic())
            finished, _ = wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED)
            for future in finished:
                part = running.pop(future)
                progress.remove_task(part.task)
                _finish(part, _code(future, part.step, folder), folder)
                done.add(part.step.name)
            for part in running.values():
                _show(progress, part)


def _unfinished(steps: Sequence[Step], folder: Path) -> list[Step]:
    """Steps that are not done, and those that left something which these read and which is gone."""
    found = [step for step in steps if not is_done(step, folder)]
    for step in found:  # which grows
        gone = [name for name, place in step.reads if not place.exists()]
        found += [other for other in steps if other.name in gone and other not in found]
    return found


def _ready(left: Sequence[Step], done: set[str], running: Sequence[Step], workers: int) -> Step | None:
    """The first step that may start beside those that run."""
    if len(running) >= workers or any(step.alone for step in running):
        return None
    return next((step for step in left if done.issuperset(step.needs) and not (step.alone and running)), None)


def _code(future: Future[int], step: Step, folder: Path) -> int:
    """The exit code of a step."""
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise WorkError(
            f"a process that ran {step.title} or another step was killed, perhaps because memory ran out "
            f"(logs: {folder / 'logs'}). Run the same command again to resume"
        ) from error


def keep_settings(run: RunDirectory, settings: dict[str, Any], *, under: str | None = None) -> None:
    """Write the settings of all steps into config.json, or refuse to resume what was begun with others.

    `under` is the field that holds them; without it, they are fields themselves.
    """
    if not (run.path / "config.json").is_file():
        if any((run.path / "steps").glob("*.json")):
            raise InputError(
                f"{run.path} holds finished steps without their config.json, so their settings are unknown; "
                "restore that file, or choose another --run directory"
            )
        run.write_config({**({under: settings} if under else settings), **provenance(seed=settings.get("seed"))})
        return
    stored = run.read_config()
    known = stored.get(under) if under else stored
    if not isinstance(known, dict):
        raise InputError(f"{run.path} belongs to another command (see its config.json); give another --run")
    if changed := [name for name, value in settings.items() if known.get(name) != value]:
        was = few((f"{name} was {known.get(name)!r}, is {settings[name]!r}" for name in changed), 3)
        raise InputError(f"{run.path} was begun with other settings ({was}); give another --run, or the same settings")


def is_done(step: Step, folder: Path) -> bool:
    """Whether its result is there and whole, made by the same command line."""
    mark = mark_of(step, folder)
    return is_whole(step.result) and mark.get("arguments") == _portable_line(step, folder)


def is_whole(result: Path) -> bool:
    """Whether it is there; JSON that a copy or a full disk cut short is not."""
    if result.suffix != ".json" or not result.is_file():
        return result.exists()
    with result.open("rb") as file:
        file.seek(max(0, result.stat().st_size - 2))
        return file.read().rstrip().endswith(b"}")


def mark_of(step: Step, folder: Path) -> dict[str, Any]:
    """What was noted when the step was done: its command line, seconds and date; nothing if that is damaged."""
    place = _place(folder, step, MARK)
    try:
        return read_json(place) if place.is_file() else {}
    except InputError:
        return {}


def _finish(part: _Running, code: int, folder: Path) -> None:
    step, seconds = part.step, time.monotonic() - part.started
    if code in (128 + number for number in STOP_SIGNALS):
        raise StopSignal(code - 128)
    if code or not step.result.exists():
        log = _place(folder, step, LOG)
        own = log.read_text(encoding="utf-8", errors="replace").rpartition(SAID_FIRST)[2]  # not of an earlier attempt
        last = [line for line in own.splitlines()[1:] if line.strip()][-3:]
        raise WorkError(
            f"{step.title} failed: {' '.join(last)} (full log: {log}). Run the same command again to resume"
        )
    for place in step.drops:
        shutil.rmtree(place, ignore_errors=True)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    write_json(
        _place(folder, step, MARK),
        {"arguments": _portable_line(step, folder), "seconds": round(seconds, 1), "date": now},
    )
    moved = "" if step.trains is None else _moved(RunDirectory(step.trains))
    console.print(Text.assemble("  ", ("done", "green"), f" {step.title}, {seconds:.1f} s{moved}"))


def _moved(run: RunDirectory) -> str:
    """First and last of what training showed."""
    rows = list(run.read_metrics())
    said = []
    for key, name in SHOWN_METRICS.items():
        values = [_said(key, row[key]) for row in rows if key in row]
        if len(values) > 1:
            said.append(f"{name} {values[0]} to {values[-1]}")
    return f": {', '.join(said)}" if said else ""


def _said(metric: str, value: float) -> str:
    return f"{value:.3g}" if metric == "loss" else f"{100 * value:.1f} %"


def _columns() -> tuple[ProgressColumn, ...]:
    """Of the steps that run; where the terminal is narrow, the bar alone gives way."""
    name, note = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[note]}")
    spinner = SpinnerColumn(table_column=Column(no_wrap=True))
    return spinner, name, BarColumn(bar_width=24), note, TimeElapsedColumn(table_column=Column(no_wrap=True))


def _show(progress: Progress, part: _Running) -> None:
    if part.step.trains is None:
        return
    run = RunDirectory(part.step.trains)
    last: dict[str, Any] = {}
    for row in run.read_metrics():
        last |= row
    if last:
        text = " ".join(f"{name} {_said(key, last[key])}" for key, name in SHOWN_METRICS.items() if key in last)
        with contextlib.suppress(OSError, ValueError, KeyError):
            progress.update(part.task, total=run.read_config()["total_steps"])
        progress.update(part.task, completed=last["step"], note=text)


def _portable_line(step: Step, folder: Path) -> list[str]:
    """The command line, the same wherever the folder is."""
    return ["RUN" if text == str(folder) else rename_folder(text, str(folder), "RUN") for text in step.arguments]


def rename_folder(text: str, place: str, name: str) -> str:
    """Text with a folder, and the files below it, under another name; words that only contain its letters stay.

    A folder of one word may share it with a model or a label: alone it is a folder after --run only.
    """
    start, end = r"(?<![\w./~-])", r"(?![\w.~-])"
    word = re.escape(place)
    pattern = f"{start}{word}{end}" if "/" in place else f"(?<=--run ){word}{end}|{start}{word}(?=/)"
    return re.sub(pattern, lambda _: name, text)


def _place(folder: Path, step: Step, file: str) -> Path:
    """The file of a step, such as "logs/{}.txt"."""
    place = folder / file.format(step.name.replace(" ", "_"))
    place.parent.mkdir(parents=True, exist_ok=True)
    return place
