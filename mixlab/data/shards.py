"""Images in tar shards of the webdataset layout, read in place: one sample is the files with one name before the dot.

Each shard is indexed once (offsets and sizes, kept as JSON in the cache folder), after which any sample is one seek
away. So shards shuffle and resume like folders do, with no shuffle buffer; the price is random access, so keep shards
on a local disk.
"""

from __future__ import annotations

import glob
import json
import os
import re
import tarfile
import warnings
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mixlab.errors import InputError

from .decode import (
    SUFFIXES,
    Reduction,
    UnreadableImage,
    decode,
    decode_pixels,
    decode_reduced,
    fit_image,
    printable,
    to_tensor,
)
from .folder_index import index_file, write_index
from .source import ImageSource, few

_FORMAT = 2
_MAX_CLASSES = 1_000_000
_MAX_LABEL_BYTES = 2**26  # of a .cls or .json file
_BLOCK = 512  # of a tar file; two blocks of zeros are its end
_Sample = tuple[str, int, int, int]  # key, offset, size, label (-1: none)


class TarShards(ImageSource):
    """Samples of one or many tar files: `data-{000..099}.tar`, `data-*.tar`, or a single file.

    The label is a whole number in the sample's `.cls` file, or `label` (or `cls`) in its `.json` file. A shard that is
    damaged or cut is refused; samples without an image are left out, and a warning names them.
    """

    def __init__(self, pattern: str, *, cache: str | Path | None = None) -> None:
        self.shards = expand_pattern(pattern)
        found = [_index_shard(shard, cache) for shard in self.shards]
        indexes = [samples for samples, _ in found]
        samples = [sample for index in indexes for sample in index]
        self.unpaired = tuple(
            f"{s.name}/{key}" for s, (_, keys) in zip(self.shards, found, strict=True) for key in keys
        )
        if not samples:
            raise FileNotFoundError(f"wds:{pattern} holds no images; a sample needs a file such as 000001.jpg")
        if self.unpaired:
            warnings.warn(
                f"wds:{pattern}: {len(self.unpaired)} samples have no image, or a second file of the same name; these "
                f"are left out: {few(self.unpaired)}",
                stacklevel=2,
            )
        self.keys = [sample[0] for sample in samples]
        self._where = np.array([sample[1:] for sample in samples], dtype=np.int64)  # (n, 3)
        self._shard_ends = np.cumsum([len(index) for index in indexes])
        self.classes = tuple(str(number) for number in range(int(self._where[:, 2].max()) + 1))

    def __len__(self) -> int:
        return len(self.keys)

    def load(self, index: int) -> Tensor:
        return to_tensor(decode_pixels(self._read(index), name=self.name(index)))

    def load_fitted(self, index: int, size: int, fit: str) -> tuple[Tensor, tuple[int, int]]:
        image = decode(self._read(index), name=self.name(index), draft=size)
        return to_tensor(fit_image(image, size=size, fit=fit)), (image.height, image.width)

    def load_reduced(self, index: int, reduction: Reduction) -> tuple[NDArray[np.uint8], tuple[int, int]]:
        return decode_reduced(self._read(index), reduction, name=self.name(index))

    def label(self, index: int) -> int:
        return int(self._where[self.check(index), 2])

    def name(self, index: int) -> str:
        return printable(f"{self._shard_of(index).name}/{self.keys[index]}")

    def _shard_of(self, index: int) -> Path:
        return self.shards[int(np.searchsorted(self._shard_ends, self.check(index), side="right"))]

    def _read(self, index: int) -> bytes:
        offset, size, _ = (int(value) for value in self._where[self.check(index)])
        try:
            with self._shard_of(index).open("rb") as shard:
                shard.seek(offset)
                data = shard.read(size)
        except OSError as error:
            raise UnreadableImage(self.name(index), f"its shard cannot be read ({error})") from error
        if len(data) < size:
            raise UnreadableImage(self.name(index), f"its shard ends after {len(data)} of {size} bytes")
        return data


def expand_pattern(pattern: str) -> list[Path]:
    """Files for a pattern with {000..099}, {a,b} and the usual * ? []; every one must exist."""
    files = [Path(found) for text in _expand_braces(pattern) for found in _existing(text, pattern)]
    packed = [file for file in files if file.suffix != ".tar"]
    if packed:
        raise InputError(f"{packed[0]} is not a plain .tar; unpack compressed shards first, for example with gunzip")
    return files


def _expand_braces(pattern: str) -> list[str]:
    pieces = re.split(r"\{([^{}]*)\}", pattern)  # odd places are what stood in braces
    choices = [[piece] if place % 2 == 0 else _brace_choices(piece, pattern) for place, piece in enumerate(pieces)]
    return ["".join(parts) for parts in product(*choices)]


def _brace_choices(inside: str, pattern: str) -> list[str]:
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", inside)
    if not numbers:
        return inside.split(",")
    first, last = numbers.groups()
    if int(last) < int(first):
        raise InputError(f"wds:{pattern}: the range {{{inside}}} runs backwards; write the smaller number first")
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]


def _existing(text: str, pattern: str) -> list[str]:
    expanded = os.path.expanduser(text)  # noqa: PTH111 - a glob pattern is not a path
    found = [expanded] if os.path.lexists(expanded) else sorted(glob.glob(expanded))  # noqa: PTH207
    if not found:
        raise FileNotFoundError(f"wds:{pattern} names {text}, which does not exist; check the path and the range")
    for file in found:
        if not os.path.isfile(file):  # noqa: PTH113
            raise InputError(f"{file} is not a regular file; give tar files, or a pattern that matches nothing else")
    return found


def _index_shard(shard: Path, cache: str | Path | None) -> tuple[list[_Sample], list[str]]:
    """Its samples, and the keys of those without an image."""
    about = shard.stat()
    stamp = [_FORMAT, about.st_size, about.st_mtime_ns]
    file = index_file("shard", shard, cache)
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored["stamp"] == stamp:
            samples = [(str(key), int(start), int(size), int(label)) for key, start, size, label in stored["samples"]]
            fits = all(start >= 0 and size >= 0 and start + size <= about.st_size for _, start, size, _ in samples)
            if fits and len(samples) == stored["num_samples"]:
                return samples, [str(key) for key in stored["left_out"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        pass  # no index yet, or a damaged one: read the shard
    samples, left_out = _scan_shard(shard)
    content = {"stamp": stamp, "num_samples": len(samples), "samples": samples, "left_out": left_out}
    write_index(file, content)
    return samples, left_out


def _scan_shard(shard: Path) -> tuple[list[_Sample], list[str]]:
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    suffixes: dict[str, set[str]] = {}  # of each key
    left_out: list[str] = []
    try:
        with tarfile.open(shard, "r:") as tar:
            for member in _members(tar):
                folder, _, file_name = member.name.rpartition("/")
                stem, dot, extension = file_name.partition(".")
                if not dot or not stem or member.isdir():
                    continue
                key, suffix = f"{folder}/{stem}".lstrip("/"), f".{extension.lower()}"
                is_again = suffix in suffixes.setdefault(key, set())
                suffixes[key].add(suffix)
                if not member.isreg() or member.issparse():  # such as a hard link to the same photograph
                    continue
                if suffix in SUFFIXES:
                    images.setdefault(key, (member.offset_data, member.size))
                    left_out += [f"{key}{suffix}"] * is_again
                elif suffix in (".cls", ".json") and (data := tar.extractfile(member)) is not None:
                    content = data.read(_MAX_LABEL_BYTES)
                    labels.setdefault(key, _read_label(content, suffix, f"{shard}/{printable(member.name)}"))
            _check_end(shard, tar.offset)
    except InputError:
        raise
    except Exception as error:  # tarfile fails on damaged headers in many ways
        raise InputError(f"{shard} is not a readable tar file ({error}); is it complete and uncompressed?") from error
    left_out += [key for key in suffixes if key not in images]
    return [(key, *place, labels.get(key, -1)) for key, place in images.items()], list(map(printable, left_out))


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Its members; a header whose size leads backwards would never end."""
    place = -1
    for member in tar:
        if member.size < 0 or member.offset <= place:
            raise tarfile.ReadError(f"the header at byte {member.offset:,} is damaged")
        place = member.offset
        yield member


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
            raise InputError(f"{label} is not whole")
        label = int(label)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"{name} holds no class number ({error}); write a whole number, counted from 0") from error
    if not -1 <= label < _MAX_CLASSES:
        raise InputError(f"{name} holds class {label}; classes are whole numbers from 0 to {_MAX_CLASSES - 1:,}")
    return label
