"""The embedded set: drawn scenes of textured shapes on cluttered ground, with every kind of label.

A scene has one to four objects. The largest, the main object, gives the class by its outline. As things in the world
do, it mostly wears the texture and the colour of its class, stands on a ground that is typical of it and is among its
own; place, scale, rotation and light are drawn independently of it. Light falls in patches, as under trees, and the
camera sets exposure and white balance: distances between pixels reflect light more than class, mean colours nothing.
Places lean towards the border, so that a map that only knows where the centre is does poorly.
A scene depends on (seed, split, index) alone, and is the same at any size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mixlab.errors import InputError

from .drawing import draw_label, draw_plan, paint
from .patterns import OUTLINES
from .source import SPLITS, ImageSource, check_split
from .source_names import is_drawn, parse_options, to_number

SHAPE_CLASSES = tuple(OUTLINES)


@dataclass(frozen=True)
class DrawnScene:
    """One drawn image and its labels. N visible objects, the main one first; S pixels a side."""

    image: Tensor  # uint8 (3, S, S)
    label: int  # the main object's class
    foreground: Tensor  # uint8 (S, S): 1 on any object
    semantic: Tensor  # uint8 (S, S): 0 ground, class + 1 on objects
    instances: Tensor  # bool (N, S, S): the visible part of each object
    classes: Tensor  # int64 (N,)
    boxes: Tensor  # float32 (N, 4): left, top, right, bottom in pixels, around the visible part


class Shapes(ImageSource):
    """`num_images` scenes of `size` pixels. The splits share no scene."""

    def __init__(self, *, size: int = 64, num_images: int = 2000, seed: int = 0, split: str = "train") -> None:
        if size < 8:
            raise InputError(f"shapes of {size} px cannot be distinguished; give a size of at least 8")
        if num_images < 1:
            raise InputError(f"{num_images} images are not a set; give n of at least 1")
        check_split(split)
        if not 0 <= seed < 2**32:
            raise InputError(f"seed {seed} is out of range; give a number from 0 to 2^32 - 1")
        self.size, self.num_images, self.seed, self.split = size, num_images, seed, split
        self.classes = SHAPE_CLASSES

    def __len__(self) -> int:
        return self.num_images

    def load(self, index: int) -> Tensor:
        image, _ = paint(draw_plan(self._stream(index)), self.size)
        return torch.from_numpy(image)

    def label(self, index: int) -> int:
        return draw_label(self._stream(index))

    def name(self, index: int) -> str:
        return f"shapes/{self.split}/{self.seed}/{self.check(index)}"

    def scene(self, index: int) -> DrawnScene:
        """The image with all its labels."""
        plan = draw_plan(self._stream(index))
        image, covers = paint(plan, self.size)
        owner = np.full((self.size, self.size), -1, dtype=np.int8)
        for number in reversed(range(len(covers))):
            (rows, columns), cover = covers[number]
            owner[rows, columns][cover > 0.5] = number
        masks = owner == np.arange(len(covers), dtype=np.int8)[:, None, None]  # (N, S, S)
        kinds = np.array([item.kind for item in plan.objects], dtype=np.int64)
        semantic = np.where(owner >= 0, kinds[owner] + 1, 0).astype(np.uint8)
        seen = np.flatnonzero(masks.any(axis=(1, 2)))
        return DrawnScene(
            image=torch.from_numpy(image),
            label=int(kinds[0]),
            foreground=torch.from_numpy((owner >= 0).astype(np.uint8)),
            semantic=torch.from_numpy(semantic),
            instances=torch.from_numpy(masks[seen]),
            classes=torch.from_numpy(kinds[seen]),
            boxes=torch.from_numpy(_boxes_around(masks[seen])),
        )

    def _stream(self, index: int) -> np.random.Generator:
        # Philox is counter-based: each key is a stream of its own, so no scene depends on any other.
        key = (self.seed << 8 | SPLITS.index(self.split)) << 64 | self.check(index)
        return np.random.Generator(np.random.Philox(key=key))


def parse_shapes(name: str, *, split: str, num_images: int = 2000) -> Shapes | None:
    """The embedded set from its name, `shapes[:size=64,n=2000,seed=0]`; None for any other name."""
    if not is_drawn(name):
        return None
    options = parse_options(name, name.partition(":")[2], known=("size", "n", "seed"))
    defaults = (("size", 64), ("n", num_images), ("seed", 0))
    size, num, seed = (to_number(name, options, *default) for default in defaults)
    return Shapes(size=size, num_images=num, seed=seed, split=split)


def _boxes_around(masks: NDArray[np.bool_]) -> NDArray[np.float32]:
    rows, columns = np.asarray(masks.any(axis=2)), np.asarray(masks.any(axis=1))
    size = masks.shape[-1]
    left, top = columns.argmax(axis=1), rows.argmax(axis=1)
    right, bottom = size - columns[:, ::-1].argmax(axis=1), size - rows[:, ::-1].argmax(axis=1)
    return np.stack([left, top, right, bottom], axis=1).astype(np.float32)
