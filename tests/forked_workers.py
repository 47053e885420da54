"""Tests run by several processes at once: forks of the one that has imported and collected everything, once for all.

`pytest -p tests.forked_workers`. Files are given out in their order, each to the next process that is free; the tests
of a file stay together, since they share fixtures. A process that dies is a failed test, and another takes its place.
"""

import sys
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, groupby, pairwise
from multiprocessing import connection, get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pytest

from mixlab.data.cores import num_cores

FORK = get_context("fork")
NUM_WORKERS = 2 * num_cores()  # tests also wait for processes, signals and browsers


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    if session.config.option.collectonly or session.testsfailed:
        return None  # pytest's own loop does nothing, or says what is wrong
    Team(session).run()
    return True


def together(file: Path) -> Path:
    """What one process runs: a file, or a folder whose files share a browser."""
    return file.parent if file.parent.name == "browser" else file


@dataclass
class Worker:
    """A process, as the one that has collected the tests knows it."""

    process: ForkProcess
    channel: connection.Connection
    waiting: deque[int] = field(default_factory=deque)  # numbers of tests, given to it and not begun
    running: pytest.Item | None = None


class Team:
    """Gives out tests, and passes on what is said of them."""

    def __init__(self, session: pytest.Session) -> None:
        self.session, self.config = session, session.config
        self.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # one for all
        by_file = groupby(range(len(session.items)), key=lambda number: together(session.items[number].path))
        self.files = deque([*numbers] for _, numbers in by_file)
        self.workers: dict[Any, Worker] = {}  # by their channel

    def run(self) -> None:
        for _ in range(min(NUM_WORKERS, len(self.files))):
            self.start()
        try:
            while self.workers:
                for channel in connection.wait([*self.workers]):
                    self.listen(self.workers[channel])
        finally:
            for channel in self.workers:
                channel.close()  # its process ends after the test that it runs
            for worker in self.workers.values():
                worker.process.join()

    def start(self) -> None:
        ours, theirs = FORK.Pipe()
        process = FORK.Process(target=work, args=(self.session, theirs, [ours, *self.workers]))
        process.start()
        theirs.close()
        self.workers[ours] = Worker(process, ours)

    def listen(self, worker: Worker) -> None:
        try:
            kind, said = worker.channel.recv()
        except (EOFError, ConnectionError):
            self.replace(worker)
            return
        if kind == "next file":
            worker.waiting += (numbers := self.files.popleft() if self.files else [])
            worker.channel.send(numbers)
        elif kind == "begun":
            worker.running = self.session.items[worker.waiting.popleft()]
        elif kind == "warning":
            self.config.hook.pytest_warning_recorded.call_historic(kwargs=said)
        else:
            self.report(self.config.hook.pytest_report_from_serializable(config=self.config, data=said))

    def replace(self, worker: Worker) -> None:
        """One that has ended: because there are no more tests, or in the middle of one."""
        del self.workers[worker.channel]
        worker.process.join()
        if worker.process.exitcode == 0 and not worker.waiting:
            return
        if worker.running is None:
            raise RuntimeError(f"a process for tests did not start: code {worker.process.exitcode}")
        name, where = worker.running.nodeid, worker.running.location
        said = f"the process that ran this test ended with code {worker.process.exitcode}"
        self.report(pytest.TestReport(name, where, {}, "failed", said, "call"))
        if worker.waiting:
            self.files.appendleft([*worker.waiting])
        if self.files:
            self.start()

    def report(self, report: pytest.TestReport) -> None:
        self.config.hook.pytest_runtest_logreport(report=report)
        if self.session.shouldfail:  # --exitfirst
            raise self.session.Failed(self.session.shouldfail)


def work(session: pytest.Session, channel: connection.Connection, others: list[connection.Connection]) -> None:
    """What each of the processes does."""
    for other in others:
        other.close()  # nobody would notice that their owners ended
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    plugins = session.config.pluginmanager
    plugins.unregister(name="terminalreporter")
    messages = Messages(session.config, channel)
    plugins.register(messages)
    messages.of_now = True
    capture: Any = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()  # into a file that other processes write to as well
    capture.start_global_capturing()
    capture.suspend_global_capture()
    try:
        for item, following in pairwise(chain(given_items(session, channel), [None])):
            channel.send(("begun", None))
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    except (EOFError, OSError, KeyboardInterrupt):  # most likely, nobody is interested any more
        session._setupstate.teardown_exact(None)
        sys.exit(1)


def given_items(session: pytest.Session, channel: connection.Connection) -> Iterator[pytest.Item]:
    while True:
        channel.send(("next file", None))
        if not (numbers := channel.recv()):
            return
        for number in numbers:
            yield session.items[number]


class Messages:
    """A plugin of each process: tells the one that has collected the tests."""

    def __init__(self, config: pytest.Config, channel: connection.Connection) -> None:
        self.config, self.channel = config, channel
        self.of_now = False  # a new plugin first hears of warnings from before the fork

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.channel.send(("report", self.config.hook.pytest_report_to_serializable(config=self.config, report=report)))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: tuple[str, int, str] | None
    ) -> None:
        if not self.of_now:
            return
        text = UserWarning(f"{warning_message.category.__name__}: {warning_message.message}")  # not all can be sent
        sent = warnings.WarningMessage(text, UserWarning, warning_message.filename, warning_message.lineno)
        said = {"warning_message": sent, "when": when, "nodeid": nodeid, "location": location}
        self.channel.send(("warning", said))
