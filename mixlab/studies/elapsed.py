"""How long something took, over all calls that it took: noted as the time passes, so that it survives a kill."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from mixlab.errors import InputError, WorkError
from mixlab.run.codec import check
from mixlab.run.files import read_json, write_json

NOTE_S = 2.0


@contextlib.contextmanager
def noting_time(place: Path, name: str, *, unit_s: float = 1.0) -> Iterator[None]:
    """Add the time spent within to NAME of a JSON file, in units of `unit_s` seconds."""
    place.parent.mkdir(parents=True, exist_ok=True)
    before = elapsed(place).get(name, 0.0)
    start, over = time.monotonic(), threading.Event()

    def note() -> None:
        passed = before + (time.monotonic() - start) / unit_s
        write_json(place, elapsed(place) | {name: round(passed, 2)})

    def note_if_possible() -> None:
        with contextlib.suppress(OSError, WorkError):
            note()

    def watch() -> None:
        while not over.wait(NOTE_S):
            note_if_possible()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    last_note = note_if_possible  # after an error, which is what users should read, also where the disk is full
    try:
        yield
        last_note = note
    finally:
        over.set()
        watcher.join()
        last_note()


def elapsed(place: Path) -> dict[str, float]:
    """What was noted so far, by name."""
    try:
        noted = read_json(place) if place.is_file() else {}
        return {name: check(float, value, f"{name} of {place}") for name, value in noted.items()}
    except InputError as error:
        raise InputError(f"{error}; restore the file, or remove it to count the time from zero") from error
