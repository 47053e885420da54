"""The images of a source as they were listed earlier: each keeps its number, also once others are removed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .decode import Reduction
from .skipped import RemovedImage
from .source import Source, T


@dataclass(frozen=True)
class ImageList:
    """Names and labels of all images of a source, in order."""

    names: Sequence[str]
    labels: Sequence[int]
    classes: tuple[str, ...]

    @classmethod
    def of(cls, source: Source[T]) -> ImageList:
        return cls([source.name(index) for index in range(len(source))], source.labels().tolist(), source.classes)


class ListedSource(Source[T]):
    """A source in the order of a list: what is gone raises `RemovedImage`, what is new is left out."""

    def __init__(self, source: Source[T], listed: ImageList) -> None:
        self.source, self.listed = source, listed
        self.classes, self.class_ids, self.unpaired = listed.classes, source.class_ids, source.unpaired
        here: defaultdict[str, list[int]] = defaultdict(list)
        for index in reversed(range(len(source))):
            here[source.name(index)].append(index)
        found = (here[name].pop() if here[name] else -1 for name in listed.names)
        self.indexes = np.fromiter(found, dtype=np.int64, count=len(listed.names))
        self.num_removed = int((self.indexes == -1).sum())
        self.num_new = len(list(chain.from_iterable(here.values())))

    def __len__(self) -> int:
        return len(self.indexes)

    def load(self, index: int) -> T:
        return self.source.load(self._index(index))

    def load_fitted(self, index: int, size: int, fit: str) -> tuple[Tensor, tuple[int, int]]:
        return self.source.load_fitted(self._index(index), size, fit)

    def load_reduced(self, index: int, reduction: Reduction) -> tuple[NDArray[np.uint8], tuple[int, int]]:
        return self.source.load_reduced(self._index(index), reduction)

    def name(self, index: int) -> str:
        return self.listed.names[self.check(index)]

    def label(self, index: int) -> int:
        return self.listed.labels[self.check(index)]

    def labels(self) -> Tensor:
        return torch.tensor(self.listed.labels, dtype=torch.int64)

    def _index(self, index: int) -> int:
        found = int(self.indexes[self.check(index)])
        if found < 0:
            raise RemovedImage(self.name(index), "it was removed")
        return found
