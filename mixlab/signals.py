"""Signals that ask to stop: which process acts on them, and when.

Schedulers, `timeout`, `docker stop` and Ctrl-C signal a whole group of processes, some of them twice. The command acts;
processes that read data for it leave the signal to it, and end with it.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType, TracebackType
from typing import Any, Self

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
HELD_SIGNALS = (*STOP_SIGNALS, signal.SIGUSR1, signal.SIGUSR2)  # schedulers announce the end by these
REPEAT_S = 1.0  # a second Ctrl-C within this time is the first one, sent to the process and to its group
PATIENCE_S = 10.0  # and other signals within this time: whoever waits for a process sends them over and over
STUCK_S = 3.0
WATCH_S = 0.5
REMIND_S = 0.05
IMPORTING = "<frozen importlib._bootstrap>"  # where Python's frames of an import are
PROMPT_S = 0.2  # a command that ends within this time after Ctrl-C says so itself


class StopSignal(KeyboardInterrupt):
    """A signal asked this process to stop, and it does so at once."""

    def __init__(self, number: int, what: str = "run the same command again") -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; {what}")
        self.exit_code = 128 + number  # as shells have it


class RaisingHandler:
    """Raises `StopSignal` once: what happens meanwhile is tidied up undisturbed. Asked again later, it raises again.

    An import is finished first: torch's, in C++, ends the process on an exception.
    """

    acknowledgement = "stopping"

    def __init__(self) -> None:
        self.number: int | None = None
        self._since = 0.0
        self._is_lost = False
        self._lock = threading.RLock()  # no reminder comes once it has raised

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        patience = REPEAT_S if number == signal.SIGINT else PATIENCE_S
        if self.number is not None and now - self._since < patience and not self._is_lost:
            return
        while frame is not None:
            if frame.f_code is RaisingHandler.look_after.__code__:
                return  # it would be lost again; it comes again
            if frame.f_code.co_filename == IMPORTING:
                self._ask_again(number)
                return
            frame = frame.f_back
        with self._lock:
            self.number, self._since, self._is_lost = number, now, False
        raise StopSignal(number)

    def look_after(self, lost: "sys.UnraisableHookArgs") -> None:
        """As `sys.unraisablehook`: Python drops exceptions in finalizers; then the signal is sent again."""
        if isinstance(lost.exc_value, StopSignal) and self.number is not None:
            self._ask_again(self.number)
        else:
            sys.__unraisablehook__(lost)

    def _ask_again(self, number: int) -> None:
        if not self._is_lost:
            self._is_lost = True
            threading.Thread(target=self._remind, args=(number,), daemon=True).start()

    def _remind(self, number: int) -> None:
        while self._is_lost:
            time.sleep(REMIND_S)
            with self._lock:
                if self._is_lost:
                    os.kill(os.getpid(), number)


@contextmanager
def raising(*, also: Iterable[int] = (), even_ignored: bool = False) -> Iterator[RaisingHandler]:
    """Within, stop signals, and those in `also`, raise `StopSignal` in the main thread; other threads get none.

    `even_ignored`: Ctrl-C also where a shell started us in the background, with SIGINT ignored.
    """
    known = signal.getsignal(signal.SIGTERM)
    outer = known if isinstance(known, RaisingHandler) else None
    handler = outer or RaisingHandler()
    if threading.current_thread() is not threading.main_thread():
        yield handler
        return
    before: dict[int, Any] = {}
    for number in (*STOP_SIGNALS, *also):
        if signal.getsignal(number) is not signal.SIG_IGN or (even_ignored and number == signal.SIGINT):
            before[number] = signal.signal(number, handler)
    hook, sys.unraisablehook = sys.unraisablehook, handler.look_after
    try:
        with nullcontext() if outer else _leaving_when_stuck(handler):
            yield handler
    finally:
        sys.unraisablehook = hook
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def _leaving_when_stuck(handler: RaisingHandler) -> Iterator[None]:
    """Python's handlers wait until the main thread is back from C, such as from waiting for a rank that left already.

    A thread sees signals at once. Where `handler` is not called in time, it ends the process: nothing was to be saved.
    """
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)

    def is_waiting(number: int) -> bool:
        return handler.number is None and signal.getsignal(number) is handler

    def watch() -> None:
        is_acknowledged = False
        while number := int.from_bytes(os.read(read_end, 1), "big"):
            if number == signal.SIGINT and not is_acknowledged:
                is_acknowledged = True
                time.sleep(PROMPT_S)
                _acknowledge()
            if number in STOP_SIGNALS and is_waiting(number):
                time.sleep(STUCK_S)
                if is_waiting(number):
                    say_stopped(number)
                    os._exit(128 + number)
        os.close(read_end)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.write(write_end, b"\0")
        os.close(write_end)


def _acknowledge() -> None:
    """Tell whoever pressed Ctrl-C at a terminal what happens now, if anything is still to happen."""
    handler = signal.getsignal(signal.SIGINT)
    said = getattr(getattr(handler, "__self__", handler), "acknowledgement", None)
    if said and os.environ.get("RANK", "0") == "0" and os.isatty(2):
        os.write(2, f"\r\x1b[2KCtrl-C: {said}\n".encode())  # in place of a progress bar


def say_stopped(number: int) -> None:
    """One line of the first rank, also where nothing else works any more."""
    if os.environ.get("RANK", "0") == "0":
        os.write(2, f"stopped by {signal.Signals(number).name}; run the same command again\n".encode())


class WaitingStopped(Exception):  # noqa: N818  not an error
    """A signal came in the course of a wait."""


class StopRequests:
    """Listens while entered. The first signal is noted in `number`; a second Ctrl-C, later, interrupts at once.

    `also` are signals by which this job's scheduler says more than "stop": they are noted before all others. Under
    torchrun, which passes on what a terminal has sent already, a second Ctrl-C is the first one.
    """

    acknowledgement = "finishing and saving this step; press Ctrl-C again to stop at once"

    def __init__(self, also: Iterable[int] = ()) -> None:
        self.number: int | None = None
        self.also = tuple(also)
        self._before: dict[int, Any] = {}
        self._since = 0.0
        self._waits = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # others get no signals
            for number in (*STOP_SIGNALS, *self.also):
                if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def asked(self) -> bool:
        """Whether this process was asked to stop."""
        return self.number is not None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a wait that may never end: a signal, or one that came before, ends it with `WaitingStopped`."""
        self._waits = True
        try:
            if self.asked():
                raise WaitingStopped
            yield
        finally:
            self._waits = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.number is None or number in self.also:
            self.number, self._since = number, now
        elif number == signal.SIGINT and "RANK" not in os.environ and now - self._since >= REPEAT_S:
            raise StopSignal(number, "steps since the last checkpoint are lost; run the same command again to resume")
        if self._waits:
            self._waits = False
            raise WaitingStopped


@contextmanager
def held() -> Iterator[None]:
    """Stop signals wait until the end; processes that are started within start with them blocked.

    Blocking is a matter of one thread: what another one receives, the main thread handles. So handlers wait as well.
    """
    waiting: list[int] = []
    handlers: dict[int, Any] = {}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_SIGNALS)
    try:
        if threading.current_thread() is threading.main_thread():
            for number in HELD_SIGNALS:
                if callable(handler := signal.getsignal(number)):
                    handlers[number] = handler
                    signal.signal(number, lambda number, frame: waiting.append(number))
        yield
    finally:
        for stop, handler in handlers.items():
            signal.signal(stop, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for came in waiting:
            signal.raise_signal(came)


def obey_parent_alone(worker: int = 0) -> None:
    """In a process that works for another (`worker` is what torch's loader gives): stop signals of others do nothing.

    It ends when its parent ends it, or is gone. Started within `held`, it never dies of a signal meant for its group.
    """
    parent = os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD_SIGNALS)
    hook = sys.excepthook

    def quiet_hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if not issubclass(kind, ConnectionError | EOFError):  # the parent stopped while it took something from us
            hook(kind, error, traceback)

    sys.excepthook = quiet_hook

    def watch() -> None:
        while os.getppid() == parent:
            if hasattr(signal, "sigtimedwait"):
                found = signal.sigtimedwait(HELD_SIGNALS, WATCH_S)
                if found is not None and found.si_pid == parent:
                    break
            else:  # macOS
                time.sleep(WATCH_S)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
