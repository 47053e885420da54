"""A real terminal for what commands print: a pseudo-terminal of some width in the place of stdout."""

import os
import pty
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from unittest.mock import patch


class Screen:
    """What was printed so far."""

    def __init__(self) -> None:
        self.text = ""

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


@contextmanager
def terminal(columns: int = 80, **environment: str) -> Iterator[Screen]:
    """Within, stdout is a terminal of so many columns, without colours unless NO_COLOR="" is given."""
    master, slave = pty.openpty()
    screen = Screen()

    def read() -> None:
        parts = []
        try:
            while part := os.read(master, 65536):
                parts.append(part)
        except OSError:  # Linux says so where the other end is closed
            pass
        screen.text = b"".join(parts).decode().replace("\r\n", "\n")

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with (
            patch.dict(os.environ, {"COLUMNS": str(columns), "NO_COLOR": "1"} | environment),
            os.fdopen(slave, "w", encoding="utf-8") as stream,
            redirect_stdout(stream),
        ):
            yield screen
    finally:
        reader.join()
        os.close(master)
