"""Networks of shapes alone, on torch's meta device."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class _Unfilled(TorchFunctionMode):
    """Nothing is filled: parameters without storage have no values, and drawing them is most of the time."""

    fills = frozenset(
        getattr(Tensor, f"{name}_") for name in ("uniform", "normal", "erfinv", "mul", "add", "clamp", "fill", "zero")
    )

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return args[0] if func in self.fills and args[0].is_meta else func(*args, **(kwargs or {}))


@contextmanager
def without_storage() -> Iterator[None]:
    """Networks that are built within have shapes alone."""
    with torch.device("meta"), _Unfilled():
        yield
