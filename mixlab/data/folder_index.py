"""The list of files under a folder, kept on disk so that a hundred million files start in seconds the second time.

The index has every folder with its modification time, and the names of its files. Adding or removing a file changes its
folder's time, so folders are checked and files are not. Paths come in the order of their text; a run is a stretch of
them in one folder. So a path takes its own name and four bytes.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from .decode import SUFFIXES
from .index_file import Names, StoredIndex, index_file, is_trusted, read_index, write_index

_FORMAT = 4
_BLOCK = 10_000  # paths that are looked up at once
_SETTLED_NS = 50_000_000  # file systems count time in ticks: a folder changed within this time may change unseen
_JUST_CHANGED = -1  # the stamp of such a folder
_LONGEST_RUN = 2**32 - 2**16  # bytes of names: their places are 32 bits
_ARRAYS = ("folders", "folder_ends", "stamps", "run_folders", "run_starts", "run_bases", "names", "ends")


class PathTable(Sequence[str]):
    """Paths of files, relative to a folder, "/" between parts, sorted; nothing of them is in Python's memory."""

    def __init__(self, index: StoredIndex) -> None:
        arrays = index.arrays
        self.folders = Names(arrays["folders"], arrays["folder_ends"])  # "" is the root
        self.stamps = arrays["stamps"]
        self.run_folders, self.run_starts, self.run_bases = (
            np.array(arrays[name]) for name in ("run_folders", "run_starts", "run_bases")
        )
        self._names, self._ends = arrays["names"], arrays["ends"]

    @classmethod
    def of(cls, paths: Sequence[str]) -> PathTable:
        """A table of a few paths, given in order."""
        builder = _TableBuilder()
        folders: dict[str, int] = {}
        for path in paths:
            folder, _, name = path.rpartition("/")
            if folder not in folders:
                folders[folder] = builder.add_folder(folder, 0)
            builder.add_file(folders[folder], name)
        return cls(builder.finish())

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        run = self.run_of(place)
        base = int(self.run_bases[run])
        first = int(self._ends[place - 1]) if place > self.run_starts[run] else 0
        name = os.fsdecode(self._names[base + first : base + int(self._ends[place])].tobytes())
        folder = self.folders[int(self.run_folders[run])]
        return f"{folder}/{name}" if folder else name

    def __iter__(self) -> Iterator[str]:
        for run, (start, number) in enumerate(zip(self.run_starts.tolist(), self.run_lengths().tolist(), strict=True)):
            folder, base = self.folders[int(self.run_folders[run])], int(self.run_bases[run])
            prefix, first = f"{folder}/" if folder else "", 0
            for block in range(start, start + number, _BLOCK):
                ends = self._ends[block : min(block + _BLOCK, start + number)].tolist()
                text = self._names[base + first : base + ends[-1]].tobytes()
                for end, last in zip(ends, [first, *ends], strict=False):
                    yield prefix + os.fsdecode(text[last - first : end - first])
                first = ends[-1]

    def arrays(self) -> list[NDArray[Any]]:
        """All that the paths are made of."""
        runs = [self.run_folders, self.run_starts, self.run_bases]
        return [self.folders.text, self.folders.ends, *runs, self._names, self._ends]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(str.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def run_of(self, index: int) -> int:
        return int(np.searchsorted(self.run_starts, index, side="right")) - 1

    def run_lengths(self) -> NDArray[np.int64]:
        return np.diff(self.run_starts, append=len(self))


def list_images(root: str | Path, *, cache: str | Path | None = None) -> PathTable:
    """Paths of all image files below `root`, relative to it and sorted.

    Names with a leading dot are left out, and the pictures that commands drew into a run in there.

    `cache` is a folder for the index, `cache_folder()` without one.
    """
    root = Path(root)
    file = index_file("folder", root, cache)
    found = _read(file, root)
    if found is None:
        index = scan_folder(root)
        write_index(file, index)
        found = read_index(file) or index  # mapped where it can be: then all processes share it
    return PathTable(found)


@dataclass
class _TableBuilder:
    """Collects folders and, in order, files."""

    def __post_init__(self) -> None:
        self._folders: list[str] = []
        self._stamps = array("q")
        self._runs: tuple[array[int], array[int], array[int]] = array("i"), array("q"), array("q")
        self._names = bytearray()
        self._ends = array("I")

    def add_folder(self, path: str, stamp: int) -> int:
        self._folders.append(path)
        self._stamps.append(stamp)
        return len(self._folders) - 1

    def add_file(self, folder: int, name: str) -> None:
        run_folders, _, run_bases = self._runs
        if not run_folders or run_folders[-1] != folder or len(self._names) - run_bases[-1] > _LONGEST_RUN:
            for values, value in zip(self._runs, (folder, len(self._ends), len(self._names)), strict=True):
                values.append(value)
        self._names += os.fsencode(name)
        self._ends.append(len(self._names) - run_bases[-1])

    def finish(self) -> StoredIndex:
        folders = Names.of(self._folders)
        run_folders, run_starts, run_bases = self._runs
        arrays: tuple[NDArray[Any], ...] = (
            folders.text,
            folders.ends,
            np.array(self._stamps, dtype="i8"),
            np.array(run_folders, dtype="i4"),
            np.array(run_starts, dtype="i8"),
            np.array(run_bases, dtype="i8"),
            np.frombuffer(self._names, dtype="u1"),
            np.frombuffer(self._ends, dtype="u4"),
        )
        return StoredIndex({"format": _FORMAT}, dict(zip(_ARRAYS, arrays, strict=True)))


def scan_folder(root: Path) -> StoredIndex:
    """Walk the folder in the order of its paths: a folder sorts as its name with a "/" after it."""
    if not root.is_dir():
        raise NotADirectoryError(f"{root} is not a folder; give a folder of images")
    table, seen = _TableBuilder(), {os.path.realpath(root)}

    def entries_of(path: str) -> tuple[int, Iterator[str]]:
        stamp = _stamp(root / path)  # before the listing: a file that arrives later makes the cache stale
        return table.add_folder(path, stamp), iter(_entries(root / path, seen))

    walk = [("", *entries_of(""))]
    while walk:
        path, number, entries = walk[-1]
        name = next(entries, None)
        if name is None:
            walk.pop()
        elif name.endswith("/"):
            below = f"{path}/{name[:-1]}" if path else name[:-1]
            walk.append((below, *entries_of(below)))
        else:
            table.add_file(number, name)
    return table.finish()


def _entries(here: Path, seen: set[str]) -> list[str]:
    """Images and folders of a folder, the latter with a "/", in the order of the paths they lead to."""
    found = []
    with os.scandir(here) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if _is_folder(entry):
                real = os.path.realpath(entry.path)
                if real not in seen:  # a link back up would never end
                    seen.add(real)
                    found.append(f"{entry.name}/")
            elif os.path.splitext(entry.name)[1].lower() in SUFFIXES:  # noqa: PTH122 - a million Paths are slow
                found.append(entry.name)
    if "figures/" in found and "results/" in found and _holds_results(here / "results"):
        found.remove("figures/")  # a run: its pictures are of these images, and none of them
    return sorted(found)


def _holds_results(folder: Path) -> bool:
    """Whether a folder has what commands write into `results/` of a run, and no images: then it is no class."""
    return {os.path.splitext(name)[1].lower() for name in os.listdir(folder)} & {".json", *SUFFIXES} == {".json"}  # noqa: PTH122, PTH208


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself; where it is called like an image, reading it says so
        return False


def _stamp(folder: Path | str) -> int:
    changed = os.stat(folder).st_mtime_ns  # noqa: PTH116 - a hundred thousand Paths are slow
    return changed if time.time_ns() - changed > _SETTLED_NS else _JUST_CHANGED


def _read(file: Path, root: Path) -> StoredIndex | None:
    """The stored index, where it fits the folder as it is now."""
    index = read_index(file)
    if index is None or index.about.get("format") != _FORMAT or not _is_sound(index.arrays):
        return None
    if is_trusted():
        return index
    folders, stamps = Names(index.arrays["folders"], index.arrays["folder_ends"]), index.arrays["stamps"]
    if (stamps == _JUST_CHANGED).any():
        return None
    try:
        fresh = all(_stamp(f"{root}/{folders[number]}") == stamp for number, stamp in enumerate(stamps.tolist()))
    except (OSError, ValueError):
        return None  # a folder that is gone: look again
    return index if fresh else None


def _is_sound(arrays: Any) -> bool:
    """Whether nothing leads outside: the arrays that are small are looked at."""
    if set(arrays) != set(_ARRAYS):
        return False
    folders, runs = len(arrays["folder_ends"]), len(arrays["run_folders"])
    ends, starts, bases = arrays["folder_ends"], arrays["run_starts"], arrays["run_bases"]
    return (
        folders > 0
        and len(arrays["stamps"]) == folders
        and len(starts) == len(bases) == runs
        and (runs > 0) == (len(arrays["ends"]) > 0)
        and _rises(ends, len(arrays["folders"]))
        and (runs == 0 or (int(starts[0]) == 0 and int(arrays["run_folders"].min()) >= 0))
        and (runs == 0 or int(arrays["run_folders"].max()) < folders)
        and _rises(starts, len(arrays["ends"]))
        and _rises(bases, len(arrays["names"]))
    )


def _rises(values: NDArray[Any], limit: int) -> bool:
    return not len(values) or bool(values[0] >= 0 and values[-1] <= limit and (np.diff(values) >= 0).all())
