"""Images in tar shards of the webdataset layout, read in place: one sample is the files with one name before the dot.

Each shard is indexed once, several at a time (places and sizes, kept in the cache folder), after which any sample is
one seek away; 20 bytes a sample beside its key, mapped when the shard is first read. So shards shuffle and resume like
folders do, with no shuffle buffer; the price is random access, so keep shards on a local disk.
"""

from __future__ import annotations

import glob
import multiprocessing
import os
import re
import warnings
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mixlab.errors import InputError, WorkError, counted, few
from mixlab.signals import obey_parent_alone

from .cores import num_cores
from .decode import (
    Reduction,
    UnreadableImage,
    decode_fitted,
    decode_pixels,
    decode_reduced,
    printable,
    to_tensor,
)
from .index_file import Names, StoredIndex, digest_of, index_file, is_trusted, read_index, write_index
from .source import ImageSource
from .tar_samples import scan_shard

_FORMAT = 4
_SHARDS_PER_PROCESS, _MOST_PROCESSES = 4, 32


class TarShards(ImageSource):
    """Samples of one or many tar files: `data-{000..099}.tar`, `data-*.tar`, or a single file.

    The label is a whole number in the sample's `.cls` file, or `label` (or `cls`) in its `.json` file. A shard that is
    damaged or cut is refused; samples without an image are left out, and a warning names them.
    """

    def __init__(self, pattern: str, *, cache: str | Path | None = None) -> None:
        self.shards = expand_pattern(pattern)
        self._indexes = _index_shards(self.shards, cache)
        self.unpaired = tuple(
            f"{shard.name}/{key}"
            for shard, index in zip(self.shards, self._indexes, strict=True)
            for key in index.left_out
        )
        self._shard_ends = np.cumsum([index.num_samples for index in self._indexes])
        if not len(self):
            raise FileNotFoundError(f"wds:{pattern} holds no images; a sample needs a file such as 000001.jpg")
        if self.unpaired:
            warnings.warn(
                f"wds:{pattern}: {counted(self.unpaired, 'sample has', 'samples have')} no image, or a second file of "
                f"the same name, and {'is' if len(self.unpaired) == 1 else 'are'} left out: {few(self.unpaired)}",
                stacklevel=2,
            )
        self.classes = tuple(str(number) for number in range(max(index.last_label for index in self._indexes) + 1))

    def __len__(self) -> int:
        return int(self._shard_ends[-1])

    @property
    def keys(self) -> list[str]:
        """The keys of all samples."""
        return [index.key(place) for index in self._indexes for place in range(index.num_samples)]

    def load(self, index: int) -> Tensor:
        return to_tensor(decode_pixels(self._read(index), name=self.name(index)))

    def load_fitted(self, index: int, size: int, fit: str) -> tuple[Tensor, tuple[int, int]]:
        image, own = decode_fitted(self._read(index), size, fit, name=self.name(index))
        return to_tensor(image), own

    def load_reduced(self, index: int, reduction: Reduction) -> tuple[NDArray[np.uint8], tuple[int, int]]:
        return decode_reduced(self._read(index), reduction, name=self.name(index))

    def label(self, index: int) -> int:
        shard, place = self._place(index)
        return int(self._indexes[shard].arrays["labels"][place])

    def labels(self) -> Tensor:
        return torch.from_numpy(np.concatenate([index.arrays["labels"] for index in self._indexes]).astype(np.int64))

    def name(self, index: int) -> str:
        shard, place = self._place(index)
        return printable(f"{self.shards[shard].name}/{self._indexes[shard].key(place)}")

    def digest(self) -> str:
        arrays = (index.arrays[name] for index in self._indexes for name in ("keys", "ends", "labels"))
        return digest_of(["shards", *(shard.name for shard in self.shards)], arrays)

    def _place(self, index: int) -> tuple[int, int]:
        """The number of its shard, and its place in it."""
        shard = int(np.searchsorted(self._shard_ends, self.check(index), side="right"))
        return shard, index - (int(self._shard_ends[shard - 1]) if shard else 0)

    def _read(self, index: int) -> bytes:
        shard, place = self._place(index)
        arrays = self._indexes[shard].arrays
        size = int(arrays["sizes"][place])
        try:
            with self.shards[shard].open("rb") as file:
                file.seek(int(arrays["offsets"][place]))
                data = file.read(size)
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


class _ShardIndex:
    """Where the samples of one shard are. The arrays are mapped when they are first asked for."""

    def __init__(self, about: dict[str, Any], file: Path, arrays: Mapping[str, NDArray[Any]] | None) -> None:
        self.num_samples, self.last_label = int(about["num_samples"]), int(about["last_label"])
        self.left_out = [str(key) for key in about["left_out"]]
        self._file, self._arrays = file, arrays

    @property
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        if self._arrays is None:
            found = read_index(self._file)
            if found is None or len(found.arrays["ends"]) != self.num_samples:
                raise WorkError(f"{self._file} was removed or changed while it was in use; start again")
            self._arrays = found.arrays
        return self._arrays

    def key(self, place: int) -> str:
        return Names(self.arrays["keys"], self.arrays["ends"])[place]


def _index_shards(shards: list[Path], cache: str | Path | None) -> list[_ShardIndex]:
    """The index of each shard; those that have none yet are read by several processes."""
    found = [_stored_index(shard, cache) for shard in shards]
    missing = [number for number, index in enumerate(found) if index is None]
    processes = min(len(missing) // _SHARDS_PER_PROCESS, num_cores(), _MOST_PROCESSES)
    make = partial(_make_index, cache=cache)
    if processes > 1:
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(processes, mp_context=context, initializer=obey_parent_alone) as pool:
            made = list(pool.map(make, [shards[number] for number in missing], chunksize=4))
    else:
        made = [make(shards[number]) for number in missing]
    for number, index in zip(missing, made, strict=True):
        found[number] = _stored_index(shards[number], cache) or _ShardIndex(*_parts(index, shards[number], cache))
    return [index for index in found if index is not None]


def _parts(index: StoredIndex, shard: Path, cache: str | Path | None) -> tuple[dict[str, Any], Path, Any]:
    return index.about, index_file("shard", shard, cache), index.arrays


def _stamp(shard: Path) -> list[int]:
    about = shard.stat()
    return [_FORMAT, about.st_size, about.st_mtime_ns]


def _stored_index(shard: Path, cache: str | Path | None) -> _ShardIndex | None:
    """The stored index of a shard, where it fits the shard as it is now."""
    file = index_file("shard", shard, cache)
    stored = read_index(file)
    try:
        if stored is None or (not is_trusted() and stored.about["stamp"] != _stamp(shard)):
            return None
        index = _ShardIndex(stored.about, file, stored.arrays)
        fits = _is_sound(stored.arrays, index.num_samples, stored.about["stamp"][1])
        index._arrays = None  # until a sample is read
        return index if fits else None
    except (ValueError, KeyError, TypeError, IndexError):
        return None


def _is_sound(arrays: Mapping[str, NDArray[Any]], num_samples: int, num_bytes: int) -> bool:
    if any(len(arrays[name]) != num_samples for name in ("ends", "offsets", "sizes", "labels")):
        return False
    if is_trusted() or not num_samples:
        return True
    ends, places = arrays["ends"], arrays["offsets"]
    return bool(
        ends[-1] == len(arrays["keys"])
        and (np.diff(ends.astype(np.int64)) >= 0).all()
        and places.min() >= 0
        and (places + arrays["sizes"]).max() <= num_bytes
    )


def _make_index(shard: Path, cache: str | Path | None) -> StoredIndex:
    """Read a shard, and store its index."""
    stamp = _stamp(shard)
    samples, left_out = scan_shard(shard)
    keys = Names.of([sample[0] for sample in samples])
    where = np.array([sample[1:] for sample in samples], dtype=np.int64).reshape(-1, 3)
    index = StoredIndex(
        {
            "stamp": stamp,
            "num_samples": len(samples),
            "last_label": int(where[:, 2].max(initial=-1)),
            "left_out": left_out,
        },
        {
            "keys": keys.text,
            "ends": keys.ends.astype("u4"),
            "offsets": where[:, 0].copy(),
            "sizes": where[:, 1].astype("u4"),
            "labels": where[:, 2].astype("i4"),
        },
    )
    write_index(index_file("shard", shard, cache), index)
    return index
