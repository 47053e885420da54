"""How a GPU multiplies float32 matrices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def matrix_products(*, exact: bool) -> Iterator[None]:
    """In float32, or on a GPU in TF32, whose ten bits of mantissa hold half-precision features without loss."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if exact else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
