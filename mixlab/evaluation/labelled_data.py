"""Two sets of labelled images that speak of the same classes: one to learn from, one to be recognised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from mixlab.data.images import ImageFolder, parse_source
from mixlab.data.shapes import Shapes
from mixlab.data.source import ImageSource, Subset
from mixlab.errors import InputError

HELD_OUT = 5  # without a split of its own, every fifth image of a class is held out


class Relabelled(Subset):
    """Images of another source under the class numbers of a third; images of other classes are left out."""

    def __init__(self, source: ImageSource, numbers: Mapping[int, int], classes: Sequence[str]) -> None:
        labels = source.labels().tolist()
        super().__init__(source, [index for index, label in enumerate(labels) if label in numbers])
        self._labels = [numbers[labels[index]] for index in self.indexes]
        self.classes = tuple(classes)

    def label(self, index: int) -> int:
        return self._labels[index]


@dataclass(frozen=True)
class LabelledSplits:
    """What to learn from and what to recognise, with one list of classes."""

    train: ImageSource
    val: ImageSource
    unknown: dict[str, int] = field(default_factory=dict)  # classes of `val` that `train` lacks: images left out
    absent: tuple[str, ...] = ()  # classes of `train` that `val` has no image of

    @property
    def classes(self) -> tuple[str, ...]:
        return self.train.classes

    def notes(self) -> list[str]:
        """Sentences on what does not fit, if anything."""
        found = []
        if self.unknown:
            number = sum(self.unknown.values())
            found.append(f"{number} images of {len(self.unknown)} unknown classes are left out: {few(self.unknown)}")
        if self.absent:
            found.append(f"{len(self.absent)} classes have no image to recognise: {few(self.absent)}")
        return found


def labelled_splits(data: str, *, val_data: str | None = None) -> LabelledSplits:
    """The two splits of a source, or a cut through its only one; `val_data` names another source to recognise."""
    train = parse_source(data, split="train")
    check_labels(train, data)
    val = parse_source(val_data or data, split="val")
    if val_data is None and not _is_separate(train, val):
        held_out = _every_fifth(train)
        rest = sorted(set(range(len(train))) - set(held_out))
        return LabelledSplits(Subset(train, rest), Subset(train, held_out))
    check_labels(val, val_data or data)
    return align(train, val)


def align(train: ImageSource, val: ImageSource) -> LabelledSplits:
    """Classes are matched by name; what only one side has is named."""
    numbers = {name: number for number, name in enumerate(train.classes)}
    counts = Counter(val.labels().tolist())
    unknown = {name: counts[index] for index, name in enumerate(val.classes) if name not in numbers and counts[index]}
    known = {index: numbers[name] for index, name in enumerate(val.classes) if name in numbers}
    aligned = Relabelled(val, known, train.classes)
    if not len(aligned):
        raise InputError(
            f"no image to recognise is of a known class: found {few(val.classes)}, known are {few(train.classes)}; "
            "name the class folders alike"
        )
    found = {train.classes[number] for index, number in known.items() if counts[index]}
    absent = tuple(name for name in train.classes if name not in found)
    return LabelledSplits(train, aligned, unknown, absent)


def check_labels(source: ImageSource, name: str) -> None:
    if len(source.classes) < 2:
        raise InputError(
            f"{name} has {len(source.classes)} classes; scores need labels of at least 2: put the images into one "
            "folder per class"
        )
    unlabelled = int((source.labels() < 0).sum())
    if unlabelled:
        raise InputError(
            f"{unlabelled} of the {len(source)} images of {name} have no label; give each one, or leave it out"
        )


def evenly(source: ImageSource, most: int | None) -> ImageSource:
    """At most so many images, spread evenly over the source."""
    return source if most is None else Subset(source, evenly_spaced(len(source), most))


def evenly_spaced(total: int, most: int | None) -> list[int]:
    """At most so many of the numbers below `total`, spread evenly."""
    if most is None or most >= total:
        return list(range(total))
    if most < 1:
        raise InputError(f"{most} images are none; give at least 1")
    return np.linspace(0, total, most, endpoint=False, dtype=np.int64).tolist()


def few(names: Collection[str], most: int = 5) -> str:
    """The first few of many names."""
    listed = list(names)
    rest = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + rest


def _is_separate(train: ImageSource, val: ImageSource) -> bool:
    if isinstance(train, ImageFolder) and isinstance(val, ImageFolder):
        return train.root != val.root
    return isinstance(val, Shapes)


def _every_fifth(source: ImageSource) -> list[int]:
    labels = source.labels()
    chosen = [index for number in range(len(source.classes)) for index in _members(labels, number)[::HELD_OUT]]
    return sorted(chosen)


def _members(labels: Tensor, number: int) -> list[int]:
    found: list[int] = (labels == number).nonzero()[:, 0].tolist()
    return found
