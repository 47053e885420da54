"""Regularisers of supervised training that work on a whole batch, on the device: RandAugment, mixup, cutmix, erasing.

RandAugment (Cubuk et al. 2020) draws for each image; the set, the strengths and their rise with the magnitude are those
that timm calls `rand-m9-mstd0.5-inc1`, which MambaOut and DeiT train with: two changes per image, each made with
probability 0.5. It takes floats in [0, 1]; the others take normalised images.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from mixlab.data.crops import IMAGENET_MEAN
from mixlab.data.transforms import change_brightness, change_contrast, change_saturation

NUM_CHANGES = 2
PROBABILITY = 0.5
LARGEST = 10.0  # the magnitude scale
GREY = 0.5
ERASED_AREA = (0.02, 1 / 3)  # Zhong et al. 2020, as in timm
ERASED_ASPECT = (0.3, 1 / 0.3)
Box = tuple[int, int, int, int]  # top, left, height, width


def rotation(strength: Tensor) -> Tensor:
    angle = strength * math.radians(30)
    cos, sin = angle.cos(), angle.sin()
    zero = torch.zeros_like(angle)
    return torch.stack([cos, -sin, zero, sin, cos, zero], dim=1).unflatten(1, (2, 3))


def _affine(strength: Tensor, row: int, column: int, scale: float) -> Tensor:
    matrix = torch.eye(2, 3).repeat(len(strength), 1, 1)
    matrix[:, row, column] += strength * scale
    return matrix


# Each takes strengths in [-1, 1] on the host, (n,), and gives the map from output to input places, (n, 2, 3), about the
# centre. Places span [-1, 1].
MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "rotate": rotation,
    "shear_x": lambda strength: _affine(strength, 0, 1, 0.3),
    "shear_y": lambda strength: _affine(strength, 1, 0, 0.3),
    "translate_x": lambda strength: _affine(strength, 0, 2, 2 * 0.45),  # a share of the side
    "translate_y": lambda strength: _affine(strength, 1, 2, 2 * 0.45),
}


def auto_contrast(x: Tensor, strength: Tensor) -> Tensor:
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low).clamp(min=1e-6), x)


def equalise(x: Tensor, strength: Tensor) -> Tensor:
    """Each channel's 256 levels spread by their ranks; a channel of one level stays as it is (PIL)."""
    levels = (x * 255).round_().long().flatten(2)  # (n, 3, S S)
    counts = torch.zeros(*levels.shape[:2], 256, device=x.device)
    counts.scatter_add_(2, levels, torch.ones((), device=x.device).expand_as(levels))
    below = counts.cumsum(-1) - counts
    num_spread = levels.shape[-1] - counts.gather(2, levels.amax(-1, keepdim=True))  # (n, 3, 1), 0 for one level
    spread = (below / num_spread.clamp(min=1)).clamp_(max=1).gather(2, levels).view_as(x).to(x.dtype)
    return torch.where(num_spread[..., None] > 0, spread, x)


def posterise(x: Tensor, strength: Tensor) -> Tensor:
    """Keep 4 bits at no strength, 0 at full strength."""
    levels = 2 ** (4 - (strength.abs() * 4).floor())
    return ((x * 255).floor_() / (256 / levels)).floor_() * (256 / levels) / 255


def solarise(x: Tensor, strength: Tensor) -> Tensor:
    return torch.where(x * 256 >= 256 - (strength.abs() * 256).floor(), 1 - x, x)


def solarise_add(x: Tensor, strength: Tensor) -> Tensor:
    return torch.where(x < 128 / 255, (x + strength.abs() * 110 / 255).clamp_(max=1), x)


def sharpen(x: Tensor, strength: Tensor) -> Tensor:
    """Away from, or towards, a 3 x 3 smoothing that leaves the border alone, as PIL's."""
    kernel = torch.tensor([[1.0, 1, 1], [1, 5, 1], [1, 1, 1]], device=x.device, dtype=x.dtype) / 13
    inner = F.conv2d(x.flatten(0, 1)[:, None], kernel[None, None]).unflatten(0, x.shape[:2])[:, :, 0]
    smooth = x.clone()
    smooth[:, :, 1:-1, 1:-1] = inner
    return (smooth + (x - smooth) * (1 + 0.9 * strength)).clamp_(0, 1)


def _around_one(change: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """A change in place by a factor, as one by a strength: factors from 0.1 to 1.9."""
    return lambda x, strength: change(x.clone(), 1 + 0.9 * strength)


# Each takes images (n, 3, S, S) and strengths in [-1, 1], (n, 1, 1, 1).
COLOURS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "auto_contrast": auto_contrast,
    "equalise": equalise,
    "invert": lambda x, strength: 1 - x,
    "posterise": posterise,
    "solarise": solarise,
    "solarise_add": solarise_add,
    "saturation": _around_one(change_saturation),
    "contrast": _around_one(change_contrast),
    "brightness": _around_one(change_brightness),
    "sharpness": sharpen,
}
CHANGES = (*COLOURS, *MOVES)


def draw_changes(
    num_images: int, generator: torch.Generator, *, magnitude: float, deviation: float
) -> tuple[Tensor, Tensor]:
    """Which change (-1: none) and how strong in [-1, 1], both (2, n)."""
    shape = (NUM_CHANGES, num_images)
    chosen = torch.randint(len(CHANGES), shape, generator=generator)
    made = torch.rand(shape, generator=generator) < PROBABILITY
    strength = (magnitude + deviation * torch.randn(shape, generator=generator)).clamp_(0, LARGEST) / LARGEST
    sign = torch.randint(2, shape, generator=generator) * 2 - 1
    return torch.where(made, chosen, -1), strength * sign


def draw_cubic(num_images: int, generator: torch.Generator) -> Tensor:
    """Which moves are bicubic and which bilinear, bool (2, n)."""
    return torch.rand(NUM_CHANGES, num_images, generator=generator) < 0.5


@torch.no_grad()
def rand_augment(images: Tensor, chosen: Tensor, strengths: Tensor, cubic: Tensor | None) -> Tensor:
    """Change float images (n, 3, S, S) in [0, 1]; `chosen`, `strengths` and `cubic`, all (2, n), are on the host.

    None for `cubic`: moves as mixlab first made them (`move_centred`), for runs that began so.
    """
    cubics = [None] * NUM_CHANGES if cubic is None else list(cubic)
    for numbers, strength, is_cubic in zip(chosen, strengths, cubics, strict=True):
        images = images.clone()
        for number in numbers.unique().tolist():
            if number < 0:
                continue
            rows = (numbers == number).nonzero()[:, 0]
            there = rows.to(images.device, non_blocking=True)
            some = None if is_cubic is None else is_cubic[rows]
            changed = change_by_name(CHANGES[number], images.index_select(0, there), strength[rows], some)
            images.index_copy_(0, there, changed)
    return images


def change_by_name(name: str, images: Tensor, strength: Tensor, cubic: Tensor | None) -> Tensor:
    if name in COLOURS:
        return COLOURS[name](images, strength.to(images, non_blocking=True)[:, None, None, None])
    return move_centred(name, images, strength) if cubic is None else move(name, images, strength, cubic)


def move_centred(name: str, images: Tensor, strength: Tensor) -> Tensor:
    """Bilinear, shears about the centre, grey outside."""
    matrix = MOVES[name](strength).to(images, non_blocking=True)
    places = F.affine_grid(matrix, list(images.shape), align_corners=False)
    moved = F.grid_sample(images - GREY, places, mode="bilinear", align_corners=False)  # outside becomes grey
    return moved + GREY


def move(name: str, images: Tensor, strength: Tensor, cubic: Tensor) -> Tensor:
    """As timm by PIL: shears about the upper left corner, ImageNet's mean outside, the border repeated inside."""
    matrix = MOVES[name](strength)
    if name.startswith("shear"):
        matrix[:, :, 2] += matrix[:, :, :2].sum(2) - 1
    side = images.shape[-1]
    line = (torch.arange(side) + 0.5) * (2 / side) - 1
    places = torch.stack([*torch.meshgrid(line, line, indexing="xy"), torch.ones(side, side)])  # (3, S, S)
    matrix, places, cubic = (part.to(images.device, non_blocking=True) for part in (matrix, places, cubic))
    place = (torch.einsum("nij,jyx->niyx", matrix, places) + 1) * (side / 2)  # (n, 2, S, S), in pixels
    inside = ((place >= 0) & (place < side)).all(1, keepdim=True)
    first = (place - 0.5).floor()
    by_column, by_row = pil_weights(place - 0.5 - first, cubic[:, None, None, None]).unbind(2)  # (4, n, S, S) each
    columns, rows = first.long().unbind(1)
    total, flat = torch.zeros_like(images), images.flatten(2)
    for down in range(4):
        for along in range(4):
            row, column = (rows + down - 1).clamp(0, side - 1), (columns + along - 1).clamp(0, side - 1)
            index = (row * side + column).flatten(1)[:, None].expand(-1, 3, -1)
            total += flat.gather(2, index).view_as(images) * (by_row[down] * by_column[along])[:, None]
    mean = torch.tensor(IMAGENET_MEAN).to(images, non_blocking=True)[:, None, None]
    return torch.where(inside, total.clamp_(0, 1), mean)


def pil_weights(x: Tensor, cubic: Tensor) -> Tensor:
    """Weights (4, ...) of the pixels from one before to two after, for places `x` in [0, 1) behind the second: PIL's
    bilinear, or its bicubic, which for transforms has a = -1.
    """
    sharp = torch.stack([x * (x * (2 - x) - 1), 1 + x * x * (x - 2), x * (1 + x * (1 - x)), x * x * (x - 1)])
    smooth = torch.stack([torch.zeros_like(x), 1 - x, x, torch.zeros_like(x)])
    return torch.where(cubic, sharp, smooth)


@dataclass(frozen=True)
class Blend:
    """Each image with the one at the mirrored place in the batch: `keep` of the first; in a box, or everywhere."""

    keep: float
    box: Box | None = None

    def images(self, images: Tensor) -> Tensor:
        others = images.flip(0)
        if self.box is None:
            return torch.lerp(others, images, self.keep)
        top, left, height, width = self.box
        mixed = images.clone()
        mixed[:, :, top : top + height, left : left + width] = others[:, :, top : top + height, left : left + width]
        return mixed

    def targets(self, targets: Tensor) -> Tensor:
        return torch.lerp(targets.flip(0), targets, self.keep)


def draw_blend(generator: torch.Generator, *, side: int, mixup: float, cutmix: float, switch: float) -> Blend:
    """Mixup (Zhang et al. 2018) or, with probability `switch`, cutmix (Yun et al. 2019); 0 turns one off."""
    u = torch.rand(3, generator=generator, dtype=torch.float64)
    use_cut = cutmix > 0 and (mixup <= 0 or float(u[0]) < switch)
    alpha = cutmix if use_cut else mixup
    if alpha <= 0:
        return Blend(1.0)
    keep = draw_beta(alpha, generator)
    if not use_cut:
        return Blend(keep)
    half = int(side * math.sqrt(1 - keep)) // 2  # whole pixels, as in timm and in the code of Yun et al.
    top, bottom = _span(int(float(u[1]) * side), half, side)
    left, right = _span(int(float(u[2]) * side), half, side)
    share = (bottom - top) * (right - left) / side**2  # after the border cut some of it off
    return Blend(1 - share, (top, left, bottom - top, right - left))


def draw_blends(
    num_images: int,
    generator: torch.Generator,
    *,
    every: int,
    part: int,
    num_parts: int,
    side: int,
    mixup: float,
    cutmix: float,
    switch: float,
) -> list[tuple[slice, Blend]]:
    """A draw of `draw_blend` for every `every` images of this part of the global batch; 0: one for all of a step."""
    draw = partial(draw_blend, generator, side=side, mixup=mixup, cutmix=cutmix, switch=switch)
    if every == 0:
        return [(slice(None), draw())]
    starts = range(0, num_images, every)
    drawn = [draw() for _ in range(num_parts * len(starts))]
    own = drawn[part * len(starts) : (part + 1) * len(starts)]
    return [(slice(start, start + every), blend) for start, blend in zip(starts, own, strict=True)]


def draw_beta(alpha: float, generator: torch.Generator) -> float:
    """Beta(alpha, alpha) from two gamma variates."""
    first, second = torch._standard_gamma(torch.full((2,), alpha, dtype=torch.float64), generator=generator).tolist()
    return float(first / (first + second)) if first + second else 0.5


def soft_targets(labels: Tensor, *, num_classes: int, smoothing: float) -> Tensor:
    """Labels (B,) as distributions (B, K): `smoothing` is spread evenly over all classes."""
    return F.one_hot(labels, num_classes).float() * (1 - smoothing) + smoothing / num_classes


def draw_erasures(num_images: int, generator: torch.Generator, *, side: int, probability: float) -> list[Box | None]:
    """A box to erase for each image, or none. One box in 200 does not fit and is left out; timm draws it again."""
    u = torch.rand(num_images, 5, generator=generator, dtype=torch.float64).tolist()
    low, high = (math.log(aspect) for aspect in ERASED_ASPECT)
    boxes: list[Box | None] = []
    for chance, area, aspect, top, left in u:
        pixels = (ERASED_AREA[0] + (ERASED_AREA[1] - ERASED_AREA[0]) * area) * side * side
        shape = math.exp(low + (high - low) * aspect)
        height, width = round(math.sqrt(pixels * shape)), round(math.sqrt(pixels / shape))
        fits = 0 < height < side and 0 < width < side
        place = (int(top * (side - height + 1)), int(left * (side - width + 1)), height, width)
        boxes.append(place if chance < probability and fits else None)
    return boxes


def erase(images: Tensor, boxes: list[Box | None]) -> Tensor:
    """Normal noise in the boxes of normalised images (B, 3, S, S)."""
    rows = [row for row, box in enumerate(boxes) if box is not None]
    if not rows:
        return images
    edges = torch.tensor([box for box in boxes if box is not None]).to(images.device, non_blocking=True)
    top, left, height, width = edges.T[:, :, None]  # (n, 1) each
    line = torch.arange(images.shape[-1], device=images.device)
    inside = ((line >= top) & (line < top + height))[:, :, None] & ((line >= left) & (line < left + width))[:, None]
    there = torch.tensor(rows).to(images.device, non_blocking=True)
    chosen = images.index_select(0, there)
    return images.index_copy(0, there, torch.where(inside[:, None], torch.randn_like(chosen), chosen))


def _span(middle: int, half: int, side: int) -> tuple[int, int]:
    return max(0, middle - half), min(side, middle + half)
