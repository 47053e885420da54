"""RUN/images.jsonl.gz: the images that a run was started with, so that it resumes after some were removed.

A first line with their number, classes, checksum and the digest of their source, then a line [label, name] for each. An
image's number decides when it is seen; the next one takes the place of one that is gone. Where the digest is the same,
no line is looked at.
"""

import gzip
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from mixlab.data.listed import ImageList, ListedSource
from mixlab.data.source import Source
from mixlab.errors import InputError, counted
from mixlab.run.files import write_atomically

FILE = "images.jsonl.gz"


def write_list(folder: Path, source: Source[Any]) -> None:
    """Note the images of a source. The lines are compressed on their way, so that no list of them is in memory."""
    digest, number = hashlib.sha256(), 0
    with tempfile.TemporaryFile(dir=folder) as lines:
        with gzip.GzipFile(fileobj=lines, mode="wb", compresslevel=1, mtime=0) as packed:
            for row in _rows(source):
                packed.write(line := row.encode() + b"\n")
                digest.update(line)
                number += 1
        about = {"number": number, "classes": list(source.classes), "checksum": digest.hexdigest()}
        about["source"] = source.digest()
        first = gzip.compress(json.dumps(about).encode() + b"\n", compresslevel=1, mtime=0)
        size = len(first) + lines.tell()
        lines.seek(0)

        def write(file: Any) -> None:
            file.write(first)  # one gzip after another is one
            shutil.copyfileobj(lines, file, 2**20)

        write_atomically(folder / FILE, write, size)


def changed_list(folder: Path, source: Source[Any]) -> ImageList | None:
    """The images that were noted; None where none were, or they are those of the source."""
    place = folder / FILE
    if not place.is_file():
        return None
    with _reading(place) as file:
        about = json.loads(file.readline())
        digest, number, checksum, classes = about.get("source"), about["number"], about["checksum"], about["classes"]
    if digest is not None and digest == source.digest():
        return None
    if checksum == _checksum(_rows(source)) and tuple(classes) == source.classes:
        return None
    with _reading(place) as file:
        stored = [line.rstrip("\n") for line in file][1:]
        if len(stored) != number or _checksum(stored) != checksum:
            raise InputError("its lines are not those that were written")
        labels, names = zip(*map(json.loads, stored), strict=True)
        return ImageList(names, labels, tuple(classes))


def has_same_list(folder: Path, source: Source[Any]) -> bool:
    """Whether images were noted, and they are those of the source, by their names and labels."""
    return (folder / FILE).is_file() and changed_list(folder, source) is None


@contextmanager
def _reading(place: Path) -> Iterator[TextIO]:
    """The file, whose damages are named; what the source itself does wrong is none of them."""
    try:
        with gzip.open(place, "rt", encoding="utf-8") as file:
            yield file
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{place} is damaged ({error}), and the images are not known to be those that the run was started with; "
            f"restore it, or put the images back as they were and remove {place}"
        ) from error


def _rows(source: Source[Any]) -> Iterator[str]:
    labels = source.labels().numpy()  # not a list: it may be long
    for label, name in zip(labels, source.names(), strict=True):
        yield f"[{label}, {json.dumps(name)}]"


def as_listed(source: Source[Any], listed: ImageList, *, name: str) -> tuple[ListedSource[Any], str]:
    """The source with the numbers of the list, and a sentence about what is different."""
    found = ListedSource(source, listed)
    if found.num_removed == len(found):
        images = counted(found, "image", "images")
        raise InputError(f"none of the {images} that the run was started with is in {name}; check the path")
    parts = []
    if found.num_removed:
        parts.append(
            f"{found.num_removed:,} of the {len(found):,} images that the run was started with "
            f"{'is' if found.num_removed == 1 else 'are'} gone; the others keep their places, and the next one is seen "
            "instead"
        )
    if found.num_new:
        new = counted(found.num_new, "new image is", "new images are")
        parts.append(f"{new} left out, since the run was started without {'it' if found.num_new == 1 else 'them'}")
    return found, f"{name}: {'. '.join(parts) or 'classes are numbered as they were'}"


def _checksum(rows: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(row.encode())
        digest.update(b"\n")
    return digest.hexdigest()
