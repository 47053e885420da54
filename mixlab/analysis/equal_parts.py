"""Counting a network whose layers are mostly alike: without storage, equal parts do equal work and run only once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from timm.layers import DropPath
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

Known = dict[tuple[Any, ...], tuple[Any, int]]  # form and inputs of a part -> what it gives, and its FLOPs
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) | {"forward"}


class EqualParts:
    """What parts of networks gave for what they were given, and the FLOPs of those that were not run again."""

    def __init__(self, counter: FlopCounterMode, known: Known) -> None:
        self.counter, self.spared, self.known = counter, 0, known

    @property
    def total(self) -> int:
        return self.counter.get_total_flops() + self.spared

    def watched(self, part: nn.Module) -> Callable[..., Any]:
        """The part's `forward`, which runs where no equal part has run on inputs of these shapes."""
        run = part.forward

        def forward(*inputs: Any, **named: Any) -> Any:
            key = (form_of(part), _shapes(inputs), _shapes(named))
            if key in self.known:
                given, flops = self.known[key]
                self.spared += flops
                return given
            before = self.total
            given = run(*inputs, **named)
            self.known[key] = given, self.total - before
            return given

        return forward


@contextmanager
def running_equal_parts_once(network: nn.Module, counter: FlopCounterMode, known: Known) -> Iterator[EqualParts]:
    """Layers and their parts, down to single norms. For networks on the meta device alone, which may share `known`."""
    parts = EqualParts(counter, known)
    watched = [part for part in network.modules() if part is not network and any(True for _ in part.parameters())]
    for part in watched:
        part.forward = parts.watched(part)
    try:
        yield parts
    finally:
        for part in watched:
            del part.forward


def form_of(part: nn.Module) -> tuple[Any, ...]:
    """All that decides what a part does with shapes: its class and settings, the shapes of its tensors, its parts."""
    settings = {key: value for key, value in vars(part).items() if key not in _OF_EVERY_MODULE}
    inner = tuple((name, form_of(child)) for name, child in part.named_children() if not _does_nothing(child))
    return type(part), part.training, repr(settings), _shapes(part._parameters), _shapes(part._buffers), inner


def _does_nothing(part: nn.Module) -> bool:
    """Rates differ from layer to layer, and mean nothing outside of training."""
    return isinstance(part, DropPath | nn.Dropout) and not part.training


def _shapes(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if isinstance(value, dict):
        return tuple((key, _shapes(part)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return tuple(_shapes(part) for part in value)
    return repr(value)
