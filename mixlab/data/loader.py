"""Batches of images for training and evaluation: seeded, shared out over ranks, and resumable to the exact sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from .batch_loader import BatchLoader, SampleReader
from .sample_order import SampleOrder
from .source import ImageSource


class Batch(NamedTuple):
    """B images at one size; `sizes` are the images' own (height, width), which crops need to keep shapes true."""

    images: Tensor  # uint8 (B, 3, S, S)
    labels: Tensor  # int64 (B,): -1 where the source has none
    indexes: Tensor  # int64 (B,): the images' numbers in the source
    sizes: Tensor  # int64 (B, 2)

    def to(self, device: torch.device | str) -> Batch:
        """Pixels and labels go to the device; indexes and sizes stay on the host, where choices are made."""
        images, labels = (part.to(device, non_blocking=True) for part in (self.images, self.labels))
        return self._replace(images=images, labels=labels)


class LabelledImage(NamedTuple):
    """An image at the size of its batch, and what is known of it."""

    image: Tensor  # uint8 (3, S, S)
    label: int
    number: int  # in the source
    size: tuple[int, int]  # its own height and width


class ImageReader(SampleReader[LabelledImage, Batch]):
    """Images of a source at one size, see `fit_image`."""

    def __init__(self, source: ImageSource, size: int, fit: str) -> None:
        self.source, self.size, self.fit = source, size, fit

    def read(self, index: int, epoch: int) -> LabelledImage:
        image, size = self.source.load_fitted(index, self.size, self.fit)
        return LabelledImage(image, self.source.label(index), index, size)

    def collate(self, samples: list[LabelledImage]) -> Batch:
        images = [sample.image for sample in samples] or [torch.empty(3, self.size, self.size, dtype=torch.uint8)]
        rows = [(sample.label, sample.number, *sample.size) for sample in samples]
        table = torch.tensor(rows, dtype=torch.int64).reshape(-1, 4)
        return Batch(torch.stack(images)[: len(samples)], table[:, 0], table[:, 1], table[:, 2:])


class Loader(BatchLoader[Batch]):
    """The images of a source; `resident_on` loads them all once into the memory of that device and reads them there."""

    def __init__(
        self,
        source: ImageSource,
        *,
        batch_size: int,
        size: int,
        fit: str = "squash",
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        drop_last: bool = True,
        num_workers: int = 0,
        unreadable: str = "replace",
        skip_limit: float = 0.01,
        pin_memory: bool = False,
        resident_on: torch.device | str | None = None,
    ) -> None:
        super().__init__(
            ImageReader(source, size, fit),
            SampleOrder(len(source), batch_size, seed, rank, world_size, shuffle, drop_last),
            num_workers=num_workers,
            unreadable=unreadable,
            skip_limit=skip_limit,
            pin_memory=pin_memory,
        )
        self._resident: tuple[Batch, Tensor] | None = None
        if resident_on is not None:
            self._resident = self._load_all(torch.device(resident_on))

    def _rest(self) -> Iterator[Batch]:
        return self._from_memory() if self._resident is not None else super()._rest()

    def _from_memory(self) -> Iterator[Batch]:
        assert self._resident is not None
        whole, rows = self._resident
        for _, indexes in self._position:
            here = rows[torch.from_numpy(indexes)]
            here = here[here >= 0]
            there = here.to(whole.images.device, non_blocking=True)
            yield Batch(whole.images[there], whole.labels[there], whole.indexes[here], whole.sizes[here])

    def _load_all(self, device: torch.device) -> tuple[Batch, Tensor]:
        """Every image once, and the row of each image number (-1: left out)."""
        total, order = self.order.num_images, self.order
        everything = SampleOrder(total, min(order.batch_size, total), shuffle=False, drop_last=False)
        parts = []
        for batch, errors in DataLoader(
            self._batches.dataset,
            sampler=[(0, indexes) for indexes in everything.batches(0)],
            batch_size=None,
            num_workers=self._batches.num_workers,
        ):
            self._count(errors)
            parts.append(batch)
        whole = Batch(*(torch.cat(column) for column in zip(*parts, strict=True)))
        rows = torch.arange(total)
        if len(whole.indexes) < total:  # some were dropped
            rows = torch.full((total,), -1).scatter(0, whole.indexes, torch.arange(len(whole.indexes)))
        return whole.to(device), rows
