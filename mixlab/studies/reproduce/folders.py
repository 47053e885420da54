"""A data set as it unpacks from its archives: where it is expected, and what is wrong with the folder that is there.

A problem is a sentence that says what to do, and stops an item; a note says what will differ from the papers.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mixlab.data.decode import SUFFIXES
from mixlab.data.images import child
from mixlab.errors import counted, few

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".zip")


@dataclass(frozen=True)
class Found:
    """The folder that commands are given, None where there is none; what stops them, and what they should know.

    `arrange` is a job of `arrange.py` that has to make the folder first, with its arguments but the last.
    """

    place: Path | None = None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    arrange: tuple[str, ...] = ()


def stopped(problem: str) -> Found:
    return Found(problems=(problem,))


def together(place: Path, parts: Sequence[Found]) -> Found:
    """What was found of the parts of a data set, as one; without its place where anything stops it."""
    problems = tuple(problem for part in parts for problem in part.problems)
    notes = tuple(note for part in parts for note in part.notes)
    arrange = tuple(word for part in parts for word in part.arrange)
    return Found(None, problems, notes) if problems else Found(place, (), notes, arrange)


@dataclass(frozen=True)
class DataSet:
    """A set: its place below the root, other places where people have it, and how it gets there."""

    title: str
    place: str
    unpack: str
    look: Callable[[Path, "DataSet"], Found]
    archives: tuple[str, ...]  # how the names of its archives begin
    also: tuple[str, ...] = ()

    def find(self, root: Path) -> Found:
        return self.look(root, self)

    def folder(self, root: Path, *parts: str) -> Path | None:
        """The first of its places that exists, and that holds one of these folders where some are named."""
        places = [root / name for name in (self.place, *self.also)]
        return next((each for each in places if each.is_dir() and (not parts or child(each, *parts))), None)

    def missing(self, root: Path) -> Found:
        """Not there: its archives may be."""
        packed = [name for name in files_in(root) if name.endswith(ARCHIVES) and name.startswith(self.archives)]
        hint = f" {', '.join(packed)} is in {root}, but not unpacked." if packed else ""
        return stopped(f"{self.title} is not in {root / self.place}.{hint} {self.unpack}")


def check_classes(
    place: Path, known: Sequence[str], released: int, title: str, layout: str = "folders named by synset"
) -> Found:
    """A folder with one folder of images per class."""
    counts = {folder.name: sum(map(is_image, files_in(folder))) for folder in folders_in(place)}
    strange = sorted(counts.keys() - set(known))
    if not counts or len(strange) == len(counts):
        there = few(strange) if strange else few(files_in(place)) or "nothing"
        nested = [name for name in strange if {folder.name for folder in folders_in(place / name)} & set(known)]
        advice = f"move what is in {place / nested[0]} up into {place}" if nested else "unpack the archive again"
        return stopped(f"{title} need {layout}, such as {known[0]}; {place} holds {there}: {advice}")
    if strange:
        return stopped(
            f"{place} has folders that are no class of {title}: {few(strange)}. Move them elsewhere: each would count "
            "as a class"
        )
    loose = [name for name in files_in(place) if is_image(name)]
    if loose:
        return stopped(
            f"{place} has {counted(loose, 'image', 'images')} beside its class folders, such as {loose[0]}: then no "
            "image has a class. Move each into its folder, or elsewhere"
        )
    lacking = [name for name in known if not counts.get(name)]
    notes = []
    if lacking:
        notes.append(f"{len(lacking):,} of {len(known):,} classes of {title} have no image: {few(lacking, 3)}")
    total = sum(counts.values())
    if total != released:
        notes.append(f"{place} has {total:,} images, released are {released:,}")
    return Found(place, notes=tuple(notes))


def folders_in(place: Path) -> list[Path]:
    if not place.is_dir():
        return []
    with os.scandir(place) as entries:
        return [Path(entry.path) for entry in entries if entry.is_dir() and not entry.name.startswith(".")]


def files_in(place: Path) -> list[str]:
    if not place.is_dir():
        return []
    with os.scandir(place) as entries:
        return sorted(entry.name for entry in entries if not entry.is_dir() and not entry.name.startswith("."))


def is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in SUFFIXES  # noqa: PTH122 - a million Paths are slow
