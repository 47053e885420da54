"""Signals that ask to stop, in this very process."""

import importlib
import multiprocessing
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import mixlab
from mixlab import signals
from mixlab.data.workers import start_workers, worker_settings
from mixlab.signals import STOP_SIGNALS, StopRequests, StopSignal, held, obey_parent_alone, raising
from tests.waiting import PATIENCE_S, wait_for


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that this process handles late is still the one that was sent, and no reason to leave."""
    for name in ("REPEAT_S", "PATIENCE_S", "STUCK_S"):
        monkeypatch.setattr(signals, name, PATIENCE_S)


def ask(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


class AsksWhenItGoes:
    def __del__(self) -> None:
        ask()
        time.sleep(0.01)  # the handler runs here at the latest


def wait_for_it() -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        time.sleep(0.01)


def test_a_signal_raises_once_and_its_repetitions_disturb_nobody() -> None:
    with raising() as handler, pytest.raises(StopSignal, match="stopped by SIGTERM") as stopped:
        try:
            ask()
            wait_for_it()
        finally:
            ask()
            ask(signal.SIGHUP)
            time.sleep(0.01)
    assert stopped.value.exit_code == 143 and handler.number == signal.SIGTERM


def test_a_signal_in_a_finalizer_where_python_drops_it_comes_again(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    start = threading.Thread.start

    def start_slowly(thread: threading.Thread) -> Any:
        start(thread)
        ask()  # while Python is still told of the lost one
        time.sleep(0.2)

    with raising(), pytest.raises(StopSignal):
        monkeypatch.setattr(threading.Thread, "start", start_slowly)
        AsksWhenItGoes()
        wait_for_it()
    assert capfd.readouterr().err == ""


def test_a_signal_in_the_middle_of_an_import_comes_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "import os, signal, time", "os.kill(os.getpid(), signal.SIGTERM)", "time.sleep(0.2)", "is_whole = True"
    (tmp_path / "stopped_while_imported.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(StopSignal), raising():
        importlib.import_module("stopped_while_imported")
        wait_for_it()
    assert sys.modules["stopped_while_imported"].is_whole


def test_other_lost_exceptions_are_told_as_ever(capfd: pytest.CaptureFixture[str]) -> None:
    class Fails:
        def __del__(self) -> None:
            raise ValueError("somebody else's")

    with raising():
        Fails()
    assert "somebody else's" in capfd.readouterr().err


def test_signals_that_are_held_come_at_the_end() -> None:
    with raising(), pytest.raises(StopSignal):
        with held():
            ask()
            time.sleep(0.01)
            reached = True
        wait_for_it()
    assert reached


@pytest.mark.parametrize("numbers", [(signal.SIGTERM, signal.SIGUSR2), (signal.SIGUSR2, signal.SIGTERM)])
def test_of_two_signals_the_scheduler_s_own_is_noted(numbers: tuple[int, int]) -> None:
    with StopRequests((signal.SIGUSR2,)) as stop:
        for number in numbers:
            signal.raise_signal(number)
    assert stop.number == signal.SIGUSR2


def is_pending(process: int, number: int) -> bool:
    """Whether a signal waits for a process that has blocked it."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return any(int(line.split()[1], 16) >> (number - 1) & 1 for line in lines if line.startswith(("SigPnd", "ShdPnd")))


@pytest.mark.parametrize("number", [*STOP_SIGNALS, signal.SIGUSR1, signal.SIGUSR2])
def test_a_process_that_reads_data_leaves_signals_of_others_to_its_parent(number: int) -> None:
    ready, done = os.pipe()
    if (child := os.fork()) == 0:
        obey_parent_alone()
        os.write(done, b".")
        time.sleep(PATIENCE_S)
        os._exit(1)
    os.read(ready, 1)
    for _ in range(2):  # who takes the second has not ended by the first
        if (other := os.fork()) == 0:  # `obey_parent_alone` asks who sent it
            os.kill(child, number)
            os._exit(0)
        os.waitpid(other, 0)
        wait_for(lambda: not is_pending(child, number))  # or the parent's own would be one with it
    assert os.waitpid(child, os.WNOHANG) == (0, 0), "it ended"
    os.kill(child, signal.SIGTERM)
    assert os.waitpid(child, 0)[1] == 0


LONG_STEP = """
import hashlib
from mixlab.signals import StopRequests, raising
with raising(even_ignored=True), StopRequests() as stop:
    while not stop.asked():
        print("in a step", flush=True)
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)  # minutes in C, where no handler of Python's runs
"""


def test_ctrl_c_at_a_terminal_is_acknowledged_within_a_long_step() -> None:
    master, slave = pty.openpty()
    program = [sys.executable, "-c", LONG_STEP]
    environment = {**os.environ, "PYTHONPATH": str(Path(mixlab.__file__).parents[1])}
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=slave, env=environment) as process:
        os.close(slave)
        assert process.stdout is not None
        assert process.stdout.readline() == b"in a step\n"
        process.send_signal(signal.SIGINT)
        is_said = select.select([master], [], [], PATIENCE_S)[0]
        process.kill()  # in the middle of that step
        assert is_said and b"Ctrl-C: finishing and saving this step" in os.read(master, 1000)
        assert process.wait() == -signal.SIGKILL
    os.close(master)


def test_a_reading_process_ends_with_its_parent_also_where_the_signal_of_the_group_came_first() -> None:
    """One that waits, and the parent's own, are one signal to the system."""
    loader: Any = DataLoader(list(range(8)), **worker_settings(1))  # type: ignore[arg-type]
    before = multiprocessing.active_children()  # perhaps those of an earlier test
    batches = start_workers(loader)
    next(batches)
    (worker,) = {*multiprocessing.active_children()} - {*before}
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGSTOP)  # as on a busy machine: it gets no time to look
    if (other := os.fork()) == 0:
        os.kill(worker.pid, signal.SIGTERM)
        os._exit(0)
    os.waitpid(other, 0)
    worker.terminate()
    os.kill(worker.pid, signal.SIGCONT)
    worker.join(PATIENCE_S)
    assert not worker.is_alive(), "its parent would wait for it forever"


class SignalsWhileStarting:
    """A sampler, which torch asks for its first numbers once the processes are there."""

    def __iter__(self) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return iter(range(2))


def test_a_signal_while_reading_processes_start_leaves_no_handler_of_torchs_behind() -> None:
    """It would raise at the end of the program, when Python ends these processes."""
    before = signal.getsignal(signal.SIGCHLD)
    loader = DataLoader(range(2), sampler=SignalsWhileStarting(), **worker_settings(1))  # type: ignore[arg-type]
    with pytest.raises(StopSignal), raising():
        next(iter(start_workers(loader)))
    assert signal.getsignal(signal.SIGCHLD) is before
