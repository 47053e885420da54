"""Files and folders are made under a hidden name beside their place, and appear there whole or not at all.

Whoever makes one holds a lock on it. What a killed process left behind is not locked: the next one removes it.
"""

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mixlab.errors import InputError


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """A file to write to instead of `path`, which it replaces at the end; if anything fails, `path` stays as it was."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is a folder, a device or a pipe and cannot be replaced by a file; name another file")
    with _made_aside(path, is_folder=False) as aside:
        yield aside
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        aside.replace(path)


@contextmanager
def folder_aside(path: Path) -> Iterator[Path]:
    """An empty folder beside `path`, removed at the end."""
    with _made_aside(path, is_folder=True) as aside:
        yield aside


@contextmanager
def _made_aside(path: Path, *, is_folder: bool) -> Iterator[Path]:
    _remove_leftovers(path)
    aside, handle = _new_and_locked(path, is_folder=is_folder)
    try:
        yield aside
    finally:
        _remove(aside)
        os.close(handle)


def _new_and_locked(path: Path, *, is_folder: bool) -> tuple[Path, int]:
    """Something new under a hidden name, and a handle that locks it."""
    while True:
        aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        try:
            aside.mkdir() if is_folder else aside.touch(exist_ok=False)  # with the permissions that the umask leaves
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error  # by the name that was asked for
        with suppress(FileNotFoundError):
            handle = os.open(aside, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks: leftovers stay
                fcntl.flock(handle, fcntl.LOCK_EX)
            if aside.exists():  # else another process took it for a leftover before it was locked
                return aside, handle
            os.close(handle)


def _remove_leftovers(path: Path) -> None:
    form = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.partial")
    with suppress(OSError):
        for entry in [path.with_name(name) for name in os.listdir(path.parent) if form.fullmatch(name)]:  # noqa: PTH208
            with suppress(OSError):  # in use, or not ours to open
                handle = os.open(entry, os.O_RDONLY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(entry)
                finally:
                    os.close(handle)


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)
