"""What a source of images is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from .decode import fit_image, to_pil, to_tensor


class ImageSource(ABC):
    """Numbered images with optional class labels. A source is cheap to pickle: workers get a copy."""

    classes: tuple[str, ...] = ()  # empty: the images carry no labels

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def load(self, index: int) -> Tensor:
        """The image as uint8 (3, H, W); `UnreadableImage` where there is none."""

    @abstractmethod
    def label(self, index: int) -> int:
        """The class number, or -1 where the source has no labels."""

    @abstractmethod
    def name(self, index: int) -> str:
        """What to call this image in a log: a path inside the source, a key or a number."""

    def load_fitted(self, index: int, size: int, fit: str) -> tuple[Tensor, tuple[int, int]]:
        """The image as uint8 (3, size, size), see `fit_image`, and its own (height, width)."""
        image = self.load(index)
        height, width = image.shape[-2:]
        if (height, width) != (size, size):
            image = to_tensor(fit_image(to_pil(image), size=size, fit=fit))
        return image, (height, width)

    def labels(self) -> Tensor:
        """All labels, int64 (n,)."""
        return torch.tensor([self.label(index) for index in range(len(self))], dtype=torch.int64)

    def check(self, index: int) -> int:
        """The index itself if it exists in this source."""
        if not 0 <= index < len(self):
            raise IndexError(f"image {index} does not exist; this source has images 0 to {len(self) - 1}")
        return index


class Subset(ImageSource):
    """Some images of another source, in a given order: few-label subsets, limits, held-out parts."""

    def __init__(self, source: ImageSource, indexes: Sequence[int]) -> None:
        self.source = source
        self.indexes = [source.check(int(index)) for index in indexes]
        self.classes = source.classes

    def __len__(self) -> int:
        return len(self.indexes)

    def load(self, index: int) -> Tensor:
        return self.source.load(self.indexes[index])

    def load_fitted(self, index: int, size: int, fit: str) -> tuple[Tensor, tuple[int, int]]:
        return self.source.load_fitted(self.indexes[index], size, fit)

    def label(self, index: int) -> int:
        return self.source.label(self.indexes[index])

    def name(self, index: int) -> str:
        return self.source.name(self.indexes[index])
