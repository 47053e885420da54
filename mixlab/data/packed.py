"""Images of different sizes in one batch, for crops: packed into one buffer, which is one copy to a device.

Images keep their own size and aspect ratio; very large ones may be reduced, see `MultiCrop.reduction`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from mixlab.errors import InputError, check_kind

from .decode import Reduction
from .loader import BatchLoader, SampleReader
from .sample_order import SampleOrder
from .source import ImageSource
from .workers import start_workers, worker_settings


def to_device(values: Tensor, device: torch.device | str) -> Tensor:
    """A table from the host, without waiting for what the device does: a copy of pageable memory may wait for it."""
    values = values.pin_memory() if torch.device(device).type == "cuda" else values
    return values.to(device, non_blocking=True)


class PackedImages(NamedTuple):
    """B uint8 images of any sizes, one after the other, each (H, W, 3): as decoders give them."""

    pixels: Tensor  # uint8 (bytes,), on any device
    starts: Tensor  # int64 (B,): where each image starts; this and the next are on the host
    shapes: Tensor  # int64 (B, 2): height and width of each

    @property
    def num_images(self) -> int:
        return len(self.starts)

    def image(self, number: int) -> Tensor:
        """One of them, (3, H, W)."""
        start, (height, width) = int(self.starts[number]), self.shapes[number].tolist()
        return self.pixels[start : start + 3 * height * width].view(height, width, 3).permute(2, 0, 1)

    def select(self, rows: Tensor) -> PackedImages:
        """Some of them, in the same buffer."""
        return self._replace(starts=self.starts[rows], shapes=self.shapes[rows])

    def to(self, device: torch.device | str) -> PackedImages:
        return self._replace(pixels=self.pixels.to(device, non_blocking=True))


def pack_images(images: Sequence[Tensor] | Tensor) -> PackedImages:
    """Pack images uint8 (3, H, W) of any sizes, or a batch (B, 3, H, W), on any device."""
    one_by_one = [images] if isinstance(images, Tensor) else images
    check_kind(one_by_one, Sequence, "give images as tensors (3, H, W), or a batch (B, 3, H, W)")
    for each in one_by_one:
        check_kind(each, Tensor, "give images as tensors (3, H, W), or a batch (B, 3, H, W)")
        if each.ndim != (4 if isinstance(images, Tensor) else 3) or each.shape[-3] != 3:
            raise InputError(f"an image has the shape {tuple(each.shape)}; give (3, H, W), or a batch (B, 3, H, W)")
    if isinstance(images, Tensor):
        number, _, height, width = images.shape
        starts = torch.arange(number) * (3 * height * width)
        pixels = images.permute(0, 2, 3, 1).reshape(-1)
        return PackedImages(pixels, starts, torch.tensor([[height, width]]).repeat(number, 1))
    return _pack([image.permute(1, 2, 0).numpy() for image in images])


def _pack(images: Sequence[NDArray[np.uint8]]) -> PackedImages:
    """Images (H, W, 3)."""
    ends = np.cumsum([0, *(image.size for image in images)])
    buffer = np.empty(ends[-1], dtype=np.uint8)
    for image, start, end in zip(images, ends, ends[1:], strict=False):
        buffer[start:end].reshape(image.shape)[:] = image
    shapes = torch.tensor([image.shape[:2] for image in images], dtype=torch.int64).reshape(-1, 2)
    return PackedImages(torch.from_numpy(buffer), torch.from_numpy(ends[:-1]), shapes)


class PackedBatch(NamedTuple):
    """B images; `sizes` are the (height, width) of the files, from which crops are drawn."""

    images: PackedImages
    labels: Tensor  # int64 (B,): -1 where the source has none
    indexes: Tensor  # int64 (B,): the images' numbers in the source
    sizes: Tensor  # int64 (B, 2)

    def to(self, device: torch.device | str) -> PackedBatch:
        """Pixels and labels go to the device; the rest stays on the host, where choices are made."""
        return self._replace(images=self.images.to(device), labels=self.labels.to(device, non_blocking=True))

    @staticmethod
    def cat(batches: Sequence[PackedBatch]) -> PackedBatch:
        ends = np.cumsum([0, *(len(batch.images.pixels) for batch in batches)])
        images = PackedImages(
            torch.cat([batch.images.pixels for batch in batches]),
            torch.cat([batch.images.starts + int(end) for batch, end in zip(batches, ends, strict=False)]),
            torch.cat([batch.images.shapes for batch in batches]),
        )
        columns = zip(*((batch.labels, batch.indexes, batch.sizes) for batch in batches), strict=True)
        return PackedBatch(images, *(torch.cat(column) for column in columns))


PackedSample = tuple[NDArray[np.uint8], int, int, int, int]


class PackedReader(SampleReader[PackedSample, PackedBatch]):
    """Images of a source, reduced as `reduction` says, or squashed to `size`; each with its label, index, and own
    height and width.
    """

    def __init__(self, source: ImageSource, reduction: Reduction, size: int | None = None) -> None:
        if size is not None and size < 1:
            raise InputError(f"images cannot be squashed to {size} px; give at least 1, or leave it out")
        self.source, self.reduction, self.size = source, reduction, size

    def read(self, index: int, epoch: int) -> PackedSample:
        if self.size is None:
            pixels, own = self.source.load_reduced(index, self.reduction)
        else:
            image, own = self.source.load_fitted(index, self.size, "squash")
            pixels = image.permute(1, 2, 0).numpy()
        return pixels, self.source.label(index), index, *own

    def collate(self, samples: list[PackedSample]) -> PackedBatch:
        table = torch.tensor([sample[1:] for sample in samples], dtype=torch.int64).reshape(-1, 4)
        return PackedBatch(_pack([sample[0] for sample in samples]), table[:, 0], table[:, 1], table[:, 2:])


class PackedLoader(BatchLoader[PackedBatch]):
    """Images for crops. `resident_on` loads them all once into that device's memory; batches then point into it."""

    def __init__(
        self,
        reader: PackedReader,
        order: SampleOrder,
        *,
        num_workers: int = 0,
        skip_limit: float = 0.01,
        pin_memory: bool = False,
        resident_on: torch.device | str | None = None,
    ) -> None:
        super().__init__(reader, order, num_workers=num_workers, skip_limit=skip_limit, pin_memory=pin_memory)
        self._resident: tuple[PackedBatch, Tensor] | None = None
        if resident_on is not None:
            self._resident = self._load_all(torch.device(resident_on))

    def _rest(self) -> Iterator[PackedBatch]:
        if self._resident is None:
            yield from super()._rest()
            return
        whole, rows = self._resident
        for _, indexes in self._position:
            here = rows[torch.from_numpy(indexes)]
            here = here[here >= 0]
            labels = whole.labels[to_device(here, whole.labels.device)]
            yield PackedBatch(whole.images.select(here), labels, whole.indexes[here], whole.sizes[here])

    def _load_all(self, device: torch.device) -> tuple[PackedBatch, Tensor]:
        """Every image once, and the row of each image number (-1: left out)."""
        total = self.order.num_images
        everything = SampleOrder.in_turn(total, self.order.batch_size)
        parts = []
        loader = DataLoader(
            self._batches.dataset,
            sampler=[(0, indexes) for indexes in everything.batches(0)],
            batch_size=None,
            **worker_settings(self._batches.num_workers),
        )
        for batch, errors in start_workers(loader):
            self._count(errors)
            parts.append(batch)
        whole = PackedBatch.cat(parts)
        rows = torch.arange(total)
        if len(whole.indexes) < total:  # some were dropped
            rows = torch.full((total,), -1).scatter(0, whole.indexes, torch.arange(len(whole.indexes)))
        return whole.to(device), rows
