"""Surface patterns of the embedded set: fields in [0, 1] that mix two colours, about one period per unit of (u, v)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Field = NDArray[Any]  # float32 (h, w)
TURN = np.float32(2 * np.pi)


def stripes(u: Field, v: Field) -> Field:
    return _soft_step(np.sin(TURN * u))


def checks(u: Field, v: Field) -> Field:
    return _soft_step(np.sin(TURN * u) * np.sin(TURN * v))


def dots(u: Field, v: Field) -> Field:
    return _soft_step(np.cos(TURN * u) + np.cos(TURN * v) - 0.7)


def speckle(u: Field, v: Field) -> Field:
    return noise_table(64)[(v * 4).astype(np.int32) & 63, (u * 4).astype(np.int32) & 63]


def gradient(u: Field, v: Field) -> Field:
    return clip_unit(u * 0.35 + 0.5)


def plain(u: Field, v: Field) -> Field:
    return np.full(np.broadcast_shapes(u.shape, v.shape), 0.1, dtype=np.float32)


def rings(u: Field, v: Field) -> Field:
    return _soft_step(np.sin((1.5 * TURN) * np.sqrt(u * u + v * v)))


def zigzag(u: Field, v: Field) -> Field:
    return _soft_step(np.sin(TURN * (u + np.abs(v - np.floor(v) - 0.5))))


def waves(u: Field, v: Field) -> Field:
    return _soft_step(np.sin(TURN * u + 2.0 * np.sin(TURN * v)))


def bricks(u: Field, v: Field) -> Field:
    row = np.floor(2 * v)
    across = u + 0.5 * row
    joint = np.minimum(across - np.floor(across), 2 * (2 * v - row))
    return clip_unit(6 * joint - 0.5)


TEXTURES: tuple[Callable[[Field, Field], Field], ...] = (
    stripes,
    checks,
    dots,
    speckle,
    gradient,
    plain,
    rings,
    zigzag,
    waves,
    bricks,
)


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
