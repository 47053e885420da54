"""The ten outlines and the ten textures of the drawn scenes.

Outlines are signed distances: negative inside, one unit is about the object's radius. Textures are fields in [0, 1]
that mix two colours, about one period per unit of (u, v).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Field = NDArray[Any]  # float32 (h, w)
Pattern = Callable[[Field, Field], Field]
TURN = np.float32(2 * np.pi)


def _radius(x: Field, y: Field) -> Field:
    return np.sqrt(x * x + y * y)


def _square(x: Field, y: Field) -> Field:
    return np.maximum(np.abs(x), np.abs(y)) - 0.8


def _cross(x: Field, y: Field) -> Field:
    along, across = np.abs(x), np.abs(y)
    return np.minimum(np.maximum(along - 1.0, across - 0.32), np.maximum(along - 0.32, across - 1.0))


def _heart(x: Field, y: Field) -> Field:
    # A square on its corner, and a disc on each of its two upper edges.
    side, y = np.abs(x), y + 0.1
    return np.minimum((side + np.abs(y) - 0.85) * 0.7071, _radius(side - 0.425, y - 0.425) - 0.601)


def _normals(num_sides: int, num_kept: int) -> Field:
    """Outward normals of a regular polygon, (2, num_kept, 1, 1)."""
    angles = 2 * np.pi * np.arange(num_kept) / num_sides + np.pi / 2
    return np.stack([np.cos(angles), np.sin(angles)]).astype(np.float32)[:, :, None, None]


def _edge_heights(x: Field, y: Field, normals: Field) -> Field:
    return normals[0] * x + normals[1] * y


_NORMALS_OF_3, _NORMALS_OF_5 = _normals(3, 3), _normals(5, 5)
_NORMALS_OF_6 = _normals(6, 3)  # opposite sides share an axis

OUTLINES: dict[str, Pattern] = {
    "disc": lambda x, y: _radius(x, y) - 0.9,
    "ring": lambda x, y: np.abs(_radius(x, y) - 0.72) - 0.26,
    "square": _square,
    "triangle": lambda x, y: _edge_heights(x, y, _NORMALS_OF_3).max(axis=0) - 0.55,
    # Inside a pentagram at least four of its five edge lines agree: the second largest height decides.
    "star": lambda x, y: np.partition(_edge_heights(x, y, _NORMALS_OF_5), 3, axis=0)[3] - 0.36,
    "cross": _cross,
    "crescent": lambda x, y: np.maximum(_radius(x, y) - 1.0, 0.78 - _radius(x - 0.5, y)),
    "hexagon": lambda x, y: np.abs(_edge_heights(x, y, _NORMALS_OF_6)).max(axis=0) - 0.82,
    "heart": _heart,
    "corner": lambda x, y: np.maximum(_square(x, y) - 0.08, np.minimum(x, y) + 0.2),
}


def clip_unit(values: Field) -> Field:
    """Clip to [0, 1] in place; np.clip costs several times as much on small arrays."""
    np.maximum(values, 0.0, out=values)
    return np.minimum(values, 1.0, out=values)


@cache
def noise_table(side: int) -> Field:
    """A fixed square of uniform noise. Scenes read it at random places: cheaper than drawing new noise."""
    return np.random.Generator(np.random.Philox(key=7)).random((side, side), dtype=np.float32)


def _soft_step(wave: Field) -> Field:
    """A wave in about [-1, 1] to [0, 1]: steep at zero so that edges show, soft so that they do not alias."""
    wave *= 1.5
    wave += 0.5
    return clip_unit(wave)


def _bricks(u: Field, v: Field) -> Field:
    row = np.floor(2 * v)
    across = u + 0.5 * row
    joint = np.minimum(across - np.floor(across), 2 * (2 * v - row))
    return clip_unit(6 * joint - 0.5)


TEXTURES: dict[str, Pattern] = {
    "stripes": lambda u, v: _soft_step(np.sin(TURN * u)),
    "checks": lambda u, v: _soft_step(np.sin(TURN * u) * np.sin(TURN * v)),
    "dots": lambda u, v: _soft_step(np.cos(TURN * u) + np.cos(TURN * v) - 0.7),
    "speckle": lambda u, v: noise_table(64)[(v * 4).astype(np.int32) & 63, (u * 4).astype(np.int32) & 63],
    "gradient": lambda u, v: clip_unit(u * 0.35 + 0.5),
    "plain": lambda u, v: np.full(np.broadcast_shapes(u.shape, v.shape), 0.1, dtype=np.float32),
    "rings": lambda u, v: _soft_step(np.sin((1.5 * TURN) * _radius(u, v))),
    "zigzag": lambda u, v: _soft_step(np.sin(TURN * (u + np.abs(v - np.floor(v) - 0.5)))),
    "waves": lambda u, v: _soft_step(np.sin(TURN * u + 2.0 * np.sin(TURN * v))),
    "bricks": _bricks,
}
