"""Transforms of a batch of images on any device: crops resized, blur and colour, each with a strength per image.

Resizing is bicubic or bilinear with antialiasing, as PIL and torch's `interpolate` define it; on the CPU that function
itself, image by image, is the fastest form. Colours are changed in place, by PIL's arithmetic without its rounding:
images are (n, 3, S, S) in [0, 1], strengths (n, 1, 1, 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from .packed import PackedImages

CUBIC = -0.5  # the kernel of PIL, and of torch where it antialiases
CUBIC_REACH = 2.0
BLUR_REACH = 3.0  # in sigmas; what is left out weighs 0.3 %
_BLOCK = 32  # columns that the blur makes at a time
_PADDED_PIXELS = 2**22  # of all crops that are resized together, beside each other


class ResizeChoices(Protocol):
    """How n boxes are resized; all of it lives on the host."""

    @property
    def image(self) -> Tensor:
        """int64 (n,): from which image each is cut."""

    @property
    def flip(self) -> Tensor:
        """bool (n,): mirror the result."""

    @property
    def bilinear(self) -> Tensor:
        """bool (n,): bilinear, not bicubic."""


def resize_boxes(images: PackedImages, chosen: ResizeChoices, box: Tensor, size: int) -> Tensor:
    """Cut boxes from images and resize them: float in [0, 1], (n, 3, size, size).

    `box` (n, 4) is top, left, height, width in whole pixels, on the host. Only pixels of the box count, as if it had
    been cut out first.
    """
    resize = _resize_one_by_one if images.pixels.device.type == "cpu" else _resize_batched
    return resize(images, chosen, box, size)


def whole_boxes(box: Tensor, shape: Tensor) -> Tensor:
    """Boxes as shares of images (n, 4) to whole pixels of images of these heights and widths (n, 2), never empty."""
    first = torch.minimum((box[:, :2] * shape).round(), shape - 1)
    last = torch.minimum(((box[:, :2] + box[:, 2:]) * shape).round(), shape)
    return torch.cat([first, (last - first).clamp(min=1)], dim=1).long()


def _resize_one_by_one(images: PackedImages, chosen: ResizeChoices, box: Tensor, size: int) -> Tensor:
    out = torch.empty(len(box), 3, size, size)
    choices = (part.tolist() for part in (chosen.image, box, chosen.flip, chosen.bilinear))
    for crop, number, place, mirror, bilinear in zip(out, *choices, strict=True):
        crop[:] = resize_box(images.image(number), place, size, mirror=mirror, bilinear=bilinear)
    return out


def resize_box(image: Tensor, box: Sequence[int], size: int, *, mirror: bool, bilinear: bool) -> Tensor:
    """One box of an image uint8 (3, H, W): float in [0, 1], (3, size, size). Channels last is fastest."""
    top, left, height, width = box
    cut = image[None, :, top : top + height, left : left + width]
    small = F.interpolate(cut, (size, size), mode="bilinear" if bilinear else "bicubic", antialias=True)[0].contiguous()
    return torch.mul(small.flip(2) if mirror else small, 1 / 255)


def _resize_batched(images: PackedImages, chosen: ResizeChoices, box: Tensor, size: int) -> Tensor:
    """As two products with matrices of weights, for a few crops at a time, padded to the largest box among them."""
    device, starts, pitches = images.pixels.device, images.starts[chosen.image], images.shapes[chosen.image, 1]
    out = torch.empty(len(box), 3, size, size, device=device)
    for rows in torch.arange(len(box)).split(max(1, _PADDED_PIXELS // int(box[:, 2].max() * box[:, 3].max()))):
        (height, width), (top, left) = box[rows, 2:].max(0).values.tolist(), box[rows, :2].T[:, :, None, None, None]
        down, along = torch.arange(height)[:, None], torch.arange(width)
        start, pitch = (part[rows, None, None, None] for part in (starts, pitches))
        place = start + ((top + down) * pitch + left + along) * 3 + torch.arange(3)[:, None, None]  # (n, 3, H, W)
        place = place.clamp_(max=len(images.pixels) - 1)  # what lies outside the box weighs nothing
        pixels = images.pixels[place.to(device, non_blocking=True)].float()
        flip, bilinear = chosen.flip[rows], chosen.bilinear[rows]
        by_row = _weights(box[rows, 2], torch.zeros_like(flip), bilinear, size=size, length=height)
        by_column = _weights(box[rows, 3], flip, bilinear, size=size, length=width)
        resized = by_row[:, None].to(device) @ pixels @ by_column[:, None].mT.to(device)
        out[rows.to(device)] = resized.div_(255).clamp_(0, 1)
    return out


def _weights(lengths: Tensor, flip: Tensor, bilinear: Tensor, *, size: int, length: int) -> Tensor:
    """How much each of `length` pixels counts for each of `size` outputs of boxes of these lengths: (n, size, length).

    `flip` turns the order of the outputs around.
    """
    step = (lengths.float() / size)[:, None]
    out = torch.arange(size)
    out = torch.where(flip[:, None], size - 1 - out, out)
    centre = (out + 0.5) * step  # (n, size)
    stretch = step.clamp(min=1.0)  # antialiasing: the kernel grows when the image shrinks
    pixel = torch.arange(length)
    away = ((pixel + 0.5 - centre[:, :, None]) / stretch[:, :, None]).abs()
    weight = torch.where(bilinear[:, None, None], (1 - away).clamp(min=0), _cubic(away))
    weight = weight * (pixel < lengths[:, None, None])
    return weight / weight.sum(-1, keepdim=True)


def _cubic(x: Tensor) -> Tensor:
    near = ((CUBIC + 2) * x - (CUBIC + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * CUBIC
    return torch.where(x < 1, near, torch.where(x < CUBIC_REACH, far, 0.0))


def blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian blur of (n, 3, S, S) with one width per image, in pixels and on the host; the border is repeated."""
    number, channels, side, _ = images.shape
    reach = math.ceil(BLUR_REACH * float(sigma.max()))
    away = torch.arange(-reach, reach + 1, dtype=sigma.dtype)
    weight = torch.exp(-0.5 * (away / sigma[:, None]) ** 2)
    weight = (weight / weight.sum(1, keepdim=True)).to(images.device, images.dtype, non_blocking=True)  # (n, taps)
    blocks = -(-side // _BLOCK)
    wide = F.pad(images, (reach, reach + blocks * _BLOCK - side, reach, reach), mode="replicate")
    start = torch.arange(number * channels, device=images.device).reshape(number, channels) * wide.shape[2]
    first = torch.arange(side, device=images.device).expand(number, side)
    rows = sum_rows(wide.flatten(0, 2), start, first, weight[:, None].expand(-1, side, -1))  # (n, 3, S, wide)
    # Each block of columns needs only its own neighbourhood, and all blocks share one small band of weights.
    near = rows.unfold(3, _BLOCK + 2 * reach, _BLOCK).flatten(1, 3)  # (n, 3 S blocks, block + 2 reach)
    band = F.pad(weight, (0, _BLOCK)).repeat(1, _BLOCK)[:, : _BLOCK * (_BLOCK + 2 * reach)]
    band = band.unflatten(1, (_BLOCK, _BLOCK + 2 * reach))  # row o: the weights, moved right by o
    return torch.bmm(near, band.mT).unflatten(1, (channels, side, blocks)).flatten(3)[..., :side]


def sum_rows(table: Tensor, start: Tensor, first: Tensor, weight: Tensor) -> Tensor:
    """Weighted sums of neighbouring rows of a table (R, W).

    For plane c of image i and output row o: sum over t of weight[i, o, t] * table[start[i, c] + first[i, o] + t].
    Shapes: start (n, C), first (n, O), weight (n, O, T) give (n, C, O, W).
    """
    (number, channels), (_, outputs, taps) = start.shape, weight.shape
    index = start[:, :, None, None] + first[:, None, :, None] + torch.arange(taps, device=table.device)
    weights = weight[:, None].expand(number, channels, outputs, taps).reshape(-1, taps)
    summed = F.embedding_bag(index.reshape(-1, taps), table, per_sample_weights=weights, mode="sum")
    return summed.reshape(number, channels, outputs, table.shape[1])


LUMA = (0.299, 0.587, 0.114)  # ITU-R 601, as PIL's mode L
SOLARISE_FROM = 128 / 255  # PIL's threshold


def to_grey(x: Tensor) -> Tensor:
    """Luminance, (n, S, S)."""
    red, green, blue = x.unbind(1)
    return (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])


def change_brightness(x: Tensor, factor: Tensor) -> Tensor:
    return x.mul_(factor).clamp_(0, 1)


def change_contrast(x: Tensor, factor: Tensor) -> Tensor:
    red, green, blue = x.mean(dim=(2, 3)).unbind(1)
    middle = (red * LUMA[0] + green * LUMA[1] + blue * LUMA[2])[:, None, None, None]
    return torch.addcmul((1 - factor) * middle, x, factor, out=x).clamp_(0, 1)


def change_saturation(x: Tensor, factor: Tensor) -> Tensor:
    grey = to_grey(x)[:, None].mul_(1 - factor)
    return torch.addcmul(grey, x, factor, out=x).clamp_(0, 1)


def shift_hue(x: Tensor, factor: Tensor) -> Tensor:
    """Turn the hue by a share of the full circle, keeping HSV's saturation and value."""
    red, green, blue = x.unbind(1)
    high, low = torch.maximum(torch.maximum(red, green), blue), torch.minimum(torch.minimum(red, green), blue)
    range_ = high - low
    # Hue in sixths of the circle; each channel stands at 0, 2 and 4. A grey pixel has no hue and no range: any will do.
    is_red, is_green = high == red, high == green
    hue = torch.where(is_red, green - blue, torch.where(is_green, blue - red, red - green))
    hue.div_(range_.clamp(min=1e-8))
    hue.add_(torch.where(is_red, 0.0, torch.where(is_green, 2.0, 4.0)).add_(6 * factor[:, 0]))
    hue.sub_(hue.div(6).floor_(), alpha=6)
    red_share = hue.sub(3).abs_().sub_(1).clamp_(0, 1)
    green_share = hue.sub(2).abs_().neg_().add_(2).clamp_(0, 1)
    blue_share = hue.sub_(4).abs_().neg_().add_(2).clamp_(0, 1)
    for channel, share in ((red, red_share), (green, green_share), (blue, blue_share)):
        torch.addcmul(low, range_, share, out=channel)
    return x


JITTER: tuple[Callable[..., Tensor], ...] = (change_brightness, change_contrast, change_saturation, shift_hue)


def solarise(x: Tensor) -> Tensor:
    """Invert what is bright."""
    return torch.where(x >= SOLARISE_FROM, 1 - x, x)


def draw_colours(num: int, generator: torch.Generator) -> Tensor:
    """Strengths (num, 4) of brightness, contrast, saturation and hue; each changes half of the images.

    Ranges: +-32 of 255, 0.5 to 1.5 twice, and +-18 of OpenCV's 180 degrees.
    """
    low, high = torch.tensor([[-32 / 255, 0.5, 0.5, -0.1], [32 / 255, 1.5, 1.5, 0.1]])
    drawn = low + (high - low) * torch.rand(num, 4, generator=generator)
    changed = torch.rand(num, 4, generator=generator) < 0.5
    return torch.where(changed, drawn, torch.tensor([0.0, 1.0, 1.0, 0.0]))


def change_colours(images: Tensor, strengths: Tensor) -> Tensor:
    """Images (B, 3, H, W) in [0, 1], changed in place by `draw_colours`' strengths (B, 4).

    Contrast comes second; MMSegmentation has it last in half of the cases, which differs where values are cut off at 1.
    """
    brightness, contrast, saturation, hue = strengths[:, :, None, None, None].unbind(1)  # (B, 1, 1, 1) each
    images.add_(brightness).clamp_(0, 1).mul_(contrast).clamp_(0, 1)
    return shift_hue(scale_saturation(images, saturation), hue)


def scale_saturation(x: Tensor, factor: Tensor) -> Tensor:
    """HSV's saturation times a factor, up to 1; hue and value stay. (`change_saturation` keeps the grey instead.)"""
    high = x.amax(dim=1, keepdim=True)
    most = high / (high - x.amin(dim=1, keepdim=True)).clamp(min=1e-8)
    return torch.addcmul(high, high - x, torch.minimum(factor, most), value=-1, out=x)
