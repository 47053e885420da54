"""Add and normalise in one pass, and back in one pass; a program takes whole rows of D numbers.

CENTRED: LayerNorm, which takes the mean off first and adds a bias; else RMSNorm.
"""

# mypy: disallow-untyped-defs=False

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixlab.ops.triton_sums import add_up


@triton.jit
def _add_norm_forward_kernel(
    branch_ptr, stream_ptr, weight_ptr, bias_ptr, factors_ptr, out_ptr, normed_ptr, L, D, eps,
    CENTRED: tl.constexpr, SCALED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * D
    d = tl.arange(0, BLOCK)
    inside = d < D
    branch = tl.load(branch_ptr + row + d, mask=inside, other=0.0).to(tl.float32)
    if SCALED:
        branch *= tl.load(factors_ptr + tl.program_id(0) // L)
    stream = tl.load(stream_ptr + row + d, mask=inside, other=0.0).to(tl.float32) + branch
    weight = tl.load(weight_ptr + d, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row + d, stream, mask=inside)
    if CENTRED:
        stream = tl.where(inside, stream - tl.sum(stream, 0) / D, 0.0)
    normed = stream * tl.rsqrt(tl.sum(stream * stream, 0) / D + eps) * weight
    if CENTRED:
        normed += tl.load(bias_ptr + d, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed_ptr + row + d, normed.to(normed_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def _add_norm_backward_kernel(
    dout_ptr, dnormed_ptr, stream_ptr, weight_ptr, factors_ptr, dbranch_ptr, dstream_ptr, dvectors_ptr, num_rows, L, D,
    eps, CENTRED: tl.constexpr, SCALED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, BLOCK)
    inside = d < D
    weight = tl.load(weight_ptr + d, mask=inside, other=0.0).to(tl.float32)
    dweight = tl.zeros((BLOCK,), tl.float32)
    dbias = tl.zeros((BLOCK,), tl.float32)
    first = tl.program_id(0)
    row = first.to(tl.int64) * D
    next_stream = tl.load(stream_ptr + row + d, mask=inside, other=0.0)
    next_dnormed = tl.load(dnormed_ptr + row + d, mask=inside, other=0.0)
    next_dout = tl.load(dout_ptr + row + d, mask=inside, other=0.0)
    for below in range(0, num_rows - first, tl.num_programs(0)):
        row = (first.to(tl.int64) + below) * D
        stream = next_stream
        dnormed = next_dnormed.to(tl.float32)
        dout = next_dout
        following = tl.minimum(first.to(tl.int64) + below + tl.num_programs(0), num_rows - 1) * D
        next_stream = tl.load(stream_ptr + following + d, mask=inside, other=0.0)
        next_dnormed = tl.load(dnormed_ptr + following + d, mask=inside, other=0.0)
        next_dout = tl.load(dout_ptr + following + d, mask=inside, other=0.0)
        if CENTRED:
            stream = tl.where(inside, stream - tl.sum(stream, 0) / D, 0.0)
        scale = tl.rsqrt(tl.sum(stream * stream, 0) / D + eps)
        unit = stream * scale
        dweight += dnormed * unit
        dunit = dnormed * weight
        along = dunit - unit * (tl.sum(dunit * unit, 0) / D)
        if CENTRED:
            dbias += dnormed
            along -= tl.sum(dunit, 0) / D
        dstream = dout + scale * along
        tl.store(dstream_ptr + row + d, dstream, mask=inside)
        dbranch = dstream
        if SCALED:
            dbranch = dstream * tl.load(factors_ptr + (first + below) // L)
        tl.store(dbranch_ptr + row + d, dbranch.to(dbranch_ptr.dtype.element_ty), mask=inside)
    tl.store(dvectors_ptr + tl.program_id(0) * D + d, dweight, mask=inside)
    if CENTRED:
        tl.store(dvectors_ptr + (tl.num_programs(0) + tl.program_id(0)) * D + d, dbias, mask=inside)


def add_norm_forward(
    branch: Tensor, stream: Tensor, weight: Tensor, bias: Tensor | None, factors: Tensor | None, *, eps: float
) -> tuple[Tensor, Tensor]:
    """The sum in float32 and its norm in the dtype of the branch, both dense; factors in float32."""
    branch, stream = branch.contiguous(), stream.contiguous()
    width = branch.shape[-1]
    out = torch.empty(branch.shape, dtype=torch.float32, device=branch.device)
    normed = torch.empty(branch.shape, dtype=branch.dtype, device=branch.device)
    num_rows = branch.numel() // width
    _add_norm_forward_kernel[(num_rows,)](
        branch, stream, weight, weight if bias is None else bias, factors, out, normed, branch.shape[1], width, eps,
        CENTRED=bias is not None, SCALED=factors is not None, BLOCK=row_block(width), num_warps=row_warps(width),
    )  # fmt: skip
    return out, normed


def add_norm_backward(
    dout: Tensor | None,
    dnormed: Tensor | None,
    out: Tensor,
    weight: Tensor,
    factors: Tensor | None,
    branch_dtype: torch.dtype,
    *,
    centred: bool,
    eps: float,
) -> list[Tensor]:
    """Gradients of the branch, the stream, the weight and, if centred, the bias."""
    dout = torch.zeros_like(out) if dout is None else dout.contiguous()
    dnormed = torch.zeros_like(out) if dnormed is None else dnormed.contiguous()
    width = out.shape[-1]
    num_rows = out.numel() // width
    num_programs = row_programs(num_rows)
    dstream = torch.empty(out.shape, dtype=torch.float32, device=out.device)
    dbranch = torch.empty(out.shape, dtype=branch_dtype, device=out.device)
    dvectors = torch.empty(1 + centred, num_programs, width, dtype=torch.float32, device=out.device)
    _add_norm_backward_kernel[(num_programs,)](
        dout, dnormed, out, weight, factors, dbranch, dstream, dvectors, num_rows, out.shape[1], width, eps,
        CENTRED=centred, SCALED=factors is not None, BLOCK=row_block(width), num_warps=row_warps(width),
    )  # fmt: skip
    return [dbranch, dstream, *add_up(dvectors, dim=1).to(weight.dtype)]


def row_block(width: int) -> int:
    """The power of two that a row is padded to."""
    return 1 << (width - 1).bit_length()


def row_warps(width: int) -> int:
    """Warps for a row: about 16 numbers per thread."""
    return max(1, min(16, row_block(width) // 512))


def row_programs(num_rows: int) -> int:
    """Programs that share all rows, each with one partial sum for the weights: enough to fill a large chip."""
    return min(num_rows, 1024)


def in_rows(x: Tensor) -> Tensor:
    """(B, L, E) whose rows follow each other at one distance: a part of a wider tensor is read where it lies."""
    return x if x.stride(2) == 1 and x.stride(0) == x.shape[1] * x.stride(1) else x.contiguous()


def row_unit(rows: Tensor) -> int:
    """The largest power of two up to 16 in the stride between rows: a kernel told so loads as many numbers at once."""
    return math.gcd(16, rows.stride(-2))
