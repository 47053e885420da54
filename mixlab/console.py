"""Where commands print: results to stdout, notes, progress and errors to stderr."""

import os
import re
import sys
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text


def visible(text: str) -> str:
    """Control characters as Python writes them: a file whose name is an escape sequence does nothing to a terminal."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: repr(found[0])[1:-1], text)


def filled(text: Text, width: int) -> Text:
    """With line breaks in place of spaces, where lines would be wider. Words are never broken: a path can be copied."""
    plain, start = list(text.plain), 0
    for word in re.finditer(r"\S+|\n", text.plain):
        if word[0] == "\n":
            start = word.end()
        elif word.end() - start > width and text.plain[start : word.start()].strip():
            plain[word.start() - 1], start = "\n", word.start()
    text = text.copy()
    text.plain = "".join(plain)  # as long as before, so that styles stay where they are
    return text


class _Plain(Console):
    def print(self, *objects: Any, **options: Any) -> None:
        """A sentence in lines that fit the terminal; in a log, in one."""
        if len(objects) == 1 and isinstance(objects[0], str | Text):
            text = objects[0] if isinstance(objects[0], Text) else self.render_str(objects[0])
            objects = (filled(text, self.width) if self.is_terminal else text,)
            options["soft_wrap"] = True
        super().print(*objects, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)


# Of stderr. Brackets, colons and numbers in paths and labels mean nothing to it.
console = _Plain(stderr=True, markup=False, emoji=False, highlight=False)


def takes_colour(stream: TextIO) -> bool:
    """Whether it is a terminal whose user wants colours and bold letters."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def put(line: str, *, bold: bool = False, to_stderr: bool = False) -> None:
    """Print one line of a result as it is, however long; nothing where nobody reads any more (`| head`)."""
    stream = sys.stderr if to_stderr else sys.stdout
    try:
        shown = visible(line)
        print(f"\x1b[1m{shown}\x1b[0m" if bold and takes_colour(stream) else shown, file=stream, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
