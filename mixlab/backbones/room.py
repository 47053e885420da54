"""Whether what is asked for fits into memory: a lower bound of what it takes, beside what is free before it begins.

What is refused cannot work; what is begun may still run out of memory.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

import torch

from mixlab.backbones.backbone import Backbone, chosen_layers
from mixlab.data.memory import free_memory
from mixlab.errors import InputError
from mixlab.run.disk import in_units

_ALWAYS_FREE = 2**28  # bytes
_SHAPES = 0.8  # an image in its own shape may have fewer pixels than a square of its size, and fewer patches
_IN_USE = 20  # times the lower bound is what all of a command takes: for the sizes that are proposed
_PAIR = 8  # bytes: what compares all patches with each other does so in float64
_VALUE = 2  # bytes of a feature in the narrowest precision
_SMALLER = "choose smaller images"
_HOST = torch.device("cpu")
Bytes = Callable[[int], tuple[int, int]]  # of images of a size: on the host and on a device


def check_room(backbone: Backbone, size: int, *, images: int = 1, pairs: Sequence[int] = ()) -> None:
    """Refuse images of `size` pixels a side, so many at once, if memory cannot hold their pixels and features, or a
    matrix of all patches by all patches of each of the layers `pairs`.
    """
    parameter, shapes = next(backbone.parameters()), backbone.layer_shapes()
    paired = [shapes[layer].stride for layer in chosen_layers(list(pairs), backbone.num_layers)]

    def needs(side: int) -> tuple[int, int]:
        pixels = images * backbone.channels * side**2
        features = images * max((side // shape.stride) ** 2 * shape.width for shape in shapes)
        matrix = max(((side // stride) ** 4 for stride in paired), default=0)
        return pixels, parameter.element_size() * pixels + _VALUE * features + _PAIR * matrix

    number = (size // min(paired or [shape.stride for shape in shapes])) ** 2
    what = f"{number:,} tokens of {backbone.name}"
    if paired:
        what += f", and a matrix of {number:,} x {number:,} of them"
    _check(needs, size, parameter.device, what, images=images, step=max(shape.stride for shape in shapes))


def check_pixels(size: int, *, images: int = 1) -> None:
    """Refuse to read images of `size` pixels a side, so many at once, if memory cannot hold their pixels."""
    _check(lambda side: (3 * images * side**2, 0), size, _HOST, "their pixels alone", images=images, step=16)


def check_pairs(num_patches: int, device: torch.device) -> None:
    """Refuse to compare so many patches of an image with each other if memory cannot hold the results."""
    if lacking := _lacking((0, _PAIR * num_patches**2), device):
        raise InputError(f"comparing {num_patches:,} patches with each other takes at least {lacking}; {_SMALLER}")


def _check(needs: Bytes, size: int, device: torch.device, what: str, *, images: int, step: int) -> None:
    lacking = _lacking(needs(size), device)
    if not lacking:
        return

    def is_short(steps: int) -> bool:
        here, there = needs(step * steps)
        return bool(_lacking((_IN_USE * here, _IN_USE * there), device))

    fitting = step * bisect_left(range(1, size // step + 1), True, key=is_short)
    way_out = f"try {fitting} px" if fitting else _SMALLER
    if images > 1:
        said = f"{images:,} images of {size:,} px ({what} each) take"
        raise InputError(f"{said} at least {lacking}; {way_out}, or a smaller batch")
    raise InputError(f"an image of {size:,} px ({what}) takes at least {lacking}; {way_out}")


def _lacking(needs: tuple[int, int], device: torch.device) -> str:
    """How much of which memory is needed and how much is free, where that is too little."""
    here, there = (sum(needs), 0) if device.type == "cpu" else needs
    for need, place, name in ((here, _HOST, "this machine"), (there, device, str(device))):
        if need * _SHAPES > _ALWAYS_FREE and (free := _free(place)) is not None and need * _SHAPES > free:
            return f"{in_units(need)} of memory, and {in_units(max(free, 0))} are free on {name}"
    return ""


def _free(device: torch.device) -> int | None:
    """Bytes that may still be taken there; None where nobody says."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    return free_memory() if device.type == "cpu" else None
