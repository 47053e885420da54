"""Indexes of data on disk: a header as JSON, then plain arrays, which are mapped and not read.

All processes of a machine share what they map, and touch only what they look up. Indexes are kept in a cache folder of
the user's, never beside the data; without one, everything works but starts more slowly.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_MAGIC = b"mixlab index 1\n\0"
_ALIGN = 64
_KINDS = {"u1", "u4", "i4", "i8"}
_trusts = False


class StoredIndex(NamedTuple):
    """What `read_index` found, or what is to be written."""

    about: dict[str, Any]
    arrays: Mapping[str, NDArray[Any]]


@contextmanager
def trusting_indexes() -> Iterator[None]:
    """Within, stored indexes are taken as they are: another process of this machine has just compared them with the
    data.
    """
    global _trusts
    before, _trusts = _trusts, True
    try:
        yield
    finally:
        _trusts = before


def is_trusted() -> bool:
    return _trusts


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
    return (cache_folder() if cache is None else Path(cache)) / f"{kind}-{name}.index"


def write_index(file: Path, index: StoredIndex) -> None:
    """Write an index if possible."""
    aside = file.with_name(f"{file.name}.{os.getpid()}")
    places: dict[str, tuple[str, int, int]] = {}  # kind, number and first byte of each
    end = 0
    for name, array in index.arrays.items():
        places[name] = (array.dtype.str[1:], len(array), end)
        end += -(-array.nbytes // _ALIGN) * _ALIGN
    header = json.dumps({"about": index.about, "arrays": places, "bytes": end}, ensure_ascii=True).encode()
    start = _start_of(len(header))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as out:
            out.write(_MAGIC + len(header).to_bytes(8, "little") + zlib.crc32(header).to_bytes(8, "little") + header)
            for (_, _, place), array in zip(places.values(), index.arrays.values(), strict=True):
                out.write(b"\0" * (start + place - out.tell()))
                np.ascontiguousarray(array).tofile(out)
            out.write(b"\0" * (start + end - out.tell()))
        aside.replace(file)
        file.with_suffix(".json").unlink(missing_ok=True)  # of older versions
    except OSError:
        with suppress(OSError):
            aside.unlink(missing_ok=True)


def read_index(file: Path) -> StoredIndex | None:
    """An index, mapped; None where there is none, or it is not what was written."""
    try:
        with file.open("rb") as stored:
            if stored.read(len(_MAGIC)) != _MAGIC:
                return None
            length, checksum = (int.from_bytes(stored.read(8), "little") for _ in range(2))
            size = os.fstat(stored.fileno()).st_size
            header = stored.read(length) if length <= size else b""
            if len(header) != length or zlib.crc32(header) != checksum:
                return None
            content = json.loads(header)
            start = _start_of(length)
            if size != start + content["bytes"]:
                return None
            whole = np.memmap(stored, dtype=np.uint8, mode="r") if content["bytes"] else np.zeros(start, np.uint8)
        arrays = {}
        for name, (kind, count, place) in content["arrays"].items():
            first, last = start + place, start + place + count * np.dtype(kind).itemsize
            if kind not in _KINDS or not start <= first <= last <= size:
                return None
            arrays[name] = np.asarray(whole)[first:last].view(kind)
        return StoredIndex(content["about"], arrays)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def digest_of(about: list[str], arrays: Iterable[NDArray[Any]]) -> str:
    """A checksum of texts and of mapped arrays, some GB a second."""
    digest = hashlib.blake2b(json.dumps(about).encode(), digest_size=16)
    for array in arrays:
        digest.update(f"{array.dtype.str}{len(array)} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _start_of(header: int) -> int:
    """Where the arrays begin."""
    return -(-(len(_MAGIC) + 16 + header) // _ALIGN) * _ALIGN


class Names:
    """Many names as bytes in a row, and where each of them ends: a few bytes each beside their own."""

    def __init__(self, text: NDArray[np.uint8], ends: NDArray[Any]) -> None:
        self.text, self.ends = text, ends

    @classmethod
    def of(cls, names: list[str]) -> Names:
        coded = [os.fsencode(name) for name in names]
        text = np.frombuffer(b"".join(coded), dtype=np.uint8)
        return cls(text, np.cumsum([len(name) for name in coded], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> str:
        first = int(self.ends[index - 1]) if index else 0
        return os.fsdecode(self.text[first : int(self.ends[index])].tobytes())
