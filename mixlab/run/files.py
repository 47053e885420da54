"""Files that readers always see whole: written under a temporary name and renamed. JSON, and anything else."""

import json
from pathlib import Path
from typing import Any

from mixlab.errors import InputError
from mixlab.run.aside import written_aside
from mixlab.run.disk import naming_file


def write_json(path: Path, content: dict[str, Any], *, one_line: bool = False) -> None:
    text = json.dumps(content, indent=None if one_line else 2, ensure_ascii=False) + "\n"
    # Names of files need not be UTF-8: their other bytes are written as JSON's own escapes.
    data = text.encode(errors="backslashreplace")
    write_atomically(path, lambda file: file.write(data), len(data))


def read_json(path: Path) -> dict[str, Any]:
    check_regular(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # truncated, not text, or lists in lists without end
        raise InputError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a {type(content).__name__}, expected an object")
    return content


def check_regular(path: Path) -> None:
    """Refuse pipes and devices: reading them may wait forever."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a regular file")


def write_atomically(path: Path, write: Any, num_bytes: int | None = None) -> None:
    """Write a temporary file beside `path`, flush it to disk, and rename it. Permissions follow the umask.

    `num_bytes`, where it is known, is what the error of a full disk names.
    """
    with naming_file(path, num_bytes), written_aside(path) as aside, aside.open("wb") as file:
        write(file)
        file.flush()
