"""What the page needs from whoever has the models: `mixlab app` hands it an object of this kind."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from mixlab.app.jobs import Progress
from mixlab.app.questions import Question

Pixels = NDArray[np.uint8]  # (H, W, 3), RGB
MaskValues = NDArray[np.uint8]  # (H, W): 0 background, 1 foreground, 255 ignored
Fit = Literal["crop", "squash"]


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


class Laboratory(Protocol):
    """Answers questions about models. Called from several threads at once."""

    models: Sequence[ModelCard]
    maps: Sequence[MapCard]
    samples: Sequence[Picture]

    def decode_image(self, data: bytes, *, max_pixels: int) -> Pixels:
        """Bytes of an image file to pixels; ValueError where they are no image or too large."""

    def decode_mask(self, data: bytes, picture: Picture, *, max_pixels: int) -> MaskValues:
        """Bytes of a mask file to a mask of the picture's size; ValueError where they are none or do not match."""

    def square(self, pixels: Pixels, size: int, fit: Fit) -> Pixels:
        """The part of the picture that models see, at size x size."""

    def square_mask(self, mask: MaskValues, size: int, fit: Fit) -> MaskValues:
        """The same part of a mask."""

    def answer(self, question: Question, picture: Picture, progress: Progress) -> dict[str, Any]:
        """The answer, with numpy arrays inside; calls `progress` between steps, which stops it when cancelled."""
