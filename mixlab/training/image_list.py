"""RUN/images.jsonl.gz: the images that a run was started with, so that it resumes after some were removed.

A first line with their number, classes and checksum, then a line [label, name] for each. An image's number decides when
it is seen; the next one takes the place of one that is gone.
"""

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

from mixlab.data.listed import ImageList, ListedSource
from mixlab.data.source import Source
from mixlab.errors import InputError
from mixlab.run.directory import write_atomically

FILE = "images.jsonl.gz"


def write_list(folder: Path, source: Source[Any]) -> None:
    """Note the images of a source."""
    listed = ImageList.of(source)
    rows = [json.dumps(list(row)) for row in zip(listed.labels, listed.names, strict=True)]
    about = {"number": len(rows), "classes": list(listed.classes), "checksum": _checksum(rows)}
    data = gzip.compress("\n".join([json.dumps(about), *rows, ""]).encode(), compresslevel=1, mtime=0)
    write_atomically(folder / FILE, lambda file: file.write(data), len(data))


def changed_list(folder: Path, source: Source[Any]) -> ImageList | None:
    """The images that were noted; None where none were, or they are those of the source."""
    place = folder / FILE
    if not place.is_file():
        return None
    try:
        with gzip.open(place, "rt", encoding="utf-8") as file:
            about = json.loads(file.readline())
            now = ImageList.of(source)
            rows = [json.dumps(list(row)) for row in zip(now.labels, now.names, strict=True)]
            if about["checksum"] == _checksum(rows) and tuple(about["classes"]) == now.classes:
                return None
            stored = [line.rstrip("\n") for line in file]
        if len(stored) != about["number"] or _checksum(stored) != about["checksum"]:
            raise InputError("its lines are not those that were written")
        labels, names = zip(*map(json.loads, stored), strict=True)
        return ImageList(names, labels, tuple(about["classes"]))
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{place} is damaged ({error}), and the images are not known to be those that the run was started with; "
            f"restore it, or put the images back as they were and remove {place}"
        ) from error


def as_listed(source: Source[Any], listed: ImageList, *, name: str) -> tuple[ListedSource[Any], str]:
    """The source with the numbers of the list, and a sentence about what is different."""
    found = ListedSource(source, listed)
    if found.num_removed == len(found):
        raise InputError(f"none of the {len(found)} images that the run was started with is in {name}; check the path")
    parts = []
    if found.num_removed:
        parts.append(
            f"{found.num_removed:,} of the {len(found):,} images that the run was started with are gone; "
            "the others keep their places, and the next one is seen instead"
        )
    if found.num_new:
        parts.append(f"{found.num_new:,} new images are left out, since the run was started without them")
    return found, f"{name}: {'. '.join(parts) or 'classes are numbered as they were'}"


def _checksum(rows: list[str]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(row.encode())
        digest.update(b"\n")
    return digest.hexdigest()
