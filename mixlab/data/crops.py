"""Multi-crop on the device: uint8 images of any sizes in, all views of all images out, with parameters of its own for
each crop.

All random parameters are drawn on the host, with the distributions of torchvision's RandomResizedCrop and
ColorJitter. So the device only works on the images that a choice concerns, and never has to report back.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial

import torch
from torch import Tensor

from mixlab.errors import InputError, short

from .packed import PackedImages, pack_images, to_device
from .transforms import JITTER, blur, resize_box, resize_boxes, solarise, to_grey, whole_boxes

NUM_TRIES = 10  # as torchvision's RandomResizedCrop, before it falls back to a centre crop
ASPECT = (3 / 4, 4 / 3)
_NUM_DRAWS = 2 * NUM_TRIES + 15


@dataclass(frozen=True)
class CropKind:
    """How one kind of view is cut and coloured. The defaults only cut and flip."""

    size: int
    scale: tuple[float, float]  # share of the image's area
    num_views: int = 1
    flip: float = 0.5  # this and the others below are probabilities
    jitter: float = 0.0
    strengths: tuple[float, float, float, float] = (0.4, 0.4, 0.2, 0.1)  # brightness, contrast, saturation, hue; BYOL
    grey: float = 0.0
    blur: float = 0.0
    sigma: tuple[float, float] = (0.1, 2.0)  # pixels; DINO
    solarise: float = 0.0
    bilinear: float = 0.0  # how often it is resized bilinearly instead of bicubically

    def __post_init__(self) -> None:
        if self.size < 1 or self.num_views < 1:
            raise InputError(f"{self.num_views} views of {self.size} px: both must be at least 1")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise InputError(f"scale {self.scale} is not a range of shares; give 0 < low <= high <= 1")
        if max(self.strengths[:3]) > 1 or self.strengths[3] > 0.5 or min(self.strengths) < 0:
            raise InputError(
                f"strengths {self.strengths}: give brightness, contrast, saturation in [0, 1], hue in [0, 0.5]"
            )
        if not 0 < self.sigma[0] <= self.sigma[1]:
            raise InputError(f"sigma {self.sigma} is not a range of positive widths")

    def reduction(self, height: int, width: int) -> int:
        """By how much, to 1/r, an image may be reduced so that no crop of it is enlarged which otherwise is not."""
        shortest = min(math.sqrt(self.scale[0] * height * width * ASPECT[0]), height, width) - 0.5  # side of a box
        return max(1, int(shortest / (self.size + 1)))  # 1: rounding moves both ends of a box


def dino_crops(
    *,
    global_size: int = 224,
    local_size: int = 96,
    num_local: int = 8,
    global_scale: tuple[float, float] = (0.4, 1.0),
    local_scale: tuple[float, float] = (0.05, 0.4),
) -> tuple[CropKind, ...]:
    """DINO's views (DINO, appendix): two global ones that differ in blur and solarise, then the local ones."""
    first = CropKind(size=global_size, scale=global_scale, jitter=0.8, grey=0.2, blur=1.0)
    second = CropKind(size=global_size, scale=global_scale, jitter=0.8, grey=0.2, blur=0.1, solarise=0.2)
    if num_local == 0:
        return first, second
    local = CropKind(size=local_size, scale=local_scale, num_views=num_local, jitter=0.8, grey=0.2, blur=0.5)
    return first, second, local


@dataclass(frozen=True)
class CropParameters:
    """The choices for n crops. `image` says which image of the batch each one is cut from."""

    image: Tensor  # int64 (n,)
    box: Tensor  # float64 (n, 4): top, left, height, width as shares of the image
    flip: Tensor  # bool (n,)
    jitter: Tensor  # bool (n,)
    factors: Tensor  # float64 (n, 4): brightness, contrast, saturation, hue
    order: Tensor  # int64 (n, 4): the order in which those four are applied
    grey: Tensor  # bool (n,)
    blur: Tensor  # bool (n,)
    sigma: Tensor  # float64 (n,)
    solarise: Tensor  # bool (n,)
    bilinear: Tensor  # bool (n,)

    def __len__(self) -> int:
        return len(self.image)

    def __getitem__(self, rows: Tensor | slice) -> CropParameters:
        return CropParameters(*(getattr(self, part.name)[rows] for part in fields(self)))

    @staticmethod
    def cat(parts: list[CropParameters]) -> CropParameters:
        return CropParameters(*(torch.cat([getattr(p, part.name) for p in parts]) for part in fields(CropParameters)))


def draw_parameters(
    kind: CropKind, sizes: Tensor, generator: torch.Generator, *, rank: int = 0, world_size: int = 1
) -> CropParameters:
    """Parameters of every view of this kind, view by view, for images of these own sizes, int64 (B, 2).

    With ranks, numbers are drawn for the global batch and this rank keeps its rows: R ranks with the same generator
    state give what one rank with R times the batch gives.
    """
    num_images = len(sizes)
    u = torch.rand(kind.num_views, world_size * num_images, _NUM_DRAWS, generator=generator, dtype=torch.float64)
    u = u[:, rank * num_images : (rank + 1) * num_images].flatten(0, 1)  # (V B, draws)
    tries, rest = u[:, : 2 * NUM_TRIES], u[:, 2 * NUM_TRIES :]
    bilinear = torch.zeros(len(u), dtype=torch.bool)
    if kind.bilinear > 0:  # a draw of its own: without it, all others are as they always were
        drawn = torch.rand(kind.num_views, world_size * num_images, generator=generator)
        bilinear = (drawn[:, rank * num_images : (rank + 1) * num_images] < kind.bilinear).flatten()
    strengths = torch.tensor(kind.strengths, dtype=torch.float64)
    around = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    low, high = kind.sigma
    blur_draw = rest[:, 13]
    if kind.blur > 0:  # below the probability it is uniform: one draw serves the choice and its strength
        blur_draw = (blur_draw / kind.blur).clamp(max=1)
    return CropParameters(
        image=torch.arange(num_images).repeat(kind.num_views),
        box=_draw_boxes(kind.scale, sizes.repeat(kind.num_views, 1), tries, rest[:, :2]),
        flip=rest[:, 2] < kind.flip,
        jitter=rest[:, 3] < kind.jitter,
        factors=around + strengths * (2 * rest[:, 4:8] - 1),
        order=rest[:, 8:12].argsort(dim=1),
        grey=rest[:, 12] < kind.grey,
        blur=rest[:, 13] < kind.blur,
        sigma=low + (high - low) * blur_draw,
        solarise=rest[:, 14] < kind.solarise,
        bilinear=bilinear,
    )


def _draw_boxes(scale: tuple[float, float], sizes: Tensor, tries: Tensor, places: Tensor) -> Tensor:
    """Boxes in whole pixels of the images' own sizes, returned as shares, (n, 4)."""
    height, width = sizes.to(torch.float64).unbind(1)
    area = (height * width)[:, None] * (scale[0] + (scale[1] - scale[0]) * tries[:, :NUM_TRIES])
    low, high = (math.log(aspect) for aspect in ASPECT)
    aspect = torch.exp(low + (high - low) * tries[:, NUM_TRIES:])
    box_width, box_height = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()  # (n, tries)
    fits = (box_width > 0) & (box_width <= width[:, None]) & (box_height > 0) & (box_height <= height[:, None])
    first = fits.int().argmax(dim=1, keepdim=True)
    box_width, box_height = box_width.gather(1, first)[:, 0], box_height.gather(1, first)[:, 0]
    top = (places[:, 0] * (height - box_height + 1)).floor()
    left = (places[:, 1] * (width - box_width + 1)).floor()
    # No try fitted (a very long image): the largest middle part of an allowed shape.
    middle_width = torch.minimum(width, (height * ASPECT[1]).round())
    middle_height = torch.minimum(height, (width / ASPECT[0]).round())
    found = fits.any(dim=1)
    box_width, box_height = torch.where(found, box_width, middle_width), torch.where(found, box_height, middle_height)
    top = torch.where(found, top, ((height - middle_height) / 2).floor())
    left = torch.where(found, left, ((width - middle_width) / 2).floor())
    return torch.stack([top / height, left / width, box_height / height, box_width / width], dim=1)


IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
HAS_TRITON = importlib.util.find_spec("triton") is not None
_GAIN = 1 / torch.tensor(IMAGENET_STD)[:, None, None]
_SHIFT = -torch.tensor(IMAGENET_MEAN)[:, None, None] * _GAIN


class MultiCrop:
    """Crops of several kinds; those of one size are returned together, so that a network takes them in one pass."""

    def __init__(self, kinds: Sequence[CropKind]) -> None:
        if not isinstance(kinds, Sequence) or not all(isinstance(kind, CropKind) for kind in kinds):
            raise InputError(f"{short(kinds)} are no kinds of view; give for example dino_crops()")
        if not kinds:
            raise InputError("no kinds of view; give for example dino_crops()")
        self.kinds = tuple(kinds)
        self.sizes = tuple(dict.fromkeys(kind.size for kind in kinds))

    def draw(
        self, sizes: Tensor, generator: torch.Generator, *, rank: int = 0, world_size: int = 1
    ) -> dict[int, CropParameters]:
        """Parameters for each output size, from the images' own sizes, int64 (B, 2); see `draw_parameters`."""
        drawn = [draw_parameters(kind, sizes, generator, rank=rank, world_size=world_size) for kind in self.kinds]
        return {
            size: CropParameters.cat([part for kind, part in zip(self.kinds, drawn, strict=True) if kind.size == size])
            for size in self.sizes
        }

    def reduction(self, height: int, width: int) -> int:
        """See `CropKind.reduction`; for all kinds."""
        return min(kind.reduction(height, width) for kind in self.kinds)

    def __call__(self, images: PackedImages | Tensor, parameters: dict[int, CropParameters]) -> list[Tensor]:
        """Normalised views of packed or stacked images: for each size in `sizes` a float32 (V, B, 3, size, size)."""
        packed = to_packed(images)
        views = [make_crops(packed, parameters[size], size=size) for size in self.sizes]
        return [part.unflatten(0, (-1, packed.num_images)) for part in views]


@torch.no_grad()
def make_crops(images: PackedImages | Tensor, parameters: CropParameters, *, size: int) -> Tensor:
    """Cut, colour and normalise n crops of packed or stacked images: float32 (n, 3, size, size)."""
    packed = to_packed(images)
    box = whole_boxes(parameters.box, packed.shapes[parameters.image])
    device = packed.pixels.device.type
    if device == "cuda" and HAS_TRITON:
        return _make_on_gpu(packed, parameters, box, size)
    if device != "cpu":
        crops = _colour(resize_boxes(packed, parameters, box, size), parameters)
        return _normalise(crops, out=crops)
    return _make_one_by_one(packed, parameters, box, size)


def to_packed(images: PackedImages | Tensor) -> PackedImages:
    """Packed images as they are, and a stack of uint8 images (B, 3, H, W) packed."""
    if isinstance(images, PackedImages):
        return images
    if images.dtype != torch.uint8:
        raise TypeError(f"crops take uint8 images, not {images.dtype}; give pixels from 0 to 255 as they were decoded")
    if images.ndim != 4 or images.shape[1] != 3 or len(images) == 0:
        raise InputError(
            f"crops take images (B, 3, H, W), not {tuple(images.shape)}; pack_images packs a list of any sizes"
        )
    return pack_images(images)


def normalise(images: Tensor) -> Tensor:
    """Images (B, 3, H, W), uint8 or floats in [0, 1], to mean 0 and deviation 1 over ImageNet."""
    images = images.float().div_(255) if images.dtype == torch.uint8 else images
    return _normalise(images, out=torch.empty_like(images))


def _colour(x: Tensor, parameters: CropParameters) -> Tensor:
    """DINO's changes in DINO's order, in place: jitter, grey, blur, solarise."""
    jittered = parameters.jitter.nonzero()[:, 0]
    for step in range(len(JITTER)):  # each crop has an order of its own
        kinds = parameters.order[jittered, step]
        for kind in sorted(set(kinds.tolist())):
            rows = jittered[kinds == kind]
            factor = to_device(parameters.factors[rows, kind, None, None, None].float(), x.device)
            _change(x, rows, partial(JITTER[kind], factor=factor))
    _change(x, parameters.grey.nonzero()[:, 0], lambda some: to_grey(some)[:, None].expand_as(some))
    blurred = parameters.blur.nonzero()[:, 0]
    _change(x, blurred, partial(blur, sigma=parameters.sigma[blurred]))
    _change(x, parameters.solarise.nonzero()[:, 0], solarise)
    return x


def _make_one_by_one(images: PackedImages, parameters: CropParameters, box: Tensor, size: int) -> Tensor:
    """The same on the CPU: one crop stays in the core's cache, and choices are looked up in lists, not in tensors."""
    views = torch.empty(len(parameters), 3, size, size)
    factors = parameters.factors.float()[..., None, None, None, None]  # (n, 4, 1, 1, 1, 1)
    cuts = (parameters.image, box, parameters.flip, parameters.bilinear)
    changes = (parameters.jitter, parameters.order, parameters.grey, parameters.blur, parameters.solarise)
    choices = zip(*(part.tolist() for part in (*cuts, *changes)), strict=True)
    for row, (number, place, mirror, bilinear, jittered, order, grey, blurred, solarised) in enumerate(choices):
        x = resize_box(images.image(number), place, size, mirror=mirror, bilinear=bilinear)[None]
        for kind in order if jittered else ():
            x = JITTER[kind](x, factor=factors[row, kind])
        if grey:
            x = to_grey(x)[:, None].expand_as(x)
        if blurred:
            x = blur(x, parameters.sigma[row : row + 1])
        if solarised:
            x = solarise(x)
        _normalise(x, out=views[row : row + 1])
    return views


def _make_on_gpu(images: PackedImages, parameters: CropParameters, box: Tensor, size: int) -> Tensor:
    """The same in few launches, on the GPU that has the images, whichever is the current one."""
    from . import triton_crops as kernels

    with torch.cuda.device_of(images.pixels):
        x = kernels.resize_boxes(images, parameters, box, size)
        chosen = torch.stack([parameters.jitter, parameters.grey, parameters.solarise, *parameters.order.T]).int()
        jitter, grey, solarised, *order = to_device(chosen, x.device)
        factors = to_device(parameters.factors.float(), x.device)
        kernels.jitter_and_grey_(x, jitter, torch.stack(order, dim=1), factors, grey)
        kernels.blur_(x, torch.where(parameters.blur, parameters.sigma, 0.0))
        gain, shift = to_device(torch.stack([_GAIN, _SHIFT]).flatten(1), x.device)
        return kernels.solarise_and_normalise_(x, solarised, gain, shift)


def _change(x: Tensor, rows: Tensor, change: Callable[[Tensor], Tensor]) -> None:
    """Change some crops in place; `rows` lives on the host."""
    if len(rows) == len(x):
        changed = change(x)
        if changed is not x:
            x.copy_(changed)
    elif len(rows):
        there = to_device(rows, x.device)
        x.index_copy_(0, there, change(x.index_select(0, there)))


def _normalise(x: Tensor, *, out: Tensor) -> Tensor:
    shift, gain = (to_device(part.to(x.dtype), x.device) for part in (_SHIFT, _GAIN))
    return torch.addcmul(shift, x, gain, out=out)
