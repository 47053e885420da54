"""Multi-crop on the device: uint8 images in, all views of all images out, with parameters of its own for each crop.

The same code runs on the CPU and on a GPU, and never waits for the device: all choices are made on the host.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from mixlab.errors import InputError

from .colour import JITTER, solarise, to_grey
from .crop_parameters import CropKind, CropParameters, draw_parameters
from .decode import fit_image, to_pil, to_tensor
from .resample import blur, resize_boxes, whole_boxes

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
HAS_TRITON = importlib.util.find_spec("triton") is not None
_GAIN = 1 / torch.tensor(IMAGENET_STD)[:, None, None]
_SHIFT = -torch.tensor(IMAGENET_MEAN)[:, None, None] * _GAIN


class MultiCrop:
    """Views of several kinds; kinds of one size come out together, so that a network sees them in one pass."""

    def __init__(self, kinds: Sequence[CropKind]) -> None:
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

    def __call__(self, images: Tensor, parameters: dict[int, CropParameters]) -> list[Tensor]:
        """Normalised views of uint8 images (B, 3, S, S): for each size in `sizes` a float32 (V, B, 3, size, size)."""
        views = [make_crops(images, parameters[size], size=size) for size in self.sizes]
        return [part.unflatten(0, (-1, len(images))) for part in views]


@torch.no_grad()
def make_crops(images: Tensor, parameters: CropParameters, *, size: int) -> Tensor:
    """Cut, colour and normalise n crops of uint8 images (B, 3, S, S): float32 (n, 3, size, size)."""
    _check(images)
    box = whole_boxes(parameters.box, images.shape[-1])
    if images.device.type == "cuda" and HAS_TRITON:
        return _make_on_gpu(images, parameters, box, size)
    if images.device.type != "cpu":
        crops = _colour(resize_boxes(images, parameters.image, box, parameters.flip, size), parameters)
        return _normalise(crops, out=crops)
    images = images.contiguous(memory_format=torch.channels_last)
    views = torch.empty(len(parameters), 3, size, size)
    for row in range(len(parameters)):  # one at a time: it stays in the core's cache
        one = parameters[row : row + 1]
        crop = resize_boxes(images, one.image, box[row : row + 1], one.flip, size)
        _normalise(_colour(crop, one), out=views[row : row + 1])
    return views


def normalise(images: Tensor) -> Tensor:
    """Images (B, 3, H, W), uint8 or floats in [0, 1], to mean 0 and deviation 1 over ImageNet."""
    images = images.float().div_(255) if images.dtype == torch.uint8 else images
    return _normalise(images, out=torch.empty_like(images))


def stack_images(images: Sequence[Tensor], size: int) -> tuple[Tensor, Tensor]:
    """Images uint8 (3, H, W) of any sizes, squashed to one: uint8 (B, 3, size, size), and their own sizes (B, 2)."""
    own = torch.tensor([image.shape[-2:] for image in images])
    fitted = [to_tensor(fit_image(to_pil(image), size=size, fit="squash")) for image in images]
    return torch.stack(fitted), own


def _check(images: Tensor) -> None:
    if images.dtype != torch.uint8:
        raise TypeError(f"crops take uint8 images, not {images.dtype}; give pixels from 0 to 255 as they were decoded")
    if images.ndim != 4 or images.shape[1] != 3 or images.shape[2] != images.shape[3] or len(images) == 0:
        raise InputError(
            f"crops take images (B, 3, S, S), not {tuple(images.shape)}; stack_images makes them from a list"
        )


def _colour(x: Tensor, parameters: CropParameters) -> Tensor:
    """DINO's changes in DINO's order, in place: jitter, grey, blur, solarise."""
    jittered = parameters.jitter.nonzero()[:, 0]
    for step in range(len(JITTER)):  # each crop has an order of its own
        kinds = parameters.order[jittered, step]
        for kind in sorted(set(kinds.tolist())):
            rows = jittered[kinds == kind]
            factor = _to_device(parameters.factors[rows, kind, None, None, None].float(), x)
            _change(x, rows, partial(JITTER[kind], factor=factor))
    _change(x, parameters.grey.nonzero()[:, 0], lambda some: to_grey(some)[:, None].expand_as(some))
    blurred = parameters.blur.nonzero()[:, 0]
    _change(x, blurred, partial(blur, sigma=parameters.sigma[blurred]))
    _change(x, parameters.solarise.nonzero()[:, 0], solarise)
    return x


def _make_on_gpu(images: Tensor, parameters: CropParameters, box: Tensor, size: int) -> Tensor:
    """The same in few launches."""
    from . import triton_crops as kernels

    x = kernels.resize_boxes(images, parameters.image, box, parameters.flip, size)
    chosen = torch.stack([parameters.jitter, parameters.grey, parameters.solarise, *parameters.order.T]).int()
    jitter, grey, solarised, *order = _to_device(chosen, x)
    factors = _to_device(parameters.factors.float(), x)
    kernels.jitter_and_grey_(x, jitter, torch.stack(order, dim=1), factors, grey)
    kernels.blur_(x, torch.where(parameters.blur, parameters.sigma, 0.0))
    gain, shift = _to_device(torch.stack([_GAIN, _SHIFT]).flatten(1), x)
    return kernels.solarise_and_normalise_(x, solarised, gain, shift)


def _change(x: Tensor, rows: Tensor, change: Callable[[Tensor], Tensor]) -> None:
    """Change some crops in place; `rows` lives on the host."""
    if len(rows) == len(x):
        changed = change(x)
        if changed is not x:
            x.copy_(changed)
    elif len(rows):
        there = _to_device(rows, x)
        x.index_copy_(0, there, change(x.index_select(0, there)))


def _normalise(x: Tensor, *, out: Tensor) -> Tensor:
    shift, gain = (_to_device(part.to(x.dtype), x) for part in (_SHIFT, _GAIN))
    return torch.addcmul(shift, x, gain, out=out)


def _to_device(values: Tensor, like: Tensor) -> Tensor:
    return values.to(like.device, non_blocking=True)
