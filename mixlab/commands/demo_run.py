"""Runs the steps of the demo in a few processes, shows how far they are, and knows which are done."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from mixlab.commands.demo_plan import Step
from mixlab.commands.output import console
from mixlab.run import RunDirectory
from mixlab.run.directory import read_json, write_json

POLL_S = 0.3
WATCH_S = 0.5


@dataclass
class _Running:
    step: Step
    task: TaskID
    started: float


def run_steps(steps: Sequence[Step], folder: Path, *, workers: int) -> None:
    """Run what is not done yet, each step after those it needs, up to `workers` at a time."""
    done = {step.name for step in steps if is_done(step, folder)}
    if done:
        console.print(f"{len(done)} of {len(steps)} steps are done already")
    left = [step for step in steps if step.name not in done]
    name, note = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
    columns = (SpinnerColumn(), name, BarColumn(bar_width=24), note, TimeElapsedColumn())
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_prepare, initargs=(os.getpid(),))
    running: dict[Future[int], _Running] = {}
    told: set[str] = set()
    with Progress(*columns, console=console, transient=True) as progress, _shut_down(pool):
        while left or running:
            for step in list(left):
                if len(running) >= workers or any(part.step.alone for part in running.values()):
                    break
                if not set(step.needs) <= done or (step.alone and running):
                    continue
                left.remove(step)
                if step.why not in told:
                    told.add(step.why)
                    console.print(f"[bold]{step.title}[/bold]: [dim]{step.why}[/dim]", highlight=False)
                threads = num_threads(1 if step.alone else workers)
                future = pool.submit(run_step, step.arguments, _log(folder, step), threads)
                task = progress.add_task(step.title, total=_total(step), note="")
                running[future] = _Running(step, task, time.monotonic())
            finished, _ = wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED)
            for future in finished:
                part = running.pop(future)
                progress.remove_task(part.task)
                _finish(part, future.result(), folder)
                done.add(part.step.name)
            for part in running.values():
                _show(progress, part)


def is_done(step: Step, folder: Path) -> bool:
    """Whether its result is there, made by the same command line."""
    mark = _mark(folder, step)
    return step.result.exists() and mark.is_file() and read_json(mark)["arguments"] == list(step.arguments)


def run_step(arguments: Sequence[str], log: Path, threads: int) -> int:
    """One step in a worker, its output in a log file. Returns its exit code."""
    import torch

    torch.set_num_threads(threads)
    sys.argv = ["mixlab", *arguments]  # provenance names the command as it could be typed
    with log.open("a", encoding="utf-8") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        print(f"$ mixlab {' '.join(arguments)}", flush=True)
        try:
            return _own_job(arguments) if arguments[0] in ("twin", "matrices", "speed") else _command(arguments)
        except SystemExit as stopped:
            return int(stopped.code or 0)


def num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_threads(workers: int) -> int:
    """For each of some workers: the cores shared out, unless OMP_NUM_THREADS says otherwise."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return int(said) if said.isdecimal() and int(said) else max(1, num_cores() // workers)


def _command(arguments: Sequence[str]) -> int:
    from mixlab.cli import main

    return main(arguments)


def _own_job(arguments: Sequence[str]) -> int:
    from mixlab.commands import demo_jobs

    sys.argv = ["mixlab", "demo"]
    match list(arguments):
        case ["twin", run, out, seed]:
            demo_jobs.write_twin(Path(run), Path(out), int(seed))
        case ["matrices", run, image, *targets]:
            demo_jobs.write_matrices(Path(run), int(image), targets)
        case ["speed", *runs]:
            for run in runs:
                demo_jobs.write_costs(Path(run))
    return 0


def _finish(part: _Running, code: int, folder: Path) -> None:
    step, seconds = part.step, time.monotonic() - part.started
    if code in (128 + signal.SIGINT, 128 + signal.SIGTERM):
        raise KeyboardInterrupt
    if code or not step.result.exists():
        log = _log(folder, step)
        last = [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()][-3:]
        raise RuntimeError(f"{step.title} failed: {' '.join(last)} (all of it: {log}). Run the demo again to go on")
    write_json(_mark(folder, step), {"arguments": list(step.arguments), "seconds": round(seconds, 1)})
    console.print(f"  [green]done[/green] {step.title}, {seconds:.1f} s", highlight=False)


def _show(progress: Progress, part: _Running) -> None:
    if part.step.trains is None:
        return
    run = RunDirectory(part.step.trains)
    last: dict[str, Any] = {}
    for row in run.read_metrics():
        last |= row
    if last:
        known = {"loss": "loss", "knn_accuracy": "kNN", "accuracy": "accuracy"}
        text = "  ".join(f"{name} {last[key]:.3g}" for key, name in known.items() if key in last)
        with contextlib.suppress(OSError, ValueError, KeyError):
            progress.update(part.task, total=run.read_config()["total_steps"])
        progress.update(part.task, completed=last["step"], note=text)


def _total(step: Step) -> float | None:
    """Unknown at first: training tells, other steps only spin."""
    return 1.0 if step.trains else None


def _prepare(parent: int) -> None:
    """In each worker: stop, and save, when the demo itself is gone."""
    os.environ["COLUMNS"] = "140"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the demo, which ends its workers by SIGTERM

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_S)
        while True:  # training takes the first as a wish to save and stop; the next ends the process
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(WATCH_S)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def _shut_down(pool: ProcessPoolExecutor) -> Iterator[None]:
    """Leave no worker behind: one in the middle of training writes a checkpoint first."""
    try:
        yield
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown()


def _log(folder: Path, step: Step) -> Path:
    return _place(folder, "logs", step, ".txt")


def _mark(folder: Path, step: Step) -> Path:
    return _place(folder, "steps", step, ".json")


def _place(folder: Path, kind: str, step: Step, suffix: str) -> Path:
    place = folder / kind
    place.mkdir(parents=True, exist_ok=True)
    return place / f"{step.name.replace(' ', '_')}{suffix}"
