"""Where in any module feature maps come from, and how they are read: channels first or last, or tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isqrt
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from mixlab.backbones.tokens import Features, TokenLayout
from mixlab.errors import InputError, did_you_mean
from mixlab.mixers import Grid

Axes = Literal["NCHW", "NHWC", "NLC"]  # a map with channels first, one with channels last, or tokens
_PLACE = re.compile(r"([\w.]*)((?:\[\w+\])*)")  # a submodule, and what to take of a tuple or a mapping


class MapForm(NamedTuple):
    """How the output of one layer is read."""

    axes: Axes
    width: int
    stride: int
    num_prefix: int  # tokens before the patches; the first of them is the class token

    @property
    def layout(self) -> TokenLayout:
        if not self.num_prefix:
            return TokenLayout(place="none")
        return TokenLayout(place="front", num_registers=self.num_prefix - 1)

    def read(self, output: Tensor, image: Grid, where: str) -> Features:
        if output.ndim != len(self.axes):
            raise InputError(f"{where} gives {tuple(output.shape)}, and gave {self.axes} when it was wrapped")
        if self.axes == "NLC":
            grid = (image[0] // self.stride, image[1] // self.stride)
            tokens = output
        else:
            maps = output if self.axes == "NHWC" else output.permute(0, 2, 3, 1)
            grid, tokens = (maps.shape[1], maps.shape[2]), maps.flatten(1, 2)
        return self.layout.split(tokens, grid)


@contextmanager
def outputs_of(module: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What these submodules return while it is active, by name; nothing stays on the module."""
    seen: dict[str, Any] = {}

    def note(name: str) -> Callable[..., None]:
        return lambda part, inputs, output: seen.__setitem__(name, output)

    handles = [module.get_submodule(name).register_forward_hook(note(name)) for name in names if name]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def parse_place(text: str) -> tuple[str, list[str]]:
    """`encoder[0]` as the submodule and the entries to take of its output."""
    match = _PLACE.fullmatch(text)
    if match is None:
        raise InputError(f"{text!r} is not a place in a module; write for example layer4, encoder.norm or encoder[0]")
    return match[1], re.findall(r"\[(\w+)\]", match[2])


def check_places(module: nn.Module, places: Sequence[str]) -> None:
    known = [name for name, _ in module.named_modules()]
    if not places:
        raise InputError("maps names no submodule; give at least one")
    for text in places:
        name, _ = parse_place(text)
        if name not in known:
            hint = did_you_mean(name, known, otherwise=f"it has {', '.join(_children(module))}")
            raise InputError(f"{type(module).__name__} has no submodule {name!r}; {hint}")


def _children(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_children()]


def take_entry(output: Any, text: str) -> Any:
    """The entry of an output that `encoder[0]` names."""
    for key in parse_place(text)[1]:
        try:
            output = output[key] if isinstance(output, Mapping) or not key.isdecimal() else output[int(key)]
        except (KeyError, IndexError, TypeError) as error:
            raise InputError(f"{text}: the output has no [{key}]; it is {_described(output)}") from error
    return output


def as_one_map(output: Any, where: str, place: str | None) -> Tensor:
    if isinstance(output, Tensor):
        return output
    keys = (
        list(output) if isinstance(output, Mapping) else list(range(len(output))) if hasattr(output, "__len__") else []
    )
    entry = "a function that gives one" if place is None or not keys else f"one entry of it: maps='{place}[{keys[0]}]'"
    raise InputError(f"{where} gives {_described(output)}, not one map; take {entry}")


def _described(output: Any) -> str:
    def shape(value: Any) -> str:
        return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__

    if isinstance(output, Mapping):
        return f"a {type(output).__name__} of {', '.join(f'{key}: {shape(value)}' for key, value in output.items())}"
    if isinstance(output, tuple | list):
        return f"a {type(output).__name__} of {', '.join(map(shape, output))}"
    return f"a {type(output).__name__}"


def find_form(
    shape: tuple[int, ...],
    image: int,
    axes: Axes | None,
    num_prefix: int | None,
    *,
    where: str,
    module: nn.Module,
    larger: Callable[[], tuple[int, ...]],
) -> MapForm:
    """Width, stride and axes of a map of a square blank image; `larger` gives its shape for one of twice the side."""
    if len(shape) == 4 and axes != "NLC":
        first, middle, last = shape[1:]
        chosen: Axes | None = axes or ("NCHW" if middle == last else "NHWC" if first == middle else None)
        if axes is None and first == middle == last:
            chosen = _axes_that_grow(shape, larger)
            if chosen is None:
                raise InputError(
                    f"{where} gives {shape}, whose axes cannot be told by their sizes; pass axes='NCHW' or 'NHWC'"
                )
        if chosen is not None:
            width, side = (first, middle) if chosen == "NCHW" else (last, first)
            return MapForm(chosen, width, max(image // side, 1), 0)
    if len(shape) == 3 and axes in (None, "NLC"):
        side = isqrt(shape[1] if num_prefix is None else max(shape[1] - num_prefix, 0))
        extra = shape[1] - side * side
        if side and (num_prefix == extra or (num_prefix is None and extra <= side)):
            return MapForm("NLC", shape[2], max(image // side, 1), extra)
        raise InputError(
            f"{where} gives {shape[1]} tokens, which are not a square of patches after {num_prefix or 'a few'} others; "
            "pass num_prefix, the number of tokens before the patches"
        )
    raise InputError(
        f"{where} gives {shape}, which is not a map (B, C, h, w), (B, h, w, C) or (B, L, C){_suggested(module, image)}"
    )


def _axes_that_grow(shape: tuple[int, ...], larger: Callable[[], tuple[int, ...]]) -> Axes | None:
    """Places grow with the image, channels do not; None where no larger image is taken."""
    try:
        grown = larger()
    except InputError:
        return None
    return "NCHW" if grown[1] == shape[1] else "NHWC" if grown[3] == shape[3] else None


def _suggested(module: nn.Module, image: int) -> str:
    """Submodules that give maps, the last ones of a forward pass."""
    names = [name for name, _ in module.named_modules() if name and name.count(".") < 2]
    parameter = next(module.parameters())
    channels = next((part.in_channels for part in module.modules() if isinstance(part, nn.Conv2d)), 3)
    try:
        with torch.no_grad(), outputs_of(module, names) as seen:
            module(parameter.new_zeros(1, channels, image, image))
    except Exception:  # a suggestion is all that is lost
        seen = {}
    found = [name for name, value in seen.items() if isinstance(value, Tensor) and _is_map(tuple(value.shape))]
    return f"; maps='{found[-1]}' would be one, others are {', '.join(found[-4:-1])}" if len(found) > 1 else ""


def _is_map(shape: tuple[int, ...]) -> bool:
    """Whether it has more than one place."""
    return (len(shape) == 4 and sorted(shape[1:])[1] > 1) or (len(shape) == 3 and shape[1] > 1)
