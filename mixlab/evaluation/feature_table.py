"""Features with labels, wherever they lie: shards on the disk, or one tensor on a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_SHARE_OF_MEMORY = 0.4  # of a GPU's free memory that features may take


class FeatureTable:
    """n rows of F features. `numbers` are the images' places in their source, `labels` their classes."""

    def __init__(
        self, parts: Sequence[NDArray[np.generic]], rows: NDArray[np.int64], unreadable: dict[str, str] | None = None
    ) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts])
        self.numbers = torch.from_numpy(rows[:, 0].copy())
        self.labels = torch.from_numpy(rows[:, 1].copy())
        self.unreadable = unreadable or {}
        self._whole: Tensor | None = None

    @classmethod
    def from_tensors(cls, features: Tensor, labels: Tensor) -> FeatureTable:
        """A table of features (n, F) that stay where they are."""
        rows = torch.stack([torch.arange(len(labels)), labels.cpu()], dim=1).numpy()
        table = cls([np.empty((0, 0), dtype=np.float32)], rows)
        table._whole = features
        return table

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._parts)

    def every(self, step: int, first: int) -> FeatureTable:
        """Each `step`-th row from `first` on: one rank's share."""
        return FeatureTable.from_tensors(self.all()[first::step], self.labels[first::step])

    def to(self, device: torch.device) -> FeatureTable:
        """Hold the features on a GPU if they fit well; elsewhere the disk and its cache serve."""
        if device.type == "cuda" and self._whole is None:
            free, _ = torch.cuda.mem_get_info(device)
            if self.nbytes < _SHARE_OF_MEMORY * free:
                self._whole = self.all().to(device)
        return self

    def all(self) -> Tensor:
        """Every row, (n, F), as stored."""
        if self._whole is not None:
            return self._whole
        return torch.cat([torch.from_numpy(np.array(part)) for part in self._parts])

    def rows(self, indexes: NDArray[np.int64], device: torch.device) -> tuple[Tensor, Tensor]:
        """Features (B, F) in float32 and labels (B,) of some rows, on the device."""
        labels = self.labels[indexes].to(device, non_blocking=True)
        if self._whole is not None:
            there = torch.from_numpy(indexes).to(self._whole.device, non_blocking=True)
            return self._whole[there].to(device).float(), labels
        shards = np.searchsorted(self._ends, indexes, side="right")
        found = np.empty((len(indexes), self._parts[0].shape[1]), dtype=self._parts[0].dtype)
        for shard in np.unique(shards):
            chosen = shards == shard
            start = self._ends[shard] - len(self._parts[shard])
            found[chosen] = self._parts[shard][indexes[chosen] - start]
        return torch.from_numpy(found).to(device, non_blocking=True).float(), labels

    def block(self, first: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """`size` rows from `first` on, or as many as there are."""
        if self._whole is not None:
            few = slice(first, first + size)
            return self._whole[few].to(device).float(), self.labels[few].to(device)
        return self.rows(np.arange(first, min(first + size, len(self))), device)

    def blocks(self, size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """All rows in order, `size` at a time."""
        for first in range(0, len(self), size):
            yield self.block(first, size, device)
