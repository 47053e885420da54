"""The promise: a job that is preempted, in whatever way and at whatever moment, saves, is sent again and ends the same.

Real jobs of two tasks, by submitit's executor for one machine, which starts a job up to six times.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import submitit
from fault_processes import ALL, PATIENCE_S, STOPS, children_of, family_of, last_logged, moments, steps_of, wait_for
from forked_jobs import start_controller
from small_runs import MOST_STEPS, STEPS, assert_same_end, pretraining, wait_for_moment

from mixlab.cli import main
from mixlab.run.files import read_json
from tests.paused_training import told

pytestmark = pytest.mark.timeout(3600 if ALL else 1200)
MOST_STARTS = 6  # of a job, by submitit
BOTH = (signal.SIGTERM, signal.SIGUSR2)  # in the order in which SLURM sends them where it sends both
STARTING_S = 3.0


@dataclass
class Job:
    """A job that runs, by the process that controls it."""

    number: int
    run: Path
    preempted: Path  # the file that tells a job that pauses to go on: the signals were sent
    seen: Path  # and this one: its next start was seen

    @property
    def tasks(self) -> list[int]:
        with suppress(OSError):
            return children_of(self.number)
        return []

    @property
    def said(self) -> str:
        """What the first task has printed."""
        text = "".join(file.read_text() for file in self.run.glob(f"slurm/{self.number}_0_log.*"))
        return " ".join(text.split())

    def listens(self) -> bool:
        """Whether both tasks have begun."""
        with suppress(OSError, StopIteration):
            return len(self.tasks) == 2 and all(catches(task, signal.SIGUSR2) for task in self.tasks)
        return False

    def preempt(self, *numbers: int) -> None:
        """As SLURM does it: every process gets the signals, those that read data too. All stand still meanwhile: else
        the first one could save and stop by the first signal before the second is sent."""
        processes = family_of(self.number)[1:]
        send(signal.SIGSTOP, processes)
        wait_for(lambda: all(stands_still(process) for process in processes))
        for number in (*numbers, signal.SIGCONT):
            send(number, processes)
        self.preempted.touch()

    def result(self) -> list[None]:
        found = submitit.LocalJob[None](self.run / "slurm", str(self.number), tasks=[0, 1])
        files = [self.run / "slurm" / f"{self.number}_{task}_result.pkl" for task in (0, 1)]
        wait_for(lambda: all(file.exists() for file in files), 4 * PATIENCE_S)
        return found.results()


def send(number: int, processes: Iterable[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def stands_still(process: int) -> bool:
    """Or has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "TZX"
    except OSError:
        return True


def catches(process: int, number: int) -> bool:
    text = Path(f"/proc/{process}/status").read_text()
    return bool(int(text.partition("SigCgt:")[2].split()[0], 16) >> (number - 1) & 1)


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], Job]]:
    """Jobs as the command submits them; never to the cluster that these tests may themselves run on."""
    monkeypatch.setattr("mixlab.training.slurm.CLUSTER", "local")
    jobs: list[Job] = []

    def submit(run: Path) -> Job:
        said, preempted, seen = (run.with_name(name) for name in ("said.json", "preempted", "seen"))
        if not ALL:
            pauses = told({MOST_STEPS: preempted, STEPS - 1: seen})
            monkeypatch.setattr("submitit.local.local.start_controller", partial(start_controller, pauses))
        launcher = ["--launcher", "slurm", "--slurm.gpus-per-node", "2", "--json", str(said)]
        assert main([*pretraining(run, "data.workers=2"), *launcher]) == 0
        jobs.append(Job(int(read_json(said)["job"]), run, preempted, seen))
        return jobs[-1]

    yield submit
    for job in jobs:
        for process in family_of(job.number)[::-1]:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def preempt_once(job: Job, numbers: tuple[int, ...], chance: random.Random) -> None:
    """Either while the job starts, or while it trains."""
    wait_for(job.listens)
    before, stops, tasks = last_logged(job.run), job.said.count("stopped by"), job.tasks
    if chance.random() < 0.3:
        time.sleep(chance.random() * STARTING_S)
    else:
        wait_for_moment(job.run, before, chance)
    job.preempt(*numbers)
    wait_for(lambda: job.tasks and not set(job.tasks) & set(tasks))  # both are gone, and there are new ones
    assert job.said.count("stopped by") == stops + 1, job.said
    name = signal.Signals(numbers[-1]).name
    assert f"stopped by {name} after step {last_logged(job.run)}, which is saved" in job.said
    assert steps_of(job.run)[-1] == last_logged(job.run)  # no step is lost
    assert not list(job.run.glob(f"slurm/{job.number}_*_result.pkl")), "it is not over"


def names_of(numbers: tuple[int, ...]) -> str:
    return " and ".join(signal.Signals(number).name for number in numbers)


@pytest.mark.parametrize("numbers", [(signal.SIGUSR2,), (signal.SIGTERM,)] if ALL else [BOTH], ids=names_of)
def test_a_job_that_is_preempted_saves_is_sent_again_and_ends_the_same(
    numbers: tuple[int, ...], submitted: Callable[[Path], Job], whole: Callable[[int], Path], tmp_path: Path
) -> None:
    chance, run, reference = moments(f"preempt {names_of(numbers)}"), tmp_path / "run", whole(2)
    job = submitted(run)
    times = max(1, STOPS // 2)
    for count in range(1, times + 1):
        preempt_once(job, numbers, chance)
        if count % (MOST_STARTS - 1) == 0 and count < times:
            wait_for(job.listens)
            job.preempt(signal.SIGINT)  # cancelled, and submitted once more
            wait_for(lambda job=job: not job.tasks)
            job = submitted(run)
    job.seen.touch()
    assert job.result() == [None, None], job.said
    assert_same_end(run, reference)
    print(f"{names_of(numbers)}: {times} of {times} saved and sent again, none lost a step")
