"""Which images come when: a pure function of seed, epoch and position, never of workers or ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mixlab.errors import InputError


@dataclass(frozen=True)
class SampleOrder:
    """An epoch is one permutation, cut into global batches of batch_size x world_size; rank r takes piece r of each.

    So 2 ranks with batches of 32 see, step by step, exactly what 1 rank with batches of 64 sees.
    """

    num_images: int
    batch_size: int  # of one rank
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    shuffle: bool = True
    drop_last: bool = True  # without it the last, smaller global batch is shared out as evenly as it goes

    def __post_init__(self) -> None:
        if self.num_images < 1 or self.batch_size < 1:
            raise InputError(f"{self.num_images} images in batches of {self.batch_size}: both must be at least 1")
        if not 0 <= self.rank < self.world_size:
            raise InputError(f"rank {self.rank} does not exist among {self.world_size}; ranks count from 0")
        if self.drop_last and self.num_images < self.global_batch:
            raise InputError(
                f"{self.num_images} images are fewer than one global batch of {self.global_batch}; "
                f"use a batch of at most {self.num_images // self.world_size} on each of {self.world_size} ranks"
            )

    @property
    def global_batch(self) -> int:
        return self.batch_size * self.world_size

    @property
    def batches_per_epoch(self) -> int:
        whole, rest = divmod(self.num_images, self.global_batch)
        return whole + (0 if self.drop_last or rest == 0 else 1)

    def permutation(self, epoch: int) -> NDArray[np.int64]:
        """All image numbers in this epoch's order."""
        if not self.shuffle:
            return np.arange(self.num_images)
        return np.random.default_rng([self.seed, epoch]).permutation(self.num_images)

    def batches(self, epoch: int, start: int = 0) -> Iterator[NDArray[np.int64]]:
        """This rank's batches from sample `start` (counted over all ranks) to the end of the epoch."""
        order = self.permutation(epoch)
        end = self.num_images // self.global_batch * self.global_batch if self.drop_last else self.num_images
        for first in range(start, end, self.global_batch):
            together = order[first : min(first + self.global_batch, end)]
            if len(together) == self.global_batch:
                yield together[self.rank * self.batch_size : (self.rank + 1) * self.batch_size]
            else:
                yield np.array_split(together, self.world_size)[self.rank]
