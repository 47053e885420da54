"""Label maps in batches: random crops to train on, whole images to judge by."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mixlab.data.batch_loader import SampleReader
from mixlab.data.masks import MaskedImage
from mixlab.evaluation.segmentation.data import LabelMaps
from mixlab.evaluation.segmentation.transforms import CropRule, random_crop


class CropBatch(NamedTuple):
    images: Tensor  # uint8 (B, 3, S, S)
    masks: Tensor  # uint8 (B, S, S)
    indexes: Tensor  # int64 (B,)

    def to(self, device: torch.device | str) -> CropBatch:
        images, masks = (part.to(device, non_blocking=True) for part in (self.images, self.masks))
        return self._replace(images=images, masks=masks)


class CropReader(SampleReader[tuple[Tensor, Tensor, int], CropBatch]):
    """A random crop of every image, another one in every epoch."""

    def __init__(self, source: LabelMaps, rule: CropRule, *, seed: int) -> None:
        self.source, self.rule, self.seed = source, rule, seed

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: int, epoch: int) -> tuple[Tensor, Tensor, int]:
        random = np.random.default_rng([self.seed, epoch, index])
        return *random_crop(self.source.load(index), self.rule, random), index

    def collate(self, samples: list[tuple[Tensor, Tensor, int]]) -> CropBatch:
        side = self.rule.crop
        images = [image for image, _, _ in samples] or [torch.empty(3, side, side, dtype=torch.uint8)]
        masks = [mask for _, mask, _ in samples] or [torch.empty(side, side, dtype=torch.uint8)]
        count = len(samples)
        indexes = torch.tensor([index for _, _, index in samples], dtype=torch.int64)
        return CropBatch(torch.stack(images)[:count], torch.stack(masks)[:count], indexes)


class WholeBatch(NamedTuple):
    """Images as they are, of any shapes."""

    pairs: list[MaskedImage]
    indexes: Tensor  # int64 (B,)

    def to(self, device: torch.device | str) -> WholeBatch:
        return self  # one at a time goes to the device, by whoever looks at it


class WholeReader(SampleReader[tuple[MaskedImage, int], WholeBatch]):
    def __init__(self, source: LabelMaps) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: int, epoch: int) -> tuple[MaskedImage, int]:
        return self.source.load(index), index

    def collate(self, samples: list[tuple[MaskedImage, int]]) -> WholeBatch:
        indexes = torch.tensor([index for _, index in samples], dtype=torch.int64)
        return WholeBatch([pair for pair, _ in samples], indexes)
