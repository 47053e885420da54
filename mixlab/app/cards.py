"""What the page knows of its models, maps and pictures."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]  # (H, W, 3), RGB
MaskValues = NDArray[np.uint8]  # (H, W): 0 background, 1 foreground, 255 ignored


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """A model that visitors may choose, by its id and by nothing else."""

    id: str
    architecture: str
    family: str
    training: str
    num_layers: int
    num_registers: int
    num_heads: int  # of the first layer; 0 without a matrix
    num_parameters: int
    image: int  # pixels a side, as the model takes it
    has_matrix: bool
    default_map: str
    maps: tuple[str, ...]  # those that this model has
    facts: tuple[str, ...] = ()  # what its run directory says of it


@dataclass(frozen=True)
class MapCard:
    """A kind of map: what it has several of, and what a model needs to have it."""

    id: str
    about: str
    parts: Literal["", "head", "register", "direction"]
    needs: str


@dataclass(frozen=True, eq=False)
class Picture:
    """An image to look at: a sample, perhaps with its mask, or an upload."""

    id: str
    label: str
    pixels: Pixels
    mask: MaskValues | None = None
