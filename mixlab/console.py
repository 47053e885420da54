"""Where commands print: results to stdout, notes, progress and errors to stderr."""

import os
import sys

from rich.console import Console

# Of stderr. Brackets, colons and numbers in paths and labels mean nothing to it.
console = Console(stderr=True, markup=False, emoji=False, highlight=False)


def put(line: str, *, bold: bool = False, to_stderr: bool = False) -> None:
    """Print one line of a result as it is, however long; nothing where nobody reads any more (`| head`)."""
    stream = sys.stderr if to_stderr else sys.stdout
    coloured = bold and stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    try:
        print(f"\x1b[1m{line}\x1b[0m" if coloured else line, file=stream, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
