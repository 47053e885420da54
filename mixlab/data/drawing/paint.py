"""From the plan of a scene to its pixels, at any size."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .outlines import OUTLINES
from .plan import GRAIN_OFFSETS, PlannedObject, ScenePlan
from .textures import TEXTURES, clip_unit, noise_table

Field = NDArray[Any]  # float32 (h, w)
Window = tuple[slice, slice]  # rows, columns
_OUTLINES = tuple(OUTLINES.values())
_REACH = 1.25  # no outline goes further than this many radii from its middle


def paint(plan: ScenePlan, size: int) -> tuple[NDArray[np.uint8], list[tuple[Window, Field]]]:
    """The image (3, size, size), and for each object its window and its cover (0 to 1) there."""
    at = (np.arange(size, dtype=np.float32) + np.float32(0.5)) / np.float32(size)  # pixel centres in [0, 1]
    canvas = _paint_ground(plan, at)
    for stroke, colour in zip(plan.strokes, plan.stroke_colours, strict=True):
        _paint_stroke(canvas, at, stroke, colour)
    covers = [_paint_object(canvas, at, item) for item in reversed(plan.objects)]  # the main object comes last: on top
    canvas *= _spread(plan.light, at)
    canvas *= (plan.metered / canvas.mean(axis=(1, 2)))[:, None, None]
    row, column, strength = plan.grain
    grain = noise_table(size + GRAIN_OFFSETS)[row : row + size, column : column + size]
    canvas += strength * (grain - 0.5)
    clip_unit(canvas)
    canvas *= 255.0
    canvas += 0.5
    return canvas.astype(np.uint8), covers[::-1]


def _paint_ground(plan: ScenePlan, at: Field) -> Field:
    """Soft clouds under a texture, (3, S, S)."""
    canvas = _spread(plan.ground, at)
    (u0, ux, uy), (v0, vx, vy) = plan.ground_frame
    pattern = TEXTURES[plan.ground_texture](u0 + ux * at + (uy * at)[:, None], v0 + vx * at + (vy * at)[:, None])
    first, second = plan.ground_colours[:, :, None, None]
    canvas *= 0.45
    canvas += 0.65 * first - 0.1
    canvas += (0.45 * (second - first)) * pattern
    return canvas


def _paint_stroke(canvas: Field, at: Field, stroke: list[float], colour: Field) -> None:
    x0, y0, x1, y1, half_width = stroke
    rows, columns = _window(y0, y1, half_width, len(at)), _window(x0, x1, half_width, len(at))
    x, y = at[columns] - x0, (at[rows] - y0)[:, None]
    dx, dy = x1 - x0, y1 - y0
    length = max(dx * dx + dy * dy, 1e-6)
    share = clip_unit(x * (dx / length) + y * (dy / length))  # how far along the stroke its nearest point is
    away_x, away_y = x - share * dx, y - share * dy
    away = np.sqrt(away_x * away_x + away_y * away_y)
    part = canvas[:, rows, columns]
    part += clip_unit((half_width - away) * len(at) + 0.5) * (colour[:, None, None] - part)


def _paint_object(canvas: Field, at: Field, item: PlannedObject) -> tuple[Window, Field]:
    rows = _window(item.y, item.y, _REACH * item.radius, len(at))
    columns = _window(item.x, item.x, _REACH * item.radius, len(at))
    dx, dy = at[columns] - item.x, (at[rows] - item.y)[:, None]
    c, s = math.cos(item.angle) / item.radius, math.sin(item.angle) / item.radius
    x = (c * item.aspect) * dx + (s * item.aspect) * dy  # the object's own frame: radius one, upright
    y = (c / item.aspect) * dy - (s / item.aspect) * dx
    cover = clip_unit(0.5 - _OUTLINES[item.kind](x, y) * (item.radius * len(at)))
    pattern = TEXTURES[item.texture](x * item.frequency, y * item.frequency)
    first, second = item.colours[:, :, None, None]
    surface = first + (second - first) * pattern
    surface *= 1 + item.shade[0] * x + item.shade[1] * y
    part = canvas[:, rows, columns]
    surface -= part
    surface *= cover
    part += surface
    return (rows, columns), cover


def _spread(cells: Field, at: Field) -> Field:
    """Cells (3, n, n) over the whole image, (3, S, S): linear interpolation as a matrix."""
    num_cells = cells.shape[-1]
    weights = np.abs(at[:, None] * (num_cells - 1) - np.arange(num_cells, dtype=np.float32))
    weights = np.maximum(1 - weights, 0)  # (S, n)
    return weights @ cells @ weights.T


def _window(first: float, last: float, margin: float, size: int) -> slice:
    """The pixels between two places in [0, 1], in either order, and a margin around them."""
    low = math.floor((min(first, last) - margin) * size)
    high = math.ceil((max(first, last) + margin) * size) + 1
    return slice(min(max(low, 0), size), min(max(high, 0), size))
