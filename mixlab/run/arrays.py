"""Arrays of several images in one .npz file, which needs no pickle: stacked where all have one shape, else apart."""

from collections.abc import Mapping, Sequence
from itertools import count, takewhile
from typing import Any

from numpy import stack
from numpy.typing import NDArray


def to_arrays(name: str, parts: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """`name` with all of them, or `name[0]`, `name[1]`, ..., which no label of a network becomes (`file_name`)."""
    if len({part.shape for part in parts}) == 1:
        return {name: stack(parts)}
    return {f"{name}[{place}]": part for place, part in enumerate(parts)}


def from_arrays(arrays: Mapping[str, NDArray[Any]], name: str) -> list[NDArray[Any]]:
    """What `to_arrays` made of them; none where there is nothing of that name."""
    if name in arrays:
        return [*arrays[name]]
    return [arrays[key] for key in takewhile(arrays.__contains__, (f"{name}[{place}]" for place in count()))]
