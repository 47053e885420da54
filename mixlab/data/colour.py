"""Colour changes in place, with one strength per image: PIL's arithmetic without its rounding.

Images are (n, 3, S, S) in [0, 1], strengths (n, 1, 1, 1).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

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


JITTER: tuple[Callable[..., Tensor], ...] = (
    change_brightness,
    change_contrast,
    change_saturation,
    shift_hue,
)


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
    """Images (B, 3, H, W) in [0, 1], changed in place by `draw_colours`' strengths (B, 4)."""
    brightness, contrast, saturation, hue = strengths[:, :, None, None, None].unbind(1)  # (B, 1, 1, 1) each
    images.add_(brightness).clamp_(0, 1).mul_(contrast).clamp_(0, 1)
    return shift_hue(change_saturation(images, saturation), hue)
