"""The first images of whatever a command was given, with their masks where there are masks."""

import warnings
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from mixlab.data.images import parse_source
from mixlab.data.mask_formats import mask_format, parse_masks
from mixlab.data.masks import unpaired_note
from mixlab.data.unreadable import SkippedImages, UnreadableImage
from mixlab.errors import InputError

T = TypeVar("T")


def read_images(
    data: str, *, size: int, num_images: int, fit: str = "squash"
) -> tuple[Tensor, Tensor | None, list[str]]:
    """The first images uint8 (n, 3, S, S) of a source, their masks (n, S, S) where it has masks, and their names."""
    if mask_format(data) is None:
        return _plain_images(data, size, num_images, fit)
    source = parse_masks(data)
    if note := unpaired_note(source):
        warnings.warn(note, stacklevel=2)
    items = read_first(data, lambda index: source.load(index).fitted(size, fit), total=len(source), most=num_images)
    images, masks = (torch.stack([getattr(item, part) for item in items]) for part in ("image", "mask"))
    return images, masks, [item.name for item in items]


def read_first(data: str, load: Callable[[int], T], *, total: int, most: int) -> list[T]:
    """What the first numbers of a source give; those that cannot be read are skipped, and named."""
    found: list[T] = []
    skipped = SkippedImages(total=total, limit=1.0)
    for index in range(total):
        if len(found) >= most:
            break
        try:
            found.append(load(index))
        except UnreadableImage as error:
            skipped.add(error)
    if not found:
        raise InputError(f"{data!r} holds no image that can be read. {skipped.summary()}")
    if len(skipped):
        warnings.warn(skipped.summary(), stacklevel=2)
    return found


def _plain_images(data: str, size: int, num_images: int, fit: str) -> tuple[Tensor, None, list[str]]:
    source = parse_source(data, split="val")

    def load(index: int) -> tuple[Tensor, str]:
        return source.load_fitted(index, size, fit)[0], source.name(index)

    images, names = zip(*read_first(data, load, total=len(source), most=num_images), strict=True)
    return torch.stack(images), None, list(names)
