"""The order of samples: a pure function of seed, epoch and position, independent of workers and ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mixlab.errors import InputError, counted

LARGE = 2**24  # images: their permutation would take 128 MB on every rank, and seconds at every epoch
_ROUNDS = 6
_MIX, _MIX_2, _MIX_3 = (np.uint64(value) for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def check_seed(seed: int) -> None:
    """NumPy takes no other seeds."""
    if seed < 0:
        raise InputError(f"the seed is {seed}; give 0 or more")


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
    drop_last: bool = True  # False: the last, smaller global batch is split across ranks as evenly as possible
    repeats: int = field(default=1, kw_only=True)  # an epoch has so many times fewer images, each this often in a row
    large: int = field(default=LARGE, kw_only=True)  # from so many images on, an epoch is never in memory as a whole

    def __post_init__(self) -> None:
        if self.num_images < 1 or self.batch_size < 1:
            raise InputError(f"{self.num_images} images in batches of {self.batch_size}: both must be at least 1")
        check_seed(self.seed)
        if not 0 <= self.rank < self.world_size:
            raise InputError(f"rank {self.rank} does not exist among {self.world_size}; ranks count from 0")
        if self.drop_last and self.num_images < self.global_batch:
            raise InputError(
                f"{counted(self.num_images, 'image is less', 'images are fewer')} than one global batch of "
                f"{self.global_batch}; "
                f"use a batch of at most {self.num_images // self.world_size} on each of {self.world_size} ranks"
            )

    @classmethod
    def in_turn(cls, num_images: int, batch_size: int, rank: int = 0, world_size: int = 1) -> SampleOrder:
        """Every image once, by number, in batches of at most `batch_size` on each rank."""
        size = min(batch_size, -(-num_images // world_size))
        return cls(num_images, size, rank=rank, world_size=world_size, shuffle=False, drop_last=False)

    @property
    def global_batch(self) -> int:
        return self.batch_size * self.world_size

    @property
    def batches_per_epoch(self) -> int:
        whole, rest = divmod(self.num_images, self.global_batch)
        return whole + (0 if self.drop_last or rest == 0 else 1)

    def permutation(self, epoch: int) -> NDArray[np.int64]:
        """The image numbers in this epoch's order; all of them, unless they repeat."""
        if not self.shuffle or self.is_large:
            return self.numbers(epoch, 0, self.num_images)
        order = np.random.default_rng([self.seed, epoch]).permutation(self.num_images)
        return order if self.repeats == 1 else np.repeat(order, self.repeats)[: self.num_images]

    @property
    def is_large(self) -> bool:
        return self.num_images >= self.large

    def numbers(self, epoch: int, first: int, end: int) -> NDArray[np.int64]:
        """The part of the order from place `first` to `end`, where it needs no permutation."""
        places = np.arange(first, end)
        return places if not self.shuffle else shuffled(places // self.repeats, self.num_images, (self.seed, epoch))

    def batches(self, epoch: int, start: int = 0) -> Iterator[NDArray[np.int64]]:
        """This rank's batches from sample `start` (counted over all ranks) to the end of the epoch."""
        order = self._order(epoch)
        end = self.num_images // self.global_batch * self.global_batch if self.drop_last else self.num_images
        for first in range(start, end, self.global_batch):
            last = min(first + self.global_batch, end)
            together = self.numbers(epoch, first, last) if order is None else order[first:last]
            if len(together) == self.global_batch:
                yield together[self.rank * self.batch_size : (self.rank + 1) * self.batch_size]
            else:
                yield np.array_split(together, self.world_size)[self.rank]

    def _order(self, epoch: int) -> NDArray[np.int64] | None:
        """The permutation; None where `numbers` gives parts of it."""
        return None if self.is_large or not self.shuffle else self.permutation(epoch)


def shuffled(places: NDArray[np.int64], total: int, seed: tuple[int, int]) -> NDArray[np.int64]:
    """A seeded bijection of the numbers below `total`, for any of them alone: a Feistel network on an even number of
    bits, applied again to what falls outside.
    """
    half = max(1, -(-(total - 1).bit_length() // 2))
    mask = np.uint64((1 << half) - 1)
    keys = np.random.default_rng(seed).integers(0, 2**64, size=_ROUNDS, dtype=np.uint64)
    values, outside = places.astype(np.uint64), np.ones(len(places), dtype=bool)
    while outside.any():
        values[outside] = _feistel(values[outside], keys, np.uint64(half), mask)
        outside = values >= np.uint64(total)
    return values.astype(np.int64)


def _feistel(
    values: NDArray[np.uint64], keys: NDArray[np.uint64], half: np.uint64, mask: np.uint64
) -> NDArray[np.uint64]:
    left, right = values >> half, values & mask
    for key in keys:
        mixed = (right + key) * _MIX  # splitmix64's finaliser, modulo 2^64
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_2
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_3
        left, right = right, left ^ ((mixed ^ (mixed >> np.uint64(31))) & mask)
    return (left << half) | right


@dataclass(frozen=True)
class AspectOrder(SampleOrder):
    """A permutation whose groups of `group` images in a row are all wide or all tall, but for the last leftovers.

    So batches need little padding. With `group` the images of a whole step, the order depends neither on the ranks nor
    on accumulation, and a run can resume with others.
    """

    tall: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool), compare=False)
    group: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.tall) != self.num_images or self.group < 1:
            raise InputError(
                f"{len(self.tall)} shapes for {self.num_images} images in groups of {self.group}: give one per image, "
                "and groups of at least 1"
            )

    def _order(self, epoch: int) -> NDArray[np.int64]:
        return self.permutation(epoch)

    def permutation(self, epoch: int) -> NDArray[np.int64]:
        order = super().permutation(epoch)
        groups: list[tuple[int, NDArray[np.int64]]] = []  # with the place of its last image, where it is complete
        rest: list[NDArray[np.int64]] = []
        for places in (np.flatnonzero(~self.tall[order]), np.flatnonzero(self.tall[order])):
            whole = len(places) // self.group * self.group
            groups += [(int(part[-1]), part) for part in places[:whole].reshape(-1, self.group)]
            rest.append(places[whole:])
        complete = [part for _, part in sorted(groups, key=lambda pair: pair[0])]
        return order[np.concatenate([*complete, np.sort(np.concatenate(rest))])]
