"""How a scene is drawn: first a plan, which holds everything random and has no size, then its pixels at any size."""

from __future__ import annotations

import math
from colorsys import hsv_to_rgb
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .patterns import OUTLINES, TEXTURES, Field, clip_unit, noise_table

MAX_OBJECTS = 4
MAIN_RADIUS = (0.24, 0.34)  # in units of the image's side
OTHER_RADIUS = (0.4, 0.7)  # in units of the main object's
PERIODS = (2.4, 3.2)  # of an object's texture, per radius
GROUND_VIVIDNESS = 0.15  # 0 would be a grey ground
GROUND_STEP = 0.5  # by how much the second colour of the ground is lighter or darker than the first
COMPANY_LOYALTY = 0.8  # how often another object is of the main object's class
TEXTURE_LOYALTY = 0.95  # how often an object wears the texture of its class, as things in the world tend to
COLOUR_LOYALTY = 0.8  # how often an object has about the colour of its class
HABITAT_LOYALTY = 0.9  # how often the main object stands on the ground that is typical of its class
HABITAT_SHIFT = 3  # the ground of class c has the texture of class c + HABITAT_SHIFT: never its own
CLASS_COLOURS = tuple(hsv_to_rgb(number / len(OUTLINES), 0.75, 0.85) for number in range(len(OUTLINES)))
MAX_STROKES = 5
GROUND_CELLS = 6  # the ground's clouds have this many cells a side
GRAIN_OFFSETS = 32  # the film grain is one noise table read at one of this many rows and columns
LIGHT_CELLS = 4  # light comes in patches, as under trees: so many a side
LIGHT_POWER = (-2.5, 0.8)  # of each patch, in stops
LIGHT_CAST = 0.4  # how far the colour of each patch may stray from white
METERED = (0.33, 0.43)  # the camera sets exposure and white balance so that each channel's mean is about this
_NUM_TRIES = 10  # places tried for each object


@dataclass(frozen=True)
class PlannedObject:
    """One object; lengths in units of the image's side."""

    kind: int
    x: float
    y: float
    radius: float
    angle: float
    aspect: float
    texture: int
    frequency: float
    colours: Field  # (2, 3)
    shade: tuple[float, float]  # how the light falls off along the object's own axes


@dataclass(frozen=True)
class ScenePlan:
    objects: list[PlannedObject]  # the main one first
    ground: Field  # (3, cells, cells)
    ground_colours: Field  # (2, 3)
    ground_texture: int
    ground_frame: Field  # (2, 3): (u, v) = offset + x + y
    strokes: list[list[float]]  # x0, y0, x1, y1, half the width
    stroke_colours: Field  # (K, 3)
    light: Field  # (3, cells, cells)
    metered: Field  # (3,): the mean of each channel
    grain: tuple[int, int, float]  # row, column, strength


def draw_label(random: np.random.Generator) -> int:
    """The class of the main object: the first thing that a scene's stream holds."""
    return int(random.integers(len(OUTLINES)))


def draw_plan(random: np.random.Generator) -> ScenePlan:
    """Draw a scene. The outline is the class; textures, colours and ground depend on it as far as they are loyal."""
    label = draw_label(random)
    num_objects = 1 + int(MAX_OBJECTS * random.random() ** 2)  # half of the scenes have one
    num_strokes = int(random.integers(2, MAX_STROKES + 1))
    first, second = _toned_down(random.random((2, 3), dtype=np.float32)).tolist()
    step = GROUND_STEP if sum(first) < 1.5 else -GROUND_STEP
    second = [part + step for part in second]
    tone = [(a + b) / 2 for a, b in zip(first, second, strict=True)]
    main_radius = _between(MAIN_RADIUS, random.random())
    objects: list[PlannedObject] = []
    for number, draws in enumerate(random.random((num_objects, 17 + 2 * _NUM_TRIES)).tolist()):
        kind, scale, angle, aspect, texture, frequency, shade_x, shade_y, *colours = draws[:17]
        outline = label if number == 0 else _loyal(label, COMPANY_LOYALTY, kind)
        radius = main_radius if number == 0 else main_radius * _between(OTHER_RADIUS, scale)
        x, y = _place(draws[17:], radius, objects)
        objects.append(
            PlannedObject(
                kind=outline,
                x=x,
                y=y,
                radius=radius,
                angle=angle * 2 * math.pi,
                aspect=0.85 + 0.3 * aspect,
                texture=_loyal(outline, TEXTURE_LOYALTY, texture),
                frequency=_between(PERIODS, frequency),
                colours=_object_colours(outline, colours, tone),
                shade=(0.5 * shade_x - 0.25, 0.5 * shade_y - 0.25),
            )
        )
    strokes = random.random((num_strokes, 5)).tolist()
    turn, pace, shift_u, shift_v, row, column, strength = random.random(7).tolist()
    c, s = ((5 + 5 * pace) * part(2 * math.pi * turn) for part in (math.cos, math.sin))
    return ScenePlan(
        objects=objects,
        ground=_toned_down(random.random((3, GROUND_CELLS, GROUND_CELLS), dtype=np.float32)),
        ground_colours=np.array([first, second], dtype=np.float32),
        ground_texture=_loyal((label + HABITAT_SHIFT) % len(OUTLINES), HABITAT_LOYALTY, random.random()),
        ground_frame=np.array([[shift_u, c, s], [shift_v, -s, c]], dtype=np.float32),
        strokes=[[x, y, x + 0.7 * dx - 0.35, y + 0.7 * dy - 0.35, 0.006 + 0.02 * w] for x, y, dx, dy, w in strokes],
        stroke_colours=random.random((num_strokes, 3), dtype=np.float32),
        metered=METERED[0] + (METERED[1] - METERED[0]) * random.random(3, dtype=np.float32),
        light=_light(random.random((4, LIGHT_CELLS, LIGHT_CELLS), dtype=np.float32)),
        grain=(int(row * GRAIN_OFFSETS), int(column * GRAIN_OFFSETS), 0.04 + 0.08 * strength),
    )


def _place(draws: list[float], radius: float, others: list[PlannedObject]) -> tuple[float, float]:
    """The first place tried that is off the others, or else the best; the arcsine law leans to the border."""
    best, best_gap = (0.5, 0.5), -math.inf
    low, span = 0.6 * radius, 1 - 1.2 * radius
    for along, down in zip(draws[::2], draws[1::2], strict=True):
        x = low + span * (0.5 - 0.5 * math.cos(math.pi * along))
        y = low + span * (0.5 - 0.5 * math.cos(math.pi * down))
        gap = min((math.hypot(x - other.x, y - other.y) - other.radius - radius for other in others), default=math.inf)
        if gap > 0:
            return x, y
        if gap > best_gap:
            best, best_gap = (x, y), gap
    return best


def _object_colours(outline: int, draws: list[float], tone: list[float]) -> Field:
    """About the class's own colour, or of two random ones the further from the ground; then a lighter or darker one."""
    first, second, (shift, *_) = draws[0:3], draws[3:6], draws[6:9]
    if shift < COLOUR_LOYALTY:
        base = [part + 0.3 * (draw - 0.5) for part, draw in zip(CLASS_COLOURS[outline], first, strict=True)]
    else:
        base = max(first, second, key=lambda rgb: math.dist(rgb, tone))
    step = 0.35 if sum(base) < 1.5 else -0.35
    return np.array([base, [0.75 * part + 0.25 * draws[3] + step for part in base]], dtype=np.float32)


def _light(draws: Field) -> Field:
    """Patches of light (3, cells, cells) from draws (4, cells, cells): of its power and of its colour."""
    low, high = LIGHT_POWER
    return np.exp2(low + (high - low) * draws[0]) * (1 + LIGHT_CAST * (2 * draws[1:] - 1))


def _loyal(own: int, loyalty: float, draw: float) -> int:
    """One of the ten classes, or of the ten textures: `own` as often as `loyalty` says, else any."""
    return own if draw < loyalty else int((draw - loyalty) / (1 - loyalty) * len(OUTLINES))


def _toned_down(colours: Field) -> Field:
    return 0.5 + GROUND_VIVIDNESS * (colours - 0.5)


def _between(limits: tuple[float, float], share: float) -> float:
    return limits[0] + (limits[1] - limits[0]) * share


Window = tuple[slice, slice]  # rows, columns
_OUTLINES, _TEXTURES = tuple(OUTLINES.values()), tuple(TEXTURES.values())
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
    pattern = _TEXTURES[plan.ground_texture](u0 + ux * at + (uy * at)[:, None], v0 + vx * at + (vy * at)[:, None])
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
    pattern = _TEXTURES[item.texture](x * item.frequency, y * item.frequency)
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
