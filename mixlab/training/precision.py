"""In which precision networks run, and how a GPU multiplies float32 matrices."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

Precise = Callable[[], AbstractContextManager[None]]


def autocast(precision: str, device: torch.device) -> Precise:
    """Networks run inside of what this gives: with "bf16", weights and sums stay in float32."""
    if precision == "bf16":
        return lambda: torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext


@contextmanager
def matrix_products(*, exact: bool) -> Iterator[None]:
    """In float32, or on a GPU in TF32, whose ten bits of mantissa hold half-precision features without loss."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if exact else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
