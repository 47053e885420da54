"""The first samples of a source that can be read."""

import warnings
from collections.abc import Callable
from typing import TypeVar

from mixlab.data.unreadable import SkippedImages, UnreadableImage
from mixlab.errors import InputError

T = TypeVar("T")


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
