"""Images with masks, in batches of one size."""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from mixlab.data.masks import MaskSource
from mixlab.data.unreadable import SkippedImages
from mixlab.errors import InputError

_CACHE_BYTES = 2**30  # sets below this stay in memory between subjects


class MaskedBatch(NamedTuple):
    images: Tensor  # uint8 (B, 3, S, S)
    masks: Tensor  # uint8 (B, S, S): 0 background, 1 foreground, IGNORE
    names: list[str]


class MaskedImages:
    """Images with masks at one size, in batches; read again for each subject, or kept where they are small."""

    def __init__(
        self, source: MaskSource, *, size: int, batch: int = 16, limit: int | None = None, fit: str = "squash"
    ) -> None:
        if size < 1 or batch < 1 or (limit is not None and limit < 1):
            raise InputError(f"size {size}, batch {batch} and limit {limit} must be at least 1")
        self.source, self.size, self.batch, self.fit = source, size, batch, fit
        self.num_wanted = min(len(source), limit or len(source))
        self.skipped = SkippedImages(total=len(source), limit=1.0)
        self._kept: list[MaskedBatch] | None = None

    def __iter__(self) -> Iterator[MaskedBatch]:
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[MaskedBatch] | None = [] if self.num_wanted * self.size**2 * 4 <= _CACHE_BYTES else None
        for batch in self._read():
            if kept is not None:
                kept.append(batch)
            yield batch
        self._kept = kept

    def _read(self) -> Iterator[MaskedBatch]:
        items = (item.fitted(self.size, self.fit) for item in islice(self.source.read(self.skipped), self.num_wanted))
        while group := list(islice(items, self.batch)):
            images, masks = (torch.stack([getattr(item, part) for item in group]) for part in ("image", "mask"))
            yield MaskedBatch(images, masks, [item.name for item in group])
