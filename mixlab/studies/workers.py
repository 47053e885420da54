"""The processes that run steps: each a command line, its output in a log. None is left behind."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

from mixlab.data.cores import num_cores
from mixlab.errors import InputError, WorkError
from mixlab.run.lock import RunLock
from mixlab.signals import HELD_SIGNALS

WATCH_S = 0.5
PATIENCE_S = 30.0  # seconds to wait for the workers of a killed command: they write a checkpoint first
SAID_FIRST = "$ mixlab "  # in the log of a step, before its arguments
OWN_JOBS = {  # what has no command of its own: a function of text arguments
    "twin": ("mixlab.studies.scoring", "write_twin"),
    "split": ("mixlab.studies.folders", "hold_out"),
    "labels": ("mixlab.studies.folders", "write_labels"),
    "choose": ("mixlab.studies.jobs", "choose_rates"),
    "scaling": ("mixlab.studies.jobs", "write_scaling"),
    "sort-val": ("mixlab.studies.reproduce.arrange", "sort_val"),
    "pair-masks": ("mixlab.studies.reproduce.arrange", "pair_masks"),
}


@contextlib.contextmanager
def worker_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that run steps. None is left behind: one in the middle of training writes a checkpoint first."""
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_prepare, initargs=(os.getpid(),))
    try:
        yield pool
    except BaseException:
        processes = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        _end(processes)
        raise
    pool.shutdown()


def _end(processes: Sequence[BaseProcess]) -> None:
    """Training takes the first SIGTERM as a wish to save and stop; the next one ends its process."""
    until = time.monotonic() + PATIENCE_S
    while any(process.is_alive() for process in processes):
        late = time.monotonic() > until
        for process in processes:
            process.kill() if late else process.terminate()
        time.sleep(WATCH_S)


def _prepare(parent: int) -> None:
    """In each worker: stop, and save, when the command itself is gone."""
    os.environ["COLUMNS"] = "140"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the command, which ends its workers by SIGTERM
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_SIGNALS)  # `held` until now

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_S)
        while True:  # training takes the first as a wish to save and stop; the next ends the process
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(WATCH_S)

    threading.Thread(target=watch, daemon=True).start()


def run_step(arguments: Sequence[str], log: Path, threads: int, command: str) -> int:
    """One step in a worker, its output in a log file. Returns its exit code."""
    import torch

    torch.set_num_threads(threads)
    sys.argv = ["mixlab", *arguments]  # provenance names the command as it could be typed
    file = log.open("a", encoding="utf-8", errors="backslashreplace")  # names of files may be no text
    with file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        print(f"{SAID_FIRST}{' '.join(arguments)}", flush=True)
        try:
            return _own_job(arguments, command) if arguments[0] in OWN_JOBS else _command(arguments)
        except SystemExit as stopped:
            return int(stopped.code or 0)


def wait_for_workers(runs: Iterable[Path]) -> None:
    """Until those of a command that was killed have let go of their runs."""
    until = time.monotonic() + PATIENCE_S
    for run in runs:
        while run.is_dir():
            try:
                with RunLock(run):
                    break
            except WorkError:  # another process has it
                if time.monotonic() > until:
                    raise
                time.sleep(0.5)


def num_threads(workers: int) -> int:
    """Threads per worker: the cores divided by the workers, and no more than OMP_NUM_THREADS. Clusters set that to all
    cores, and a crowd of threads that wait in turns is many times slower.
    """
    share = max(1, num_cores() // workers)
    said = os.environ.get("OMP_NUM_THREADS", "")
    return min(share, int(said)) if said.isdecimal() and int(said) else share


def _command(arguments: Sequence[str]) -> int:
    """As typed: a worker is the command line, which stands above the studies and is imported by name."""
    return int(import_module("mixlab.cli").main(arguments))


def _own_job(arguments: Sequence[str], command: str) -> int:
    sys.argv = ["mixlab", *command.split()]
    module, name = OWN_JOBS[arguments[0]]
    try:
        getattr(import_module(module), name)(*arguments[1:])
    except (InputError, WorkError, OSError) as error:  # as commands have it
        print(f"error: {error}", flush=True)
        return 1
    return 0
