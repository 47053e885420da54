"""Partial sums that programs left in rows, added up in a fixed order: gradients of weights that all tokens share."""

# mypy: disallow-untyped-defs=False

import torch
import triton
import triton.language as tl
from torch import Tensor

NUMBERS = 4096  # that a program loads at a time: four times 16 bytes for each thread
NUM_WARPS = 8


@triton.jit(do_not_specialize=["num_parts"])
def _add_up_kernel(parts_ptr, total_ptr, num_parts, C, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A program takes COLUMNS numbers of all parts, ROWS parts at a time."""
    which = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    rows = tl.arange(0, ROWS)[:, None]
    parts_ptr += which * num_parts * C
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, num_parts, ROWS):
        part = first + rows
        total += tl.load(parts_ptr + part.to(tl.int64) * C + c, mask=(part < num_parts) & (c < C), other=0.0)
    tl.store(total_ptr + which * C + c, tl.sum(total, 0, keep_dims=True), mask=c < C)


def add_up(parts: Tensor, *, dim: int = 0) -> Tensor:
    """The sum over dimension 0 or 1 of a dense tensor in float32."""
    count, num_parts = parts.shape[0] if dim else 1, parts.shape[dim]
    total = torch.empty(parts.shape[:dim] + parts.shape[dim + 1 :], dtype=torch.float32, device=parts.device)
    width = total.numel() // count
    columns = 32 if width >= NUMBERS else 16  # narrow rows are shared among more programs
    _add_up_kernel[(-(-width // columns), count)](
        parts, total, num_parts, width, ROWS=NUMBERS // columns, COLUMNS=columns, num_warps=NUM_WARPS
    )  # fmt: skip
    return total
