"""The list of files under a folder, kept on disk so that a million files start in seconds the second time.

The index is JSON in a cache folder of the user's, never beside the data: every folder with its modification time and
file names. Adding or removing a file changes its folder's time, so folders are checked and files are not.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .decode import SUFFIXES

_FORMAT = 2
_SETTLED_NS = 50_000_000  # file systems count time in ticks: a folder changed within this time may change unseen


@dataclass(frozen=True)
class _Folder:
    path: str  # relative to the root, "/" between parts; "" is the root
    stamp: str
    files: list[str]
    folders: list[str]


def list_images(root: str | Path, *, cache: str | Path | None = None) -> list[str]:
    """Paths of all image files below `root`, relative to it and sorted; names with a leading dot are left out.

    `cache` is a folder for the index, `cache_folder()` without one.
    """
    root = Path(root)
    file = index_file("folder", root, cache)
    folders = _read(file, root)
    if folders is None:
        folders = list(_scan(root))
        write_index(file, {"format": _FORMAT, "folders": [vars(folder) for folder in folders]})
    return _paths(folders)


def cache_folder() -> Path:
    """Where indexes are kept: $MIXLAB_CACHE, or mixlab/ in $XDG_CACHE_HOME or ~/.cache."""
    if chosen := os.environ.get("MIXLAB_CACHE"):
        return Path(chosen)
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        return Path(chosen) / "mixlab"
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - stays "~" for users without a home, as in containers
    return home / ".cache" / "mixlab" if home.is_absolute() else Path(tempfile.gettempdir()) / f"mixlab-{os.getuid()}"


def index_file(kind: str, indexed: Path, cache: str | Path | None) -> Path:
    """The file of one index, named for what is indexed."""
    name = hashlib.sha256(os.fsencode(indexed.resolve())).hexdigest()[:24]
    return (cache_folder() if cache is None else Path(cache)) / f"{kind}-{name}.json"


def write_index(file: Path, content: dict[str, Any]) -> None:
    """Write an index if possible; without one, everything works but starts more slowly."""
    aside = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(content, ensure_ascii=True), encoding="utf-8")
        aside.replace(file)
    except OSError:
        with suppress(OSError):
            aside.unlink(missing_ok=True)


def find_images(root: str | Path) -> list[str]:
    """The same list, looked up afresh and kept nowhere."""
    return _paths(list(_scan(Path(root))))


def _paths(folders: list[_Folder]) -> list[str]:
    return sorted(f"{folder.path}/{name}" if folder.path else name for folder in folders for name in folder.files)


def _scan(root: Path) -> Iterator[_Folder]:
    if not root.is_dir():
        raise NotADirectoryError(f"{root} is not a folder; give a folder of images")
    waiting, seen = [""], {os.path.realpath(root)}
    while waiting:
        path = waiting.pop()
        here = root / path
        stamp = _stamp(here)  # before the listing: a file that arrives later makes the cache stale
        files, folders = [], []
        with os.scandir(here) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if _is_folder(entry):
                    real = os.path.realpath(entry.path)
                    if real not in seen:  # a link back up would never end
                        seen.add(real)
                        folders.append(f"{path}/{entry.name}" if path else entry.name)
                elif os.path.splitext(entry.name)[1].lower() in SUFFIXES:  # noqa: PTH122 - a million Paths are slow
                    files.append(entry.name)
        waiting.extend(folders)
        yield _Folder(path, stamp, sorted(files), sorted(folders))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself; where it is called like an image, reading it says so
        return False


def _stamp(folder: Path) -> str:
    changed = folder.stat().st_mtime_ns
    return str(changed) if time.time_ns() - changed > _SETTLED_NS else "just changed"


def _read(file: Path, root: Path) -> list[_Folder] | None:
    try:
        stored = json.loads(file.read_text(encoding="utf-8", errors="surrogateescape"))
        if stored["format"] != _FORMAT:
            return None
        folders = [_Folder(**folder) for folder in stored["folders"]]
        if not all(isinstance(name, str) for folder in folders for name in (*folder.files, *folder.folders)):
            return None
        fresh = all(_stamp(root / folder.path) == folder.stamp for folder in folders)
    except (OSError, ValueError, KeyError, TypeError):
        return None  # no cache, a damaged one, or a folder that is gone: look again
    unsettled = any(folder.stamp == "just changed" for folder in folders)
    return folders if folders and fresh and not unsettled else None
