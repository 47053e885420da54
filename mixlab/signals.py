"""Signals that ask to stop: which process acts on them, and when.

Schedulers, `timeout`, `docker stop` and Ctrl-C signal a whole group of processes, some of them twice. The command acts;
processes that read data for it leave the signal to it, and end with it.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
REPEAT_S = 1.0  # a second Ctrl-C within this time is the first one, sent to the process and to its group
WATCH_S = 0.5
# How processes that read data are started: as children of their own parent, also where Python's default is otherwise.
START_METHOD = "fork" if sys.platform == "linux" else None


class StopSignal(KeyboardInterrupt):
    """A signal asked this process to stop, and it does so at once."""

    def __init__(self, number: int, what: str = "run the same command again") -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; {what}")
        self.exit_code = 128 + number  # as shells have it


class RaisingHandler:
    """Raises `StopSignal` once: what happens meanwhile is tidied up undisturbed. A later Ctrl-C raises again."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._since = 0.0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.number is not None and (number != signal.SIGINT or now - self._since < REPEAT_S):
            return
        self.number, self._since = number, now
        raise StopSignal(number)


@contextmanager
def raising(*, even_ignored: bool = False) -> Iterator[RaisingHandler]:
    """Within, stop signals raise `StopSignal` in the main thread; other threads get none.

    `even_ignored`: Ctrl-C also where a shell started us in the background, with SIGINT ignored.
    """
    known = signal.getsignal(signal.SIGTERM)
    handler = known if isinstance(known, RaisingHandler) else RaisingHandler()
    if threading.current_thread() is not threading.main_thread():
        yield handler
        return
    before = {}
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN or (even_ignored and number == signal.SIGINT):
            before[number] = signal.signal(number, handler)
    try:
        yield handler
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def held() -> Iterator[None]:
    """Stop signals wait until the end; processes that are started within start with them blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def obey_parent_alone(worker: int = 0) -> None:
    """In a process that works for another (`worker` is what torch's loader gives): stop signals of others do nothing.

    It ends when its parent ends it, or is gone. Started within `held`, it never dies of a signal meant for its group.
    """
    parent = os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)

    def watch() -> None:
        while os.getppid() == parent:
            if hasattr(signal, "sigtimedwait"):
                found = signal.sigtimedwait(STOP_SIGNALS, WATCH_S)
                if found is not None and found.si_pid == parent:
                    break
            else:  # macOS
                time.sleep(WATCH_S)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
