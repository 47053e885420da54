"""Images and their objects as batches: resized as published, flipped, padded to one size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from mixlab.backbones.backbone import Backbone
from mixlab.data.batch_loader import SampleReader
from mixlab.data.crops import normalise
from mixlab.data.decode import to_pil, to_tensor
from mixlab.errors import InputError
from mixlab.evaluation.detection.object_source import ObjectSource
from mixlab.evaluation.detection.objects import Objects, scale_boxes
from mixlab.training.recipe import to_pixels_of

MULTIPLE = 32  # of pixels, for the sides of a batch: the coarsest stride


class Scene(NamedTuple):
    """One image as the network will see it, before padding."""

    image: Tensor  # uint8 (3, H, W)
    objects: Objects
    number: int  # in the source
    own_size: tuple[int, int]  # height and width before resizing


class SceneBatch(NamedTuple):
    """B images padded with zeros to one size, and the M objects in all of them, image by image."""

    images: Tensor  # uint8 (B, 3, H, W)
    boxes: Tensor  # float32 (M, 4)
    classes: Tensor  # int64 (M,)
    masks: Tensor  # uint8 (M, H, W / 8): eight pixels a byte, for the way between processes and to the device
    counts: Tensor  # int64 (B,): objects of each image
    sizes: Tensor  # int64 (B, 2): height and width without padding
    own_sizes: Tensor  # int64 (B, 2): before resizing
    indexes: Tensor  # int64 (B,)

    def to(self, device: torch.device | str) -> SceneBatch:
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
        scale = min(short / min(height, width), self.long / max(height, width))
        return max(round(height * scale), 1), max(round(width * scale), 1)


class SceneReader(SampleReader[Scene, SceneBatch]):
    """What a sample is. `augment` draws sizes and flips; otherwise images come at the largest size and alone."""

    def __init__(self, source: ObjectSource, resizing: Resizing, *, augment: bool, seed: int = 0) -> None:
        self.source, self.resizing, self.augment, self.seed = source, resizing, augment, seed

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: int, epoch: int) -> Scene:
        if not self.augment:
            image = self.source.image(index)
            own = (image.shape[1], image.shape[2])
            size = self.resizing.size(*own, short=self.resizing.short[1])
            return Scene(resize_image(image, size), no_objects(size), index, own)
        random = np.random.default_rng([self.seed, epoch, index])
        image, objects = self.source.load(index)
        own = (image.shape[1], image.shape[2])
        size = self.resizing.size(*own, short=self.resizing.draw_short(random))
        scene = Scene(resize_image(image, size), resize_objects(objects, own, size), index, own)
        return flip(scene) if random.random() < self.resizing.flip else scene

    def collate(self, samples: list[Scene]) -> SceneBatch:
        return collate(samples)


def collate(samples: Sequence[Scene]) -> SceneBatch:
    """A batch; its sides are multiples of 32."""
    sizes = torch.tensor([scene.image.shape[1:] for scene in samples], dtype=torch.int64).reshape(-1, 2)
    height, width = (sizes.amax(0) + -sizes.amax(0) % MULTIPLE).tolist() if samples else (MULTIPLE, MULTIPLE)
    counts = torch.tensor([len(scene.objects.boxes) for scene in samples], dtype=torch.int64)
    images = torch.zeros(len(samples), 3, height, width, dtype=torch.uint8)
    masks = torch.zeros(int(counts.sum()), height, width, dtype=torch.bool)
    first = 0
    for number, scene in enumerate(samples):
        (h, w), last = scene.image.shape[1:], first + int(counts[number])
        images[number, :, :h, :w] = scene.image
        masks[first:last, :h, :w] = scene.objects.masks
        first = last
    return SceneBatch(
        images=images,
        boxes=torch.cat([torch.empty(0, 4), *(scene.objects.boxes for scene in samples)]),
        classes=torch.cat([torch.empty(0, dtype=torch.int64), *(scene.objects.classes for scene in samples)]),
        masks=pack(masks),
        counts=counts,
        sizes=sizes,
        own_sizes=torch.tensor([scene.own_size for scene in samples], dtype=torch.int64).reshape(-1, 2),
        indexes=torch.tensor([scene.number for scene in samples], dtype=torch.int64),
    )


def pack(masks: Tensor) -> Tensor:
    """bool (M, H, W), W a multiple of 8 -> uint8 (M, H, W / 8)."""
    return torch.from_numpy(np.packbits(masks.numpy(), axis=-1))


def unpack(masks: Tensor) -> Tensor:
    """What `pack` packed, on any device."""
    bits = 2 ** torch.arange(7, -1, -1, dtype=torch.uint8, device=masks.device)
    return (masks[..., None] & bits).bool().flatten(-2)


def resize_image(image: Tensor, size: tuple[int, int]) -> Tensor:
    """uint8 (3, H, W) at another (height, width)."""
    if tuple(image.shape[1:]) == size:
        return image
    return to_tensor(to_pil(image).resize((size[1], size[0]), Image.Resampling.BILINEAR))


def resize_objects(objects: Objects, old: tuple[int, int], new: tuple[int, int]) -> Objects:
    if old == new:
        return objects
    masks = objects.masks.new_zeros(0, *new)
    if len(objects.masks):
        masks = interpolate(objects.masks[:, None].to(torch.uint8), size=new, mode="nearest-exact")[:, 0].bool()
    return Objects(scale_boxes(objects.boxes, old=old, new=new), objects.classes, masks)


def flip(scene: Scene) -> Scene:
    """Left becomes right."""
    width = scene.image.shape[-1]
    left, top, right, bottom = scene.objects.boxes.unbind(1)
    boxes = torch.stack([width - right, top, width - left, bottom], dim=1)
    objects = scene.objects._replace(boxes=boxes, masks=scene.objects.masks.flip(-1))
    return scene._replace(image=scene.image.flip(-1), objects=objects)


def no_objects(size: tuple[int, int]) -> Objects:
    return Objects(torch.empty(0, 4), torch.empty(0, dtype=torch.int64), torch.empty(0, *size, dtype=torch.bool))


def to_input(batch: SceneBatch, backbone: Backbone) -> Tensor:
    """Pixels as the backbone wants them; the padding is 0, the mean colour."""
    dtype = next(backbone.parameters()).dtype
    images = to_pixels_of(backbone, normalise(batch.images).to(dtype))
    for image, (height, width) in zip(images, batch.shapes(), strict=True):
        image[:, height:] = 0
        image[:, :, width:] = 0
    return images
