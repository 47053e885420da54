"""Crops on a GPU in six kernel launches, where plain torch needs hundreds, which would dominate small networks.

`transforms.py` says what each part means. Resizing and blurring go over rows, then over columns, with one
program per row of the result. Colours stay with one program per crop, which goes over its pixels once per change and
once more for the mean that contrast needs; its threads wait for each other before they read what they wrote.
"""

# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from .packed import PackedImages, to_device
from .transforms import BLUR_REACH, CUBIC, CUBIC_REACH, LUMA, SOLARISE_FROM, ResizeChoices

BLOCK = 1024  # pixels of a crop at a time
ROW_BLOCK = 512  # bytes of a row of an image at a time

_RED, _GREEN, _BLUE = (tl.constexpr(part) for part in LUMA)
_THRESHOLD = tl.constexpr(SOLARISE_FROM)
_CUBIC = tl.constexpr(CUBIC)
_CUBIC_REACH = tl.constexpr(CUBIC_REACH)


def resize_boxes(images: PackedImages, chosen: ResizeChoices, box: Tensor, size: int) -> Tensor:
    """`transforms.resize_boxes` for images on a GPU; the choices live on the host."""
    number, device, width = len(box), images.pixels.device, box[:, 3]
    num_made = 3 * size * width  # by the first kernel for each crop: as wide as its box
    ends = num_made.cumsum(0)
    starts, pitches = images.starts[chosen.image], images.shapes[chosen.image, 1]
    table = [*box.T, starts, pitches, chosen.flip, ends - num_made, chosen.bilinear]
    where = to_device(torch.stack(table, dim=1), device)  # int64 (n, 9)
    rows = torch.empty(int(ends[-1]), device=device)
    out = torch.empty(number, 3, size, size, device=device)
    blocks = triton.cdiv(3 * int(width.max()), ROW_BLOCK)
    _resize_rows[(number, size, blocks)](images.pixels, where, rows, size, BLOCK=ROW_BLOCK, num_warps=2)
    _resize_columns[(number * 3, size)](rows, where, out, size, BLOCK=triton.next_power_of_2(size), num_warps=1)
    return out


def blur_(x: Tensor, sigma: Tensor) -> Tensor:
    """Blur crops (n, 3, S, S) in place by widths (n,) that live on the host; 0 leaves a crop as it is."""
    if not bool((sigma > 0).any()):
        return x
    reach, side = math.ceil(BLUR_REACH * float(sigma.max())), x.shape[-1]
    there = to_device(sigma.float(), x.device)
    rows, grid, block = torch.empty_like(x), (len(x) * 3, side), triton.next_power_of_2(side)
    _blur[grid](x, there, rows, side, reach, DOWN=True, BLOCK=block, num_warps=1)
    _blur[grid](rows, there, x, side, reach, DOWN=False, BLOCK=block, num_warps=1)
    return x


def jitter_and_grey_(x: Tensor, jitter: Tensor, order: Tensor, factors: Tensor, grey: Tensor) -> Tensor:
    """Change crops (n, 3, S, S) in place: jitter (n,) and grey (n,) as int32, order (n, 4) int32, factors (n, 4)."""
    _jitter_and_grey[(len(x),)](x, jitter, order, factors, grey, x.shape[2] * x.shape[3], BLOCK=BLOCK)
    return x


def solarise_and_normalise_(x: Tensor, solarise: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    """Invert what is bright in the chosen crops, solarise (n,) as int32; then x gain + shift by channel, in place."""
    num_pixels = x.shape[2] * x.shape[3]
    grid = (len(x) * 3, triton.cdiv(num_pixels, BLOCK))
    _solarise_and_normalise[grid](x, solarise, gain, shift, num_pixels, BLOCK=BLOCK)
    return x


@triton.jit
def _weight(pixel, centre, stretch, length, bilinear):
    """The weight of a pixel of a box for an output at `centre`; pixels outside the box do not count."""
    away = tl.abs((pixel + 0.5 - centre) / stretch)
    near = ((_CUBIC + 2) * away - (_CUBIC + 3)) * away * away + 1
    far = (((away - 5) * away + 8) * away - 4) * _CUBIC
    weight = tl.where(away < 1, near, tl.where(away < _CUBIC_REACH, far, 0.0))
    weight = tl.where(bilinear != 0, tl.maximum(1 - away, 0.0), weight)
    return tl.where((pixel >= 0.0) & (pixel < length), weight, 0.0)


@triton.jit
def _resize_rows(pixels, where, rows, size, BLOCK: tl.constexpr):
    """One row of the result, at the width of the box: its bytes lie beside each other, all channels of a pixel."""
    crop = where + tl.program_id(0) * 9
    row = tl.program_id(1)
    lane = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    top = tl.load(crop)
    left = tl.load(crop + 1)
    height = tl.load(crop + 2)
    num_bytes = 3 * tl.load(crop + 3)
    pitch = 3 * tl.load(crop + 5)
    bilinear = tl.load(crop + 8)
    if tl.program_id(2) * BLOCK < num_bytes:
        source = pixels + tl.load(crop + 4) + top * pitch + 3 * left + lane
        length = height.to(tl.float32)
        step = length / size
        stretch = tl.maximum(step, 1.0)
        centre = (row + 0.5) * step
        first = tl.floor(centre - _CUBIC_REACH * stretch)
        total = tl.zeros([BLOCK], dtype=tl.float32)
        weights = 0.0
        for tap in range((stretch * 2 * _CUBIC_REACH).to(tl.int32) + 2):
            weight = _weight(first + tap, centre, stretch, length, bilinear)
            inside = tl.minimum(tl.maximum(first + tap, 0.0), length - 1).to(tl.int64)  # what is outside weighs nothing
            value = tl.load(source + inside * pitch, mask=lane < num_bytes, other=0)
            total += weight * value.to(tl.float32)
            weights += weight
        out = rows + tl.load(crop + 7) + row * num_bytes + lane
        tl.store(out, total / weights, mask=lane < num_bytes)


@triton.jit
def _resize_columns(rows, where, out, size, BLOCK: tl.constexpr):
    plane = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1)
    crop = where + plane // 3 * 9
    bilinear = tl.load(crop + 8)
    width = tl.load(crop + 3)
    length = width.to(tl.float32)
    step = length / size
    stretch = tl.maximum(step, 1.0)
    column = tl.arange(0, BLOCK)
    place = tl.where(tl.load(crop + 6) != 0, size - 1 - column, column)
    centre = (place + 0.5) * step
    first = tl.floor(centre - _CUBIC_REACH * stretch)
    source = rows + tl.load(crop + 7) + row * 3 * width + plane % 3
    total = tl.zeros([BLOCK], dtype=tl.float32)
    weights = tl.zeros([BLOCK], dtype=tl.float32)
    for tap in range((stretch * 2 * _CUBIC_REACH).to(tl.int32) + 2):
        weight = _weight(first + tap, centre, stretch, length, bilinear)
        inside = tl.minimum(tl.maximum(first + tap, 0.0), length - 1).to(tl.int32)
        total += weight * tl.load(source + inside * 3, mask=column < size, other=0.0)
        weights += weight
    value = _unit(total / tl.where(column < size, weights, 1.0) / 255)
    tl.store(out + (plane * size + row) * size + column, value, mask=column < size)


@triton.jit
def _blur(x, sigma, out, side, reach, DOWN: tl.constexpr, BLOCK: tl.constexpr):
    """Over rows (DOWN) or over columns of one plane; the border is repeated."""
    plane = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1)
    width = tl.load(sigma + plane // 3)
    if width > 0:
        column = tl.arange(0, BLOCK)
        total = tl.zeros([BLOCK], dtype=tl.float32)
        weights = 0.0
        source = x + plane * side * side
        for tap in range(2 * reach + 1):
            away = tap - reach
            weight = tl.exp(-0.5 * (away / width) * (away / width))
            if DOWN:
                at = source + tl.minimum(tl.maximum(row + away, 0), side - 1) * side + column
            else:
                at = source + row * side + tl.minimum(tl.maximum(column + away, 0), side - 1)
            total += weight * tl.load(at, mask=column < side, other=0.0)
            weights += weight
        tl.store(out + (plane * side + row) * side + column, total / weights, mask=column < side)


@triton.jit
def _luma(red, green, blue):
    return red * _RED + green * _GREEN + blue * _BLUE


@triton.jit
def _unit(x):
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@triton.jit
def _turn(red, green, blue, factor):
    """Turn the hue by a share of the circle; see `transforms.shift_hue`."""
    high = tl.maximum(tl.maximum(red, green), blue)
    low = tl.minimum(tl.minimum(red, green), blue)
    span = high - low
    is_red = high == red
    is_green = high == green
    difference = tl.where(is_red, green - blue, tl.where(is_green, blue - red, red - green))
    hue = difference / tl.maximum(span, 1e-8) + tl.where(is_red, 0.0, tl.where(is_green, 2.0, 4.0)) + 6 * factor
    hue -= 6 * tl.floor(hue / 6)
    red = low + span * _unit(tl.abs(hue - 3) - 1)
    green = low + span * _unit(2 - tl.abs(hue - 2))
    blue = low + span * _unit(2 - tl.abs(hue - 4))
    return red, green, blue


@triton.jit
def _load_pixels(at, num_pixels, inside):
    red = tl.load(at, mask=inside, other=0.0)
    green = tl.load(at + num_pixels, mask=inside, other=0.0)
    blue = tl.load(at + 2 * num_pixels, mask=inside, other=0.0)
    return red, green, blue


@triton.jit
def _store_pixels(at, num_pixels, red, green, blue, inside):
    tl.store(at, red, mask=inside)
    tl.store(at + num_pixels, green, mask=inside)
    tl.store(at + 2 * num_pixels, blue, mask=inside)


@triton.jit
def _jitter_and_grey(x, jitter, order, factors, grey, num_pixels, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    plane = x + row * 3 * num_pixels
    lane = tl.arange(0, BLOCK)
    if tl.load(jitter + row) != 0:
        for step in range(4):
            kind = tl.load(order + row * 4 + step)
            factor = tl.load(factors + row * 4 + kind)
            middle = 0.0
            if kind == 1:
                total = tl.zeros([BLOCK], dtype=tl.float32)
                for first in range(0, num_pixels, BLOCK):
                    at = plane + first + lane
                    inside = first + lane < num_pixels
                    red, green, blue = _load_pixels(at, num_pixels, inside)
                    total += _luma(red, green, blue)
                middle = tl.sum(total, 0) / num_pixels
            for first in range(0, num_pixels, BLOCK):
                at = plane + first + lane
                inside = first + lane < num_pixels
                red, green, blue = _load_pixels(at, num_pixels, inside)
                if kind == 3:
                    red, green, blue = _turn(red, green, blue, factor)
                else:
                    # Brightness goes towards black, contrast towards the mean, saturation towards grey.
                    target = tl.where(kind == 1, middle, tl.where(kind == 2, _luma(red, green, blue), 0.0))
                    red = _unit(target + (red - target) * factor)
                    green = _unit(target + (green - target) * factor)
                    blue = _unit(target + (blue - target) * factor)
                _store_pixels(at, num_pixels, red, green, blue, inside)
            tl.debug_barrier()  # the next loop reads these pixels, and may do so with other threads
    if tl.load(grey + row) != 0:
        for first in range(0, num_pixels, BLOCK):
            at = plane + first + lane
            inside = first + lane < num_pixels
            red, green, blue = _load_pixels(at, num_pixels, inside)
            level = _luma(red, green, blue)
            _store_pixels(at, num_pixels, level, level, level, inside)


@triton.jit
def _solarise_and_normalise(x, solarise, gain, shift, num_pixels, BLOCK: tl.constexpr):
    plane = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < num_pixels
    at = x + plane * num_pixels + lane
    value = tl.load(at, mask=inside, other=0.0)
    if tl.load(solarise + plane // 3) != 0:
        value = tl.where(value >= _THRESHOLD, 1 - value, value)
    channel = plane % 3
    tl.store(at, value * tl.load(gain + channel) + tl.load(shift + channel), mask=inside)
