"""The list of files under a folder, kept on disk so that a million files start in seconds the second time.

The cache is JSON: every folder below the root with its modification time and file names. Adding or removing a file
changes its folder's time, so folders are checked and files are not. The root itself is checked by its names, because
the cache may live there.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .decode import SUFFIXES

CACHE_NAME = ".mixlab-index.json"
_FORMAT = 1
_SETTLED_NS = 50_000_000  # file systems count time in ticks: a folder changed within this time may change unseen


@dataclass(frozen=True)
class _Folder:
    path: str  # relative to the root, "/" between parts; "" is the root
    stamp: str
    files: list[str]
    folders: list[str]


def list_images(root: str | Path, *, cache: str | Path | None = None) -> list[str]:
    """Paths of all image files below `root`, relative to it and sorted; names with a leading dot are left out.

    `cache` is a folder for the index; without one it goes into `root` if that is writable, and otherwise nowhere.
    """
    root = Path(root)
    if cache is None:
        place = root / CACHE_NAME
    else:
        place = Path(cache) / f"index-{hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:24]}.json"
    folders = _read(place, root)
    if folders is None:
        folders = list(_scan(root))
        _write(place, folders)
    return _paths(folders)


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
        stamp = _stamp(here, is_root=not path)  # before the listing: a file that arrives later makes the cache stale
        files, folders = [], []
        with os.scandir(here) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    real = os.path.realpath(entry.path)
                    if real not in seen:  # a link back up would never end
                        seen.add(real)
                        folders.append(f"{path}/{entry.name}" if path else entry.name)
                elif os.path.splitext(entry.name)[1].lower() in SUFFIXES:  # noqa: PTH122 - a million Paths are slow
                    files.append(entry.name)
        waiting.extend(folders)
        yield _Folder(path, stamp, sorted(files), sorted(folders))


def _stamp(folder: Path, *, is_root: bool) -> str:
    if not is_root:
        changed = folder.stat().st_mtime_ns
        return str(changed) if time.time_ns() - changed > _SETTLED_NS else "just changed"
    names = sorted(name for name in os.listdir(folder) if not name.startswith("."))  # noqa: PTH208 - names only
    return hashlib.sha256("\0".join(names).encode("utf-8", "surrogateescape")).hexdigest()


def _read(place: Path, root: Path) -> list[_Folder] | None:
    try:
        stored = json.loads(place.read_text(encoding="utf-8", errors="surrogateescape"))
        if stored["format"] != _FORMAT:
            return None
        folders = [_Folder(**folder) for folder in stored["folders"]]
        fresh = all(_stamp(root / folder.path, is_root=not folder.path) == folder.stamp for folder in folders)
    except (OSError, ValueError, KeyError, TypeError):
        return None  # no cache, a damaged one, or a folder that is gone: look again
    unsettled = any(folder.stamp == "just changed" for folder in folders)
    return folders if folders and fresh and not unsettled else None


def _write(place: Path, folders: list[_Folder]) -> None:
    content = json.dumps({"format": _FORMAT, "folders": [vars(folder) for folder in folders]}, ensure_ascii=True)
    aside = place.with_name(f"{place.name}.{os.getpid()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(content, encoding="utf-8")
        aside.replace(place)
    except OSError:  # a read-only folder works too, only without a cache
        aside.unlink(missing_ok=True)
