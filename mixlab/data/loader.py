"""Batches of samples: seeded, split across ranks, and resumable at the exact sample."""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import is_dataclass, replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from mixlab.errors import InputError, WorkError
from mixlab.plugins import plugin_at_fault

from .decode import UnreadableImage
from .sample_order import SampleOrder
from .skipped import SkippedImages
from .source import ImageSource, Source, evenly_spaced, wrapped_sources
from .workers import check_shared_memory, start_workers, worker_settings

_MEASURED = 16  # samples from which the size of a batch is estimated
_MAX_TRIES = 100  # unreadable images in a row before a slot of the batch stays empty
Errors = list[UnreadableImage | WorkError]  # what could not be read; the second ends the work


class AnyBatch(Protocol):
    """What the training loop needs to know of a batch."""

    @property
    def indexes(self) -> Tensor:
        """int64 (B,): the samples' numbers in the source."""

    def to(self, device: torch.device | str) -> AnyBatch:
        """The same batch with what the network needs on the device."""


S = TypeVar("S")
B = TypeVar("B", bound=AnyBatch)


class SampleReader(ABC, Generic[S, B]):
    """What a sample is, and how samples become a batch. Workers get a copy, so it should be cheap to pickle.

    Whatever `read` draws must depend on (seed, epoch, index) alone; then no batch depends on workers or ranks.
    """

    source: Source[Any]

    def __len__(self) -> int:
        return len(self.source)

    @abstractmethod
    def read(self, index: int, epoch: int) -> S:
        """One sample; `UnreadableImage` where its file is damaged."""

    @abstractmethod
    def collate(self, samples: list[S]) -> B:
        """A batch of samples, or of none."""

    def sample_bytes(self) -> int:
        """About how many bytes a sample takes in a batch, from a few of them."""
        few = []
        for index in evenly_spaced(len(self), min(_MEASURED, len(self))):
            with suppress(UnreadableImage):
                few.append(self.read(index, 0))
        return _num_bytes(self.collate(few)) // max(1, len(few))


class BatchLoader(Generic[B]):
    """Iterating gives the rest of the current epoch, then moves to the next; the order never depends on the workers.

    `unreadable="replace"` keeps batches full by taking the next readable image instead (training); `"drop"` leaves the
    image out (evaluation). Either way it is counted in `skipped`, which stops the run above its limit.
    """

    def __init__(
        self,
        reader: SampleReader[Any, B],
        order: SampleOrder,
        *,
        num_workers: int = 0,
        unreadable: str = "replace",
        skip_limit: float = 0.01,
        pin_memory: bool = False,
    ) -> None:
        if unreadable not in ("replace", "drop"):
            raise InputError(f"unreadable {unreadable!r} is unknown; choose 'replace' or 'drop'")
        self.order = order
        self.skipped = SkippedImages(total=len(reader), limit=skip_limit)
        self._position = _Position(order)
        self._reader, self._is_checked = reader, False
        self._batches: DataLoader[Any] = DataLoader(
            _Batches(reader, replace=unreadable == "replace"),
            sampler=self._position,
            batch_size=None,  # a sample of this data set is a whole batch
            persistent_workers=num_workers > 0,
            pin_memory=pin_memory,
            **worker_settings(num_workers),
        )

    def __len__(self) -> int:
        """Batches in a whole epoch."""
        return self.order.batches_per_epoch

    def __iter__(self) -> Iterator[B]:
        for batch in self._rest():
            self._position.samples += self.order.global_batch
            if len(batch.indexes):
                yield batch
        self._start_next_epoch()

    @property
    def epoch(self) -> int:
        return self._position.epoch

    def state_dict(self) -> dict[str, Any]:
        """The position to resume from: after the last batch that was yielded, not after prefetched ones."""
        return {
            "epoch": self.epoch,
            "samples": self._position.samples,
            "num_images": self.order.num_images,
            "seed": self.order.seed,
            "skipped": dict(self.skipped.reasons),
            **({"large": self.order.large} if self.order.is_large else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where `state` was taken; ranks and batch size may differ, the data and the seed may not."""
        for key, ours in (("num_images", self.order.num_images), ("seed", self.order.seed)):
            if state[key] != ours:
                raise InputError(
                    f"the run was saved with data of {key} {state[key]}, here it is {ours}; "
                    "resume with the same source and seed, or start a new run"
                )
        large = int(state.get("large", self.order.num_images + 1))  # runs of before had a permutation at any size
        if large != self.order.large and (large <= self.order.num_images) != self.order.is_large:
            self.order = self._position.order = replace(self.order, large=large)
        self._position.epoch, self._position.samples = int(state["epoch"]), int(state["samples"])
        if self._position.samples >= len(self) * self.order.global_batch:  # saved after an epoch's last batch
            self._start_next_epoch()
        self.skipped.reasons = dict(state["skipped"])

    def _start_next_epoch(self) -> None:
        self._position.epoch, self._position.samples = self.epoch + 1, 0

    def _rest(self) -> Iterator[B]:
        """The batches left in this epoch."""
        self._check_memory()
        for batch, errors in start_workers(self._batches):
            self._count(errors)
            yield batch

    def _check_memory(self) -> None:
        """Once, before processes start that would not have the shared memory for their batches."""
        if self._batches.num_workers and not self._is_checked:
            check_shared_memory(self._reader.sample_bytes() * self.order.batch_size, self._batches.num_workers)
        self._is_checked = True

    def _count(self, errors: Errors) -> None:
        for error in errors:
            if isinstance(error, WorkError):
                raise error
            if self.skipped.add(error):
                warnings.warn(f"skipped {error}", stacklevel=3)


class _Position:
    """Where the loader stands; to torch it is the sampler that gives the index batches left in this epoch."""

    def __init__(self, order: SampleOrder) -> None:
        self.order = order
        self.epoch = self.samples = 0  # samples of this epoch already given out, over all ranks

    def __iter__(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        epoch = self.epoch
        return ((epoch, indexes) for indexes in self.order.batches(epoch, self.samples))

    def __len__(self) -> int:
        return self.order.batches_per_epoch


class _Batches(Dataset[Any]):
    """Runs in the workers: index batches to batches, with what could not be read beside them."""

    def __init__(self, reader: SampleReader[Any, Any], *, replace: bool) -> None:
        self._reader, self._replace = reader, replace
        self._num_samples = len(reader)
        self._sizes = [len(source) for source in self._sources()]

    def __getitem__(self, where: tuple[int, NDArray[np.int64]]) -> tuple[Any, Errors]:
        epoch, indexes = where
        errors: Errors = []
        samples = [self._read(index, epoch, errors) for index in indexes.tolist()]
        if said := self._shrunk():  # samples may be others than their numbers say
            errors.append(WorkError(said))
        return self._reader.collate([sample for sample in samples if sample is not None]), errors

    def _sources(self) -> list[Source[Any]]:
        """What is read, and of what it is a part; a reader of other samples has none."""
        return [*wrapped_sources(self._reader.source)] if hasattr(self._reader, "source") else []

    def _shrunk(self) -> str:
        """What to say of a source that has fewer samples than at the start; empty where it has not."""
        for source, before in zip(self._sources(), self._sizes, strict=True):
            if (number := len(source)) < before:
                return (
                    f"the source {source.title or type(source).__name__} has {number:,} samples, and had {before:,} "
                    "when it was opened; keep them while it is used: list them once, when it is built"
                )
        return ""

    def _read(self, index: int, epoch: int, errors: Errors) -> Any | None:
        for step in range(min(_MAX_TRIES, self._num_samples)):
            try:  # the next image by number: the same in every run
                return self._reader.read((index + step) % self._num_samples, epoch)
            except UnreadableImage as error:
                errors.append(error)
            except Exception as error:  # in a worker its traceback would be lost: what it says is passed on
                said = self._shrunk() or plugin_at_fault(error)
                if not said or os.environ.get("MIXLAB_DEBUG") == "1":
                    raise
                errors.append(WorkError(said))
                return None
            if not self._replace:
                return None
        return None


def _num_bytes(value: object) -> int:
    """Of all tensors in a batch."""
    if isinstance(value, Tensor):
        return value.nbytes
    parts = vars(value).values() if is_dataclass(value) else value if isinstance(value, tuple | list) else ()
    return sum(map(_num_bytes, parts))


def stack(tensors: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    """uint8 tensors of this shape on top of each other, also where there are none."""
    return torch.stack(tensors) if tensors else torch.empty(0, *shape, dtype=torch.uint8)


class Batch(NamedTuple):
    """B images at one size; `sizes` are the (height, width) of the files."""

    images: Tensor  # uint8 (B, 3, S, S)
    labels: Tensor  # int64 (B,): -1 where the source has none
    indexes: Tensor  # int64 (B,): the images' numbers in the source
    sizes: Tensor  # int64 (B, 2)

    def to(self, device: torch.device | str) -> Batch:
        """Pixels and labels go to the device; indexes and sizes stay on the host."""
        images, labels = (part.to(device, non_blocking=True) for part in (self.images, self.labels))
        return self._replace(images=images, labels=labels)


class ImageReader(SampleReader[tuple[Tensor, int, int, int, int], Batch]):
    """Images of a source at one size, see `fit_image`; each with its label, index, and own height and width."""

    def __init__(self, source: ImageSource, size: int, fit: str = "squash") -> None:
        self.source, self.size, self.fit = source, size, fit

    def read(self, index: int, epoch: int) -> tuple[Tensor, int, int, int, int]:
        image, (height, width) = self.source.load_fitted(index, self.size, self.fit)
        return image, self.source.label(index), index, height, width

    def sample_bytes(self) -> int:
        return 3 * self.size**2

    def collate(self, samples: list[tuple[Tensor, int, int, int, int]]) -> Batch:
        images = stack([sample[0] for sample in samples], (3, self.size, self.size))
        table = torch.tensor([sample[1:] for sample in samples], dtype=torch.int64).reshape(-1, 4)
        return Batch(images, table[:, 0], table[:, 1], table[:, 2:])
