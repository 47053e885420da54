"""Batches for segmentation and detection: random crops of label maps, whole images, and resized images with objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from mixlab.errors import InputError

from .crops import IMAGENET_MEAN
from .decode import to_pil, to_tensor
from .loader import SampleReader, stack
from .masks import IGNORE, MaskedImage, MaskSource
from .objects import Objects, ObjectSource, scale_boxes

MEAN_COLOUR = tuple(round(255 * mean) for mean in IMAGENET_MEAN)
_TRIES = 10  # to find a crop that one class does not fill


@dataclass(frozen=True, kw_only=True)
class CropRule:
    """MMSegmentation's pipeline for ADE20K, which both papers use."""

    crop: int
    short_side: int  # images are brought to this, unless the long side would grow beyond `long_side`
    long_side: int
    scale: tuple[float, float]  # then by a random factor
    most_of_one_class: float  # a crop with more than this share of one class is drawn anew


def fitted_size(size: tuple[int, int], *, short_side: float, long_side: float) -> tuple[int, int]:
    """(height, width) scaled, in its shape, as large as both limits allow.

    >>> fitted_size((480, 640), short_side=512, long_side=2048)
    (512, 683)
    """
    factor = min(short_side / min(size), long_side / max(size))
    return max(round(size[0] * factor), 1), max(round(size[1] * factor), 1)


def random_crop(pair: MaskedImage, rule: CropRule, random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Scale, crop and flip: the image uint8 (3, crop, crop), its mask uint8 (crop, crop). Beyond the image: nothing."""
    image, factor = to_pil(pair.image), random.uniform(*rule.scale)
    own = (image.height, image.width)
    height, width = fitted_size(own, short_side=rule.short_side * factor, long_side=rule.long_side * factor)
    mask = np.array(Image.fromarray(pair.mask.numpy()).resize((width, height), Image.Resampling.NEAREST))
    top, left = _corner(mask, rule, random)
    rows, columns = min(rule.crop, height), min(rule.crop, width)
    box = (
        left * own[1] / width,
        top * own[0] / height,
        (left + columns) * own[1] / width,
        (top + rows) * own[0] / height,
    )
    pixels = np.asarray(image.resize((columns, rows), Image.Resampling.BILINEAR, box=box))
    cut = mask[top : top + rows, left : left + columns]
    if random.random() < 0.5:
        pixels, cut = pixels[:, ::-1], cut[:, ::-1]
    whole = np.empty((rule.crop, rule.crop, 3), dtype=np.uint8)
    whole[:] = MEAN_COLOUR
    whole[:rows, :columns] = pixels
    classes = np.full((rule.crop, rule.crop), IGNORE, dtype=np.uint8)
    classes[:rows, :columns] = cut
    return torch.from_numpy(whole).permute(2, 0, 1).contiguous(), torch.from_numpy(classes)


def _corner(mask: NDArray[np.uint8], rule: CropRule, random: np.random.Generator) -> tuple[int, int]:
    """The top left corner of a crop that no class fills, or of the last that was tried."""
    height, width = mask.shape
    for _ in range(_TRIES):
        top = int(random.integers(max(height - rule.crop, 0) + 1))
        left = int(random.integers(max(width - rule.crop, 0) + 1))
        counts = np.bincount(mask[top : top + rule.crop, left : left + rule.crop].ravel(), minlength=256)[:IGNORE]
        if np.count_nonzero(counts) > 1 and counts.max() < rule.most_of_one_class * counts.sum():
            break
    return top, left


class CropBatch(NamedTuple):
    images: Tensor  # uint8 (B, 3, S, S)
    masks: Tensor  # uint8 (B, S, S)
    indexes: Tensor  # int64 (B,)

    def to(self, device: torch.device | str) -> CropBatch:
        images, masks = (part.to(device, non_blocking=True) for part in (self.images, self.masks))
        return self._replace(images=images, masks=masks)


class CropReader(SampleReader[tuple[Tensor, Tensor, int], CropBatch]):
    """A random crop of every image, another one in every epoch."""

    def __init__(self, source: MaskSource, rule: CropRule, *, seed: int) -> None:
        self.source, self.rule, self.seed = source, rule, seed

    def read(self, index: int, epoch: int) -> tuple[Tensor, Tensor, int]:
        random = np.random.default_rng([self.seed, epoch, index])
        return *random_crop(self.source.load(index), self.rule, random), index

    def collate(self, samples: list[tuple[Tensor, Tensor, int]]) -> CropBatch:
        side = self.rule.crop
        images = stack([image for image, _, _ in samples], (3, side, side))
        masks = stack([mask for _, mask, _ in samples], (side, side))
        return CropBatch(images, masks, torch.tensor([index for _, _, index in samples], dtype=torch.int64))


class WholeBatch(NamedTuple):
    """Images as they are, of any shapes."""

    pairs: list[MaskedImage]
    indexes: Tensor  # int64 (B,)

    def to(self, device: torch.device | str) -> WholeBatch:
        return self  # one at a time goes to the device, by whoever needs it


class WholeReader(SampleReader[tuple[MaskedImage, int], WholeBatch]):
    def __init__(self, source: MaskSource) -> None:
        self.source = source

    def read(self, index: int, epoch: int) -> tuple[MaskedImage, int]:
        return self.source.load(index), index

    def collate(self, samples: list[tuple[MaskedImage, int]]) -> WholeBatch:
        indexes = torch.tensor([index for _, index in samples], dtype=torch.int64)
        return WholeBatch([pair for pair, _ in samples], indexes)


MULTIPLE = 32  # of pixels, for the sides of a batch: the coarsest stride


class ObjectSample(NamedTuple):
    """One image as the network will see it, before padding."""

    image: Tensor  # uint8 (3, H, W)
    objects: Objects
    number: int  # in the source
    own_size: tuple[int, int]  # height and width before resizing


class ObjectBatch(NamedTuple):
    """B images padded with zeros to one size, and the M objects in all of them, image by image."""

    images: Tensor  # uint8 (B, 3, H, W)
    boxes: Tensor  # float32 (M, 4)
    classes: Tensor  # int64 (M,)
    masks: Tensor  # uint8 (M, H, W / 8): eight pixels a byte, for the way between processes and to the device
    counts: Tensor  # int64 (B,): objects of each image
    sizes: Tensor  # int64 (B, 2): height and width without padding
    own_sizes: Tensor  # int64 (B, 2): before resizing
    indexes: Tensor  # int64 (B,)

    def to(self, device: torch.device | str) -> ObjectBatch:
        """Pixels and objects go to the device; counts and sizes stay on the host, where shapes are decided."""
        moved = {name: getattr(self, name).to(device, non_blocking=True) for name in self._fields[:4]}
        return self._replace(**moved)

    def objects(self) -> list[Objects]:
        """The objects of each image."""
        whole = (self.boxes, self.classes, unpack(self.masks))
        columns = zip(*(part.split(self.counts.tolist()) for part in whole), strict=True)
        return [Objects(*parts) for parts in columns]

    def shapes(self) -> list[tuple[int, int]]:
        """(height, width) of each image without padding."""
        return [(height, width) for height, width in self.sizes.tolist()]


@dataclass(frozen=True, kw_only=True)
class Resizing:
    """The short side is drawn from `short`, in steps of 32, unless the long side would be above `long`.

    Detection and the papers' 1x schedule take the upper end of `short` always.
    """

    short: tuple[int, int] = (800, 800)
    long: int = 1333
    flip: float = 0.0  # how often

    def __post_init__(self) -> None:
        low, high = self.short
        if not 1 <= low <= high <= self.long:
            raise InputError(f"short sides {low} to {high}, long side {self.long}: they must rise, from at least 1")

    def draw_short(self, random: np.random.Generator) -> int:
        low, high = self.short
        return int(random.choice(np.arange(high, low - 1, -MULTIPLE)))

    def size(self, height: int, width: int, short: int) -> tuple[int, int]:
        """The new size of an image, its shape kept."""
        return fitted_size((height, width), short_side=short, long_side=self.long)


class ObjectReader(SampleReader[ObjectSample, ObjectBatch]):
    """What a sample is. `augment` draws sizes and flips; otherwise images come at the largest size and alone."""

    def __init__(self, source: ObjectSource, resizing: Resizing, *, augment: bool, seed: int = 0) -> None:
        self.source, self.resizing, self.augment, self.seed = source, resizing, augment, seed

    def read(self, index: int, epoch: int) -> ObjectSample:
        annotated = self.source.load(index)
        image = annotated.image
        own = (image.shape[1], image.shape[2])
        random = np.random.default_rng([self.seed, epoch, index])
        size = self.resizing.size(*own, self.resizing.draw_short(random) if self.augment else self.resizing.short[1])
        if own != size:
            image = to_tensor(to_pil(image).resize((size[1], size[0]), Image.Resampling.BILINEAR))
        objects = resize_objects(annotated.objects(), own, size) if self.augment else no_objects(size)
        sample = ObjectSample(image, objects, index, own)
        return flip(sample) if self.augment and random.random() < self.resizing.flip else sample

    def collate(self, samples: list[ObjectSample]) -> ObjectBatch:
        return collate(samples)


def collate(samples: Sequence[ObjectSample]) -> ObjectBatch:
    """A batch; its sides are multiples of 32."""
    sizes = torch.tensor([sample.image.shape[1:] for sample in samples], dtype=torch.int64).reshape(-1, 2)
    height, width = (sizes.amax(0) + -sizes.amax(0) % MULTIPLE).tolist() if samples else (MULTIPLE, MULTIPLE)
    counts = torch.tensor([len(sample.objects.boxes) for sample in samples], dtype=torch.int64)
    images = torch.zeros(len(samples), 3, height, width, dtype=torch.uint8)
    masks = torch.zeros(int(counts.sum()), height, width, dtype=torch.bool)
    first = 0
    for number, sample in enumerate(samples):
        (h, w), last = sample.image.shape[1:], first + int(counts[number])
        images[number, :, :h, :w] = sample.image
        masks[first:last, :h, :w] = sample.objects.masks
        first = last
    return ObjectBatch(
        images=images,
        boxes=torch.cat([torch.empty(0, 4), *(sample.objects.boxes for sample in samples)]),
        classes=torch.cat([torch.empty(0, dtype=torch.int64), *(sample.objects.classes for sample in samples)]),
        masks=pack(masks),
        counts=counts,
        sizes=sizes,
        own_sizes=torch.tensor([sample.own_size for sample in samples], dtype=torch.int64).reshape(-1, 2),
        indexes=torch.tensor([sample.number for sample in samples], dtype=torch.int64),
    )


def pack(masks: Tensor) -> Tensor:
    """bool (M, H, W), W a multiple of 8 -> uint8 (M, H, W / 8)."""
    return torch.from_numpy(np.packbits(masks.numpy(), axis=-1))


def unpack(masks: Tensor) -> Tensor:
    """What `pack` packed, on any device."""
    bits = 2 ** torch.arange(7, -1, -1, dtype=torch.uint8, device=masks.device)
    return (masks[..., None] & bits).bool().flatten(-2)


def resize_objects(objects: Objects, old: tuple[int, int], new: tuple[int, int]) -> Objects:
    if old == new:
        return objects
    masks = objects.masks.new_zeros(0, *new)
    if len(objects.masks):
        masks = interpolate(objects.masks[:, None].to(torch.uint8), size=new, mode="nearest-exact")[:, 0].bool()
    return Objects(scale_boxes(objects.boxes, old=old, new=new), objects.classes, masks)


def flip(sample: ObjectSample) -> ObjectSample:
    """Left becomes right."""
    width = sample.image.shape[-1]
    left, top, right, bottom = sample.objects.boxes.unbind(1)
    boxes = torch.stack([width - right, top, width - left, bottom], dim=1)
    objects = sample.objects._replace(boxes=boxes, masks=sample.objects.masks.flip(-1))
    return sample._replace(image=sample.image.flip(-1), objects=objects)


def no_objects(size: tuple[int, int]) -> Objects:
    return Objects(torch.empty(0, 4), torch.empty(0, dtype=torch.int64), torch.empty(0, *size, dtype=torch.bool))
