"""What is under study: backbones with what is known of them, and images with masks."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mixlab.backbones.backbone import Backbone
from mixlab.data.mask_values import IGNORE
from mixlab.data.masks import MaskSource
from mixlab.data.unreadable import SkippedImages
from mixlab.errors import InputError

UNTRAINED = "untrained"
_CACHE_BYTES = 2**30  # sets below this stay in memory between subjects


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A backbone under study: how it was trained ("dino", "supervised", ...) and, where known, how well it probes."""

    label: str
    backbone: Backbone
    training: str = UNTRAINED
    seed: int | None = None
    probe_accuracy: float | None = None
    register_accuracies: tuple[float, ...] = ()  # linear probes on single registers, in their order

    @property
    def family(self) -> str:
        return self.backbone.family

    @property
    def num_parameters(self) -> int:
        return self.backbone.num_parameters

    @property
    def num_registers(self) -> int:
        return self.backbone.layout.num_registers

    def describe(self) -> dict[str, Any]:
        """What a result says of its subject."""
        return {
            "label": self.label,
            "model": self.backbone.name,
            "family": self.family,
            "training": self.training,
            "seed": self.seed,
            "num_parameters": self.num_parameters,
            "num_layers": self.backbone.num_layers,
            "num_registers": self.num_registers,
            "causal": self.backbone.is_causal,
        }


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


__all__ = [
    "IGNORE",
    "UNTRAINED",
    "MaskedBatch",
    "MaskedImages",
    "Subject",
]
