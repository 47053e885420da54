"""Waiting for processes and threads. What is waited for ends the wait: no test depends on how fast the machine is.

A limit only ends a hang, before the limit of the whole test (`timeout` in pyproject.toml) would, and says what it saw.
"""

import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess

PATIENCE_S = 900.0


def wait_for(condition: Callable[[], object], seconds: float = PATIENCE_S, *, seen: Callable[[], object] = str) -> None:
    """Until `condition` holds; `seen` says how far it came, should it never hold."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {seconds:.0f} s. {seen()}"
        time.sleep(0.002)


def holds_once(check: Callable[[int], None], attempts: int = 6) -> None:
    """Comparisons of times, which a busy machine may upset: in one of several attempts all of `check` must hold."""
    for attempt in range(attempts):
        try:
            check(attempt)
            return
        except AssertionError:
            if attempt == attempts - 1:
                raise


def exit_codes(*processes: BaseProcess) -> list[int | None]:
    """Of processes that end by themselves; none is left."""
    end = time.monotonic() + PATIENCE_S
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    found = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert None not in found, f"exit codes after {PATIENCE_S:.0f} s: {found}"
    return found
