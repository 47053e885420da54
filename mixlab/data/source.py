"""The data source, and parts of one."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import index as as_index
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mixlab.errors import InputError, few

from .decode import Reduction, UnreadableImage, fit_image, to_pil, to_tensor
from .index_file import digest_of
from .skipped import SkippedImages

SPLITS = ("train", "val")
HELD_OUT = 5  # without a split of its own, every fifth sample of a class is for validation


class HasImage(Protocol):
    @property
    def image(self) -> Tensor:
        """uint8 (3, H, W)."""


T = TypeVar("T", bound="Tensor | HasImage")


class Source(ABC, Generic[T]):
    """Numbered samples: images, with or without labels, masks or objects. Cheap to pickle: workers get a copy.

    T is what `load` gives: the image as uint8 (3, H, W), or something that has it as `image`.
    """

    title: str = ""  # what measurements call it where it is given as an object; without one, they have a fingerprint
    names_are_numbers: bool = False  # names say no more than places in the set: a changed set cannot be matched by them
    classes: tuple[str, ...] = ()  # empty: nothing here has a class
    is_own_split: bool = False  # a validation set that is no part of the training set
    class_ids: tuple[int, ...] = ()  # the classes' numbers in a COCO file, which have gaps
    unpaired: tuple[str, ...] = ()  # files that are left out because their partner is missing

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def load(self, index: int) -> T:
        """The sample; `UnreadableImage` where its file is damaged or missing."""

    @abstractmethod
    def name(self, index: int) -> str:
        """The name of a sample in logs: a path inside the source, a key or a number."""

    def label(self, index: int) -> int:
        """The class of the whole image, or -1 where it has none."""
        self.check(index)
        return -1

    def labels(self) -> Tensor:
        """All labels, int64 (n,)."""
        return torch.tensor([self._class_of(index) for index in range(len(self))], dtype=torch.int64)

    def _class_of(self, index: int) -> int:
        """The label as a class number; `InputError` for anything else."""
        label = self.label(index)
        try:
            number = as_index(label)
        except TypeError:
            raise InputError(
                f"the label of {self.name(index)} is {label!r}; give the place of its class in `classes`, from 0, or -1"
            ) from None
        if number >= len(self.classes) > 0:
            raise InputError(
                f"the label of {self.name(index)} is {number}, and there are {len(self.classes)} classes, from 0: "
                f"{few(self.classes)}"
            )
        return number

    def names(self) -> Iterator[str]:
        """The names of all samples, in order."""
        return map(self.name, range(len(self)))

    def digest(self) -> str | None:
        """A fingerprint of names, labels and classes, found without reading each sample; None if there is none."""
        return None

    def load_fitted(self, index: int, size: int, fit: str) -> tuple[Tensor, tuple[int, int]]:
        """The image alone as uint8 (3, size, size), see `fit_image`, and its own (height, width)."""
        image = image_in(self.load(index), self.name(index))
        height, width = image.shape[-2:]
        if (height, width) != (size, size):
            image = to_tensor(fit_image(to_pil(image), size=size, fit=fit))
        return image, (height, width)

    def load_reduced(self, index: int, reduction: Reduction) -> tuple[NDArray[np.uint8], tuple[int, int]]:
        """The image alone, (H, W, 3), at 1/r of its size, see `decode_reduced`, and its own (height, width)."""
        image = image_in(self.load(index), self.name(index))
        height, width = image.shape[-2:]
        factor = reduction(height, width)
        pixels = np.asarray(to_pil(image).reduce(factor)) if factor > 1 else image.permute(1, 2, 0).numpy()
        return pixels, (height, width)

    def read(self, skipped: SkippedImages) -> Iterator[tuple[int, T]]:
        """All samples that can be read, with their numbers; the others are counted, until their limit stops it."""
        for index in range(len(self)):
            try:
                yield index, self.load(index)
            except UnreadableImage as error:
                skipped.add(error)

    def check(self, index: int) -> int:
        """The index itself if it exists in this source."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} does not exist; this source has samples 0 to {len(self) - 1}")
        return index


ImageSource: TypeAlias = Source[Tensor]


def wrapped_sources(source: Source[Any]) -> Iterator[Source[Any]]:
    """A source, and those of which it is a part."""
    yield source
    if isinstance(inner := getattr(source, "source", None), Source):
        yield from wrapped_sources(inner)


def image_in(sample: object, name: str) -> Tensor:
    """The image of what `Source.load` gave, uint8 (3, H, W); anything else is unreadable."""
    image = getattr(sample, "image", sample)
    if not isinstance(image, Tensor):
        found = f"a {type(image).__name__}"
    elif image.dtype != torch.uint8 or image.ndim != 3 or len(image) != 3 or not image.numel():
        found = f"{image.dtype} of shape {tuple(image.shape)}"
    else:
        return image
    raise UnreadableImage(name, f"load gives {found}, not a tensor of uint8 (3, H, W)")


class Subset(Source[T]):
    """Some samples of another source, in a given order."""

    def __init__(self, source: Source[T], indexes: Sequence[int] | NDArray[np.int64]) -> None:
        self.source = source
        self.indexes: NDArray[np.int64] = np.asarray(indexes, dtype=np.int64)  # not a list: a process copies those
        if len(self.indexes):
            source.check(int(self.indexes.min()))
            source.check(int(self.indexes.max()))
        self.classes, self.class_ids, self.unpaired = source.classes, source.class_ids, source.unpaired

    def __len__(self) -> int:
        return len(self.indexes)

    def load(self, index: int) -> T:
        return self.source.load(int(self.indexes[index]))

    def name(self, index: int) -> str:
        return self.source.name(int(self.indexes[index]))

    def label(self, index: int) -> int:
        return self.source.label(int(self.indexes[index]))

    def labels(self) -> Tensor:
        return self.source.labels()[torch.from_numpy(self.indexes)]

    def digest(self) -> str | None:
        whole = self.source.digest() if type(self) is Subset else None  # others may have labels of their own
        return None if whole is None else digest_of(["part", whole], [self.indexes])

    def load_fitted(self, index: int, size: int, fit: str) -> tuple[Tensor, tuple[int, int]]:
        return self.source.load_fitted(int(self.indexes[index]), size, fit)

    def load_reduced(self, index: int, reduction: Reduction) -> tuple[NDArray[np.uint8], tuple[int, int]]:
        return self.source.load_reduced(int(self.indexes[index]), reduction)


def split(source: Source[T]) -> tuple[Subset[T], Subset[T]]:
    """Cut a source in two, (train, val): every fifth sample of each class is for validation.

    Where no class has two samples, it is every fifth of them all.
    """
    labels = source.labels().numpy()
    by_class = np.argsort(labels, kind="stable")
    is_first = np.diff(labels[by_class], prepend=np.nan) != 0  # of its class
    if is_first.all():
        by_class, is_first = np.arange(len(labels)), np.arange(len(labels)) == 0
    starts = np.flatnonzero(is_first)
    place = np.arange(len(labels)) - np.repeat(starts, np.diff(starts, append=len(labels)))  # in its class
    is_val = np.empty(len(labels), dtype=bool)
    is_val[by_class] = place % HELD_OUT == 0
    return Subset(source, np.flatnonzero(~is_val)), Subset(source, np.flatnonzero(is_val))


def part_of(source: Source[T], which: str, *, name: str) -> Source[T]:
    """The train or the val part of a source without splits of its own; `name` is what the person typed."""
    part = split(source)[SPLITS.index(which)]
    if not len(part):
        raise InputError(f"{name} has {len(source)} image, too few for a validation split; give at least 2")
    return part


def check_split(which: str) -> None:
    if which not in SPLITS:
        raise InputError(f"split {which!r} does not exist; choose {' or '.join(SPLITS)}")


def evenly_spaced(total: int, most: int | None) -> list[int]:
    """At most `most` of the numbers below `total`, evenly spaced; all of them for None."""
    if most is None or most >= total:
        return list(range(total))
    if most < 1:
        raise InputError(f"the number of images is {most}; give at least 1")
    return np.linspace(0, total, most, endpoint=False, dtype=np.int64).tolist()


def at_most(source: Source[T], most: int | None) -> Source[T]:
    """At most `most` samples of a source, evenly spaced; the source itself for None."""
    return source if most is None else Subset(source, evenly_spaced(len(source), most))


def read_first(data: str, source: Source[T], most: int) -> list[tuple[int, T]]:
    """The first readable samples of a source, with their numbers; a warning names the others."""
    skipped = SkippedImages(total=len(source), limit=1.0)
    found = list(islice(source.read(skipped), most))
    if not found:
        raise InputError(f"{data!r} holds no image that can be read. {skipped.summary()}")
    if len(skipped):
        warnings.warn(skipped.summary(), stacklevel=2)
    return found
