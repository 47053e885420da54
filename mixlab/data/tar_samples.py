"""What a tar shard holds: the place of each image in it, and its label. A damaged or cut shard is refused."""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mixlab.errors import InputError

from .decode import SUFFIXES, printable

_MAX_CLASSES = 1_000_000
_LARGEST = 2**32 - 1  # bytes of an image, which the decoder refuses far below
_LABEL_SUFFIXES, _MAX_LABEL_BYTES = (".cls", ".json"), 2**26
_BLOCK = 512  # of a tar file; two blocks of zeros are its end
TarSample = tuple[str, int, int, int]  # key, offset, size, label (-1: none)


def scan_shard(shard: Path) -> tuple[list[TarSample], list[str]]:
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    suffixes: dict[str, set[str]] = {}  # of each key
    left_out: list[str] = []
    for member, text in _members(shard):
        key, suffix = _split_name(member.name)
        if not suffix or member.isdir():
            continue
        is_again = suffix in suffixes.setdefault(key, set())
        suffixes[key].add(suffix)
        if not _is_plain(member):
            continue
        if suffix in SUFFIXES:
            images.setdefault(key, (member.offset_data, min(member.size, _LARGEST)))
            left_out += [f"{key}{suffix}"] * is_again
        elif suffix in _LABEL_SUFFIXES:
            place = f"{shard}/{printable(member.name)}"
            label, other = _read_label(text, suffix, place), labels.get(key, -1)
            if -1 not in (label, other) and label != other:
                raise InputError(
                    f"{place} holds class {label}, another file of the same sample holds {other}; keep one"
                )
            labels[key] = max(label, other)
    left_out += [key for key in suffixes if key not in images]
    return [(key, *place, labels.get(key, -1)) for key, place in images.items()], list(map(printable, left_out))


def _split_name(name: str) -> tuple[str, str]:
    """The key of a sample and the suffix, which is empty where a name has no dot, or nothing before it."""
    folder, _, file_name = name.rpartition("/")
    stem, dot, extension = file_name.partition(".")
    return f"{folder}/{stem}".lstrip("/"), f".{extension.lower()}" if dot and stem else ""


def _is_plain(member: tarfile.TarInfo) -> bool:
    """Whether its bytes are there, one after the other; not of a hard link to the same photograph, for example."""
    return member.isreg() and not member.issparse()


def _members(shard: Path) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """The members of a tar file, each with its text where that may be a label."""
    place = -1
    try:
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                if member.size < 0 or member.offset <= place:  # a size that leads backwards would never end
                    raise tarfile.ReadError(f"the header at byte {member.offset:,} is damaged")
                place = member.offset
                is_label = _is_plain(member) and _split_name(member.name)[1] in _LABEL_SUFFIXES
                data = tar.extractfile(member) if is_label else None
                yield member, data.read(_MAX_LABEL_BYTES) if data else b""
            end = tar.offset
    except Exception as error:  # tarfile fails on damaged headers in many ways
        raise InputError(f"{shard} is not a readable tar file ({error}); is it complete and uncompressed?") from error
    _check_end(shard, end)


def _check_end(shard: Path, end: int) -> None:
    """tarfile takes anything but a header for the end of the file; there must be zeros and nothing else."""
    again = "copy or make it again"
    with shard.open("rb") as file:
        file.seek(end)
        block = file.read(_BLOCK)
        if len(block) < _BLOCK:
            place = end + len(block)
            raise InputError(f"{shard} ends at byte {place:,} without the end mark of a tar file: it was cut; {again}")
        if any(block):
            raise InputError(f"{shard} has a damaged header at byte {end:,}; {again}")
        place = end + _BLOCK
        while block := file.read(2**20):
            if rest := block.lstrip(b"\0"):
                raise InputError(
                    f"{shard} has leftover bytes from {place + len(block) - len(rest):,} on, after the end mark of a "
                    f"tar file: two shards in one file? Give each a file of its own, or {again}"
                )
            place += len(block)


def _read_label(data: bytes, suffix: str, name: str) -> int:
    if len(data) == _MAX_LABEL_BYTES:
        raise InputError(f"{name} is larger than {_MAX_LABEL_BYTES:,} bytes; keep little but the class in it")
    try:
        if suffix == ".cls":
            label: Any = int(data.decode())
        else:
            content = json.loads(data)
            known = [content[key] for key in ("label", "cls") if key in content] if isinstance(content, dict) else []
            label = known[0] if known else -1
        if not isinstance(label, str) and label != int(label):
            raise InputError(f"{label} is not a whole number")
        label = int(label)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"{name} holds no class number ({error}); write a whole number, counted from 0") from error
    if not -1 <= label < _MAX_CLASSES:
        raise InputError(f"{name} holds class {label}; classes are whole numbers from 0 to {_MAX_CLASSES - 1:,}")
    return label
