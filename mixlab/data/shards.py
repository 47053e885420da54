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
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mixlab.errors import InputError

from .decode import SUFFIXES, Reduction, UnreadableImage, decode, decode_reduced, fit_image, to_tensor
from .folder_index import index_file, write_index
from .source import ImageSource

_FORMAT = 1
_MAX_CLASSES = 1_000_000
_Sample = tuple[str, int, int, int]  # key, offset, size, label (-1: none)


class TarShards(ImageSource):
    """Samples of one or many tar files: `data-{000..099}.tar`, `data-*.tar`, or a single file.

    The label is a whole number in the sample's `.cls` file, or `label` (or `cls`) in its `.json` file.
    """

    def __init__(self, pattern: str, *, cache: str | Path | None = None) -> None:
        self.shards = expand_pattern(pattern)
        indexes = [_index_shard(shard, cache) for shard in self.shards]
        samples = [sample for index in indexes for sample in index]
        if not samples:
            raise FileNotFoundError(f"wds:{pattern} holds no images; a sample needs a file such as 000001.jpg")
        self.keys = [sample[0] for sample in samples]
        self._where = np.array([sample[1:] for sample in samples], dtype=np.int64)  # (n, 3)
        self._shard_ends = np.cumsum([len(index) for index in indexes])
        self.classes = tuple(str(number) for number in range(int(self._where[:, 2].max()) + 1))

    def __len__(self) -> int:
        return len(self.keys)

    def load(self, index: int) -> Tensor:
        return to_tensor(decode(self._read(index), name=self.name(index)))

    def load_fitted(self, index: int, size: int, fit: str) -> tuple[Tensor, tuple[int, int]]:
        image = decode(self._read(index), name=self.name(index), draft=size)
        return to_tensor(fit_image(image, size=size, fit=fit)), (image.height, image.width)

    def load_reduced(self, index: int, reduction: Reduction) -> tuple[NDArray[np.uint8], tuple[int, int]]:
        image, own = decode_reduced(self._read(index), reduction, name=self.name(index))
        return np.asarray(image), own

    def label(self, index: int) -> int:
        return int(self._where[self.check(index), 2])

    def name(self, index: int) -> str:
        return f"{self._shard_of(index).name}/{self.keys[index]}"

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
    found = [expanded] if os.path.isfile(expanded) else sorted(glob.glob(expanded))  # noqa: PTH113, PTH207
    if not found:
        raise FileNotFoundError(f"wds:{pattern} names {text}, which does not exist; check the path and the range")
    return found


def _index_shard(shard: Path, cache: str | Path | None) -> list[_Sample]:
    about = shard.stat()
    stamp = [_FORMAT, about.st_size, about.st_mtime_ns]
    file = index_file("shard", shard, cache)
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored["stamp"] == stamp:
            return [(str(key), int(offset), int(size), int(label)) for key, offset, size, label in stored["samples"]]
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no index yet, or a damaged one: read the shard
    samples = _scan_shard(shard)
    write_index(file, {"stamp": stamp, "samples": samples})
    return samples


def _scan_shard(shard: Path) -> list[_Sample]:
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    try:
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                folder, _, file_name = member.name.rpartition("/")
                stem, dot, extension = file_name.partition(".")
                if not member.isfile() or not dot or not stem:
                    continue
                key, suffix = f"{folder}/{stem}".lstrip("/"), f".{extension.lower()}"
                if suffix in SUFFIXES and key not in images:
                    images[key] = (member.offset_data, member.size)
                elif suffix in (".cls", ".json") and (data := tar.extractfile(member)) is not None:
                    labels.setdefault(key, _read_label(data.read(), suffix, f"{shard}/{member.name}"))
    except tarfile.TarError as error:
        raise InputError(f"{shard} is not a readable tar file ({error}); is it complete and uncompressed?") from error
    return [(key, offset, size, labels.get(key, -1)) for key, (offset, size) in images.items()]


def _read_label(data: bytes, suffix: str, name: str) -> int:
    try:
        if suffix == ".cls":
            label = int(data.decode())
        else:
            content = json.loads(data)
            known = [content[key] for key in ("label", "cls") if key in content] if isinstance(content, dict) else []
            label = int(known[0]) if known else -1
    except (ValueError, TypeError) as error:
        raise InputError(f"{name} holds no class number ({error}); write a whole number, counted from 0") from error
    if not -1 <= label < _MAX_CLASSES:
        raise InputError(f"{name} holds class {label}; classes are whole numbers from 0 to {_MAX_CLASSES - 1:,}")
    return label
