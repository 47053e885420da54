"""Real processes for fault tests: a command in a process group of its own, one or two ranks of it, or under torchrun.

By default a few faults are tried; `MIXLAB_FAULTS=all` tries all of them. `MIXLAB_FAULT_SEED` sets the moments, and
`MIXLAB_FAULT_STOPS` how many of each kind.
"""

import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import mixlab.commands.pretrain
import mixlab.recipes  # noqa: F401  here, so that no process that is forked for a test imports them
from tests.paused_training import pause_as_told, told
from tests.ranks import free_port
from tests.waiting import PATIENCE_S, wait_for

ALL = os.environ.get("MIXLAB_FAULTS") == "all"
SEED = int(os.environ.get("MIXLAB_FAULT_SEED", "0"))
STOPS = int(os.environ.get("MIXLAB_FAULT_STOPS", "20" if ALL else "1"))  # signals of each kind
only_all = pytest.mark.skipif(not ALL, reason="a long fault test; set MIXLAB_FAULTS=all")
CONTEXT = multiprocessing.get_context("forkserver")


def moments(name: str) -> random.Random:
    """Random numbers for the moments of one test."""
    return random.Random(f"{SEED} {name}")


def _child(arguments: list[str], log: str, group: int, environment: dict[str, str]) -> None:
    """A rank of the command, as the program that a person starts. Once it is in its group, it may be signalled."""
    from mixlab.cli import leave_on_signals, main

    with Path(log).open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(environment)
    pause_as_told()
    leave_on_signals()  # what `main` begins with
    os.setpgid(0, group)
    torch.set_num_threads(1)
    sys.argv = ["mixlab", *arguments]
    sys.exit(main())


class Group:
    """A command in a process group of its own; `ranks` processes, whose output goes to one file.

    Training pauses before the steps of `pauses`, each until its file is there.
    """

    def __init__(
        self, arguments: list[str], log: Path, *, ranks: int = 1, pauses: Mapping[int, Path] | None = None
    ) -> None:
        self.log = log
        log.touch()
        self._before = len(log.read_text())
        self.processes: list[multiprocessing.process.BaseProcess] = []
        port = free_port() if ranks > 1 else 0
        for rank in range(ranks):
            places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank)}
            sizes = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
            group = self.processes[0].pid if self.processes else 0
            environment = (places | sizes if ranks > 1 else {}) | told(pauses or {})
            given = (arguments, str(log), group, environment)
            process = CONTEXT.Process(target=_child, args=given)
            process.start()
            self.processes.append(process)
            wait_for(lambda process=process: os.getpgid(process.pid) == self.number)

    @property
    def number(self) -> int:
        pid = self.processes[0].pid
        assert pid is not None
        return pid

    def is_alive(self) -> bool:
        return any(process.is_alive() for process in self.processes)

    def signal(self, number: int) -> None:
        """To every process of the group."""
        with suppress(ProcessLookupError):
            os.killpg(self.number, number)

    def codes(self) -> list[int | None]:
        """Exit codes, once all have ended; none of the group may be left, such as processes that read data."""
        try:
            for process in self.processes:
                process.join(PATIENCE_S)
            found = [process.exitcode for process in self.processes]
            wait_for(lambda: not left_in(self.number), seen=lambda: f"processes {left_in(self.number)} are left")
        finally:
            self.signal(signal.SIGKILL)
        return found

    @property
    def said(self) -> str:
        """What this command has printed, on one line."""
        return " ".join(self.log.read_text()[self._before :].split())


def left_in(group: int) -> list[int]:
    """Processes of a group that have not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                state, _, number = entry.joinpath("stat").read_text().rpartition(")")[2].split()[:3]
                if state != "Z" and int(number) == group:
                    found.append(int(entry.name))
    return found


def children_of(parent: int) -> list[int]:
    """Processes that a process has started."""
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(number) for number in text.split()]


def family_of(parent: int) -> list[int]:
    """A process and all that it has started, and these."""
    with suppress(OSError):
        return [parent, *(each for child in children_of(parent) for each in family_of(child))]
    return []


def program(*arguments: str, torchrun: int = 0) -> list[str]:
    """The command line of a new interpreter, under torchrun where it has ranks."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(torchrun), "--no-python", "--"]
    own = [sys.executable, "-m", "mixlab", *arguments]
    return [sys.executable, *launcher, *own] if torchrun else own


def start_program(*arguments: str, log: Path, torchrun: int = 0) -> subprocess.Popen[bytes]:
    """A new interpreter in a session of its own: its number is also that of its process group."""
    with log.open("ab") as file:
        return subprocess.Popen(
            program(*arguments, torchrun=torchrun), stdout=file, stderr=file, start_new_session=True
        )


def steps_of(run: Path) -> list[int]:
    """Steps that have a checkpoint."""
    return sorted(int(file.stem.removeprefix("step-")) for file in run.glob("checkpoints/step-*.json"))


def last_logged(run: Path) -> int:
    """The highest step in metrics.jsonl."""
    file = run / "metrics.jsonl"
    text = file.read_text() if file.is_file() else ""
    return max((int(found) for found in re.findall(r'^{"step": (\d+),.*}$', text, flags=re.MULTILINE)), default=0)
