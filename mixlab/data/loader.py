"""Batches of images for training and evaluation: seeded, shared out over ranks, and resumable to the exact sample."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .sample_order import SampleOrder
from .source import ImageSource
from .unreadable import SkippedImages, UnreadableImage

_MAX_TRIES = 100  # unreadable images in a row before a place in the batch stays empty


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


class Loader:
    """Iterating gives the rest of the current epoch, then moves to the next; the order never depends on the workers.

    `unreadable="replace"` keeps batches full by taking the next readable image instead (training); `"drop"` leaves the
    image out (evaluation). Either way it is counted in `skipped`, which stops the run above its limit.
    `resident_on` loads the whole source once into the memory of that device and reads batches from there.
    """

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
        if unreadable not in ("replace", "drop"):
            raise ValueError(f"unreadable {unreadable!r} is unknown; choose 'replace' or 'drop'")
        self.order = SampleOrder(len(source), batch_size, seed, rank, world_size, shuffle, drop_last)
        self.skipped = SkippedImages(total=len(source), limit=skip_limit)
        self._place = _Place(self.order)
        self._batches: DataLoader[Any] = DataLoader(
            _Batches(source, size, fit, replace=unreadable == "replace"),
            sampler=self._place,
            batch_size=None,  # a sample of this data set is a whole batch
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            pin_memory=pin_memory,
        )
        self._resident: tuple[Batch, Tensor] | None = None
        if resident_on is not None:
            self._resident = self._load_all(torch.device(resident_on))

    def __len__(self) -> int:
        """Batches in a whole epoch."""
        return self.order.batches_per_epoch

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._from_memory() if self._resident is not None else self._from_source():
            self._place.samples += self.order.global_batch
            if len(batch.indexes):
                yield batch
        self._place.move_to(self.epoch + 1, 0)

    @property
    def epoch(self) -> int:
        return self._place.epoch

    def state_dict(self) -> dict[str, Any]:
        """Where to go on: after the last batch that was given out, not after those prefetched."""
        return {
            "epoch": self.epoch,
            "samples": self._place.samples,
            "num_images": self.order.num_images,
            "seed": self.order.seed,
            "skipped": self.skipped.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken; ranks and batch size may differ, the data and the seed may not."""
        for key, ours in (("num_images", self.order.num_images), ("seed", self.order.seed)):
            if state[key] != ours:
                raise ValueError(
                    f"the saved position is in data with {key} {state[key]}, here it is {ours}; "
                    "resume with the same source and seed, or start a new run"
                )
        self._place.move_to(int(state["epoch"]), int(state["samples"]))
        if self._place.samples >= len(self) * self.order.global_batch:  # saved after an epoch's last batch
            self._place.move_to(self.epoch + 1, 0)
        self.skipped.load_state_dict(state["skipped"])

    def _from_source(self) -> Iterator[Batch]:
        for batch, errors in self._batches:
            self._count(errors)
            yield batch

    def _from_memory(self) -> Iterator[Batch]:
        assert self._resident is not None
        whole, rows = self._resident
        for indexes in self._place:
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
            sampler=list(everything.batches(0)),
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

    def _count(self, errors: list[UnreadableImage]) -> None:
        for error in errors:
            if self.skipped.add(error):
                warnings.warn(f"skipped {error}", stacklevel=3)


class _Place:
    """Where the loader stands; to torch it is the sampler that gives the index batches left in this epoch."""

    def __init__(self, order: SampleOrder) -> None:
        self._order = order
        self.move_to(0, 0)

    def move_to(self, epoch: int, samples: int) -> None:
        self.epoch = epoch
        self.samples = samples  # of this epoch already given out, over all ranks

    def __iter__(self) -> Iterator[np.ndarray]:
        return self._order.batches(self.epoch, self.samples)

    def __len__(self) -> int:
        return self._order.batches_per_epoch


class _Batches(Dataset[tuple[Batch, list[UnreadableImage]]]):
    """Runs in the workers: index batches to image batches, with what could not be read beside them."""

    def __init__(self, source: ImageSource, size: int, fit: str, *, replace: bool) -> None:
        self._source, self._size, self._fit, self._replace = source, size, fit, replace

    def __getitem__(self, indexes: np.ndarray) -> tuple[Batch, list[UnreadableImage]]:
        images: list[Tensor] = []
        rows: list[tuple[int, int, int, int]] = []
        errors: list[UnreadableImage] = []
        for index in indexes.tolist():
            found = self._load(index, errors)
            if found is not None:
                number, image, (height, width) = found
                images.append(image)
                rows.append((self._source.label(number), number, height, width))
        pixels = torch.stack(images) if images else torch.empty(0, 3, self._size, self._size, dtype=torch.uint8)
        table = torch.tensor(rows, dtype=torch.int64).reshape(-1, 4)
        return Batch(pixels, table[:, 0], table[:, 1], table[:, 2:]), errors

    def _load(self, index: int, errors: list[UnreadableImage]) -> tuple[int, Tensor, tuple[int, int]] | None:
        for step in range(min(_MAX_TRIES, len(self._source))):
            number = (index + step) % len(self._source)  # the next image by number: the same in every run
            try:
                return number, *self._source.load_fitted(number, self._size, self._fit)
            except UnreadableImage as error:
                errors.append(error)
            if not self._replace:
                return None
        return None
