"""Data that a Python user gives: a name, a source, a data set, or a training and a validation set."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor
from torch.utils.data import Dataset

from mixlab.errors import InputError
from mixlab.plugins import is_ours

from .dataset_source import DatasetSource
from .decode import UnreadableImage
from .source import Source, evenly_spaced, image_in, part_of

NUM_COMPARED = 16  # images whose pixels are part of a fingerprint
PREFIX = "dataset:"  # before the names of what was given as objects: no path, and no name of a built-in set
TRAIN_KEYS, VAL_KEYS = ("train", "training"), ("val", "validation", "valid", "test")


@dataclass(frozen=True, eq=False)
class GivenData:
    """Samples to train on, and to validate on where they are a set of their own; `str` gives their name."""

    train: Source[Any]
    val: Source[Any] | None = None

    @cached_property
    def name(self) -> str:
        """Their titles; of what has none, its kind and fingerprint."""
        parts = [self.train] if self.val is None else [self.train, self.val]
        titles = [part.title or f"{_kind(part)}-{fingerprint(part)}" for part in parts]
        return PREFIX + " + ".join(dict.fromkeys(titles))

    @cached_property
    def fingerprint(self) -> str:
        """Of what is trained on."""
        return fingerprint(self.train)

    def __str__(self) -> str:
        return self.name

    def part(self, split: str) -> Source[Any]:
        """The samples of a split; where there is no validation set, those of the only one."""
        return self.val if split == "val" and self.val is not None else self.train

    def part_with(self, split: str, kind: type[Any], what: str) -> Source[Any]:
        """The same of samples of one kind; without a validation set every fifth is held out."""
        source = self.part(split) if self.val is not None else part_of(self.train, split, name=self.name)
        check_kind(source, kind, name=self.name, what=what)
        return source


Data: TypeAlias = str | GivenData
AnyData: TypeAlias = str | Path | Source[Any] | Dataset[Any] | Sequence[Any] | Mapping[str, Any] | GivenData


def as_data(data: AnyData | Any) -> Data:
    """What was given, in the form that everything else takes: the name as it is, or `GivenData`.

    A mapping has "train" and, where there is one, "val" (or "validation", "test"), as a Hugging Face `DatasetDict` has.
    """
    if isinstance(data, str | Path):
        return str(data)
    if isinstance(data, GivenData):
        return data
    if isinstance(data, Mapping):
        train, val = (next((data[key] for key in keys if key in data), None) for keys in (TRAIN_KEYS, VAL_KEYS))
        if train is None:
            raise InputError(f"a mapping of data needs the key 'train', and has {', '.join(map(str, data)) or 'none'}")
        return GivenData(as_source(train), None if val is None else as_source(val))
    return GivenData(as_source(data))


def as_source(data: Any) -> Source[Any]:
    """A source as it is, and a data set as a `DatasetSource`."""
    if isinstance(data, str | Path):
        name = str(data)
        raise InputError(
            f"{name!r} is a name, which cannot be mixed with data sets; open it with "
            f"mixlab.data.parse_source({name!r}, split=...), or give only the name of a folder with train and val"
        )
    if not isinstance(data, Source):
        return DatasetSource(data)
    if not len(data):
        raise InputError(f"the source {data.title or type(data).__name__} is empty; give at least one image")
    if not is_ours(type(data)):
        _check_first(data)
    return data


def _check_first(source: Source[Any]) -> None:
    """Refuse a source whose first sample that can be read is of a wrong kind; later ones are unreadable."""
    for index in range(len(source)):
        try:
            sample = source.load(index)
        except UnreadableImage:
            continue
        try:
            image_in(sample, source.name(index))
        except UnreadableImage as error:
            raise InputError(
                f"{type(source).__name__}, sample {index}: {error.reason}; a data set of PIL images or arrays needs "
                "no Source of its own"
            ) from error
        return


def fingerprint(source: Source[Any]) -> str:
    """The same for the same number, names, labels and classes, and for the same pixels of some evenly spaced images.

    Reading all pixels would take as long as an epoch; sets that differ in other pixels alone have the same one.
    """
    digest = hashlib.sha256(f"{len(source)} {source.classes}".encode())
    digest.update(source.labels().numpy().tobytes())
    for index in evenly_spaced(len(source), NUM_COMPARED):
        digest.update(b"" if source.names_are_numbers else source.name(index).encode())
        try:
            sample = source.load(index)
        except UnreadableImage:
            digest.update(b"unreadable")
            continue
        image = sample if isinstance(sample, Tensor) else sample.image
        digest.update(f"{tuple(image.shape)}".encode() + image.contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


def check_kind(source: Source[Any], kind: type[Any], *, name: str, what: str) -> None:
    """Refuse samples of another kind, by the first that can be read."""
    for index in range(len(source)):
        try:
            sample = source.load(index)
        except UnreadableImage:
            continue
        if not isinstance(sample, kind):
            raise InputError(
                f"{name} gives {type(sample).__name__}; {what} takes a Source whose load gives {kind.__name__}"
            )
        return


def _kind(source: Source[Any]) -> str:
    return source.kind if isinstance(source, DatasetSource) else type(source).__name__
