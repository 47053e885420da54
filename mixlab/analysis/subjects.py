"""Images with masks in batches, and what is done to a backbone and to its images before it is scored."""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from mixlab.backbones.backbone import Backbone
from mixlab.backbones.isotropic import Isotropic
from mixlab.backbones.timm_backbone import TimmBackbone
from mixlab.data.mask_values import IGNORE
from mixlab.data.masks import MaskSource
from mixlab.data.unreadable import SkippedImages
from mixlab.errors import InputError

_CACHE_BYTES = 2**30  # sets below this stay in memory between subjects


def untrained_twin(backbone: Backbone, seed: int = 0) -> Backbone:
    """The same architecture with fresh weights, from a seed; the random state outside is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if isinstance(backbone, Isotropic):
            twin: Backbone = Isotropic(backbone.config, name=backbone.name)
        elif isinstance(backbone, TimmBackbone):
            twin = TimmBackbone(backbone.timm_name, backbone.fields | {"pretrained": False}, name=backbone.name)
        else:
            raise TypeError(f"{type(backbone).__name__} cannot be built anew; a twin needs a mixlab or timm backbone")
    return twin.to(next(backbone.parameters()).device).eval()


def normalise(images: Tensor, backbone: Backbone) -> Tensor:
    """Pixels uint8 (B, 3, H, W) to what the backbone takes, on its device."""
    parameter = next(backbone.parameters())
    statistics = torch.tensor([backbone.pixel_mean, backbone.pixel_std], device=parameter.device)
    mean, std = statistics[..., None, None]
    return ((images.to(parameter.device) / 255 - mean) / std).to(parameter.dtype)


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
    "MaskedBatch",
    "MaskedImages",
    "normalise",
    "untrained_twin",
]
