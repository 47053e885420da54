"""Gate, RMSNorm and the mean over R directions in one pass, and back in one pass; a program takes whole rows.

y (B, L, R E), dense; weight (R, E); gate (B, L, E), a slice of dense rows.
"""

# mypy: disallow-untyped-defs=False
# ruff: noqa: RUF005, SIM108 (Triton unpacks no tuples, and its branches are taken when it compiles)

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixlab.ops.add_norm.triton_add_norm import row_block, row_unit, row_warps
from mixlab.ops.short_conv.triton_short_conv import sigmoid
from mixlab.ops.triton_sums import add_up

BACKWARD_WARPS = 1584  # twelve on each multiprocessor of a large chip; a program leaves one partial sum for the weights


@triton.jit
def _gated_norm_forward_kernel(
    y_ptr, gate_ptr, weight_ptr, out_ptr, E, gate_units, eps, UNIT: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK)[None, :]
    both = tl.arange(0, R)[:, None] * E + e
    inside = e < E
    gate = tl.load(gate_ptr + row * (gate_units * UNIT) + e, mask=inside, other=0.0).to(tl.float32)
    gated = tl.load(y_ptr + row * (R * E) + both, mask=inside, other=0.0) * (gate * sigmoid(gate))  # (R, BLOCK)
    weight = tl.load(weight_ptr + both, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(gated * gated, 1, keep_dims=True) / E + eps) / R
    out = tl.sum(gated * weight * scale, 0, keep_dims=True)
    tl.store(out_ptr + row * E + e, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit
def _add_fours(a, b, c, d, e, f, g, h):
    return a + e, b + f, c + g, d + h


@triton.jit
def _pieces(pointer, E, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """A row of E numbers in COUNT pieces, zeros behind its end."""
    e = tl.arange(0, BLOCK)
    pieces = ()
    for piece in tl.static_range(COUNT):
        place = piece * BLOCK + e
        pieces = pieces + (tl.load(pointer + place, mask=place < E, other=0.0),)
    return pieces


@triton.jit
def _row(y_ptr, gate_ptr, dout_ptr, row, gate_l, E, R: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """y of each direction, the gate and the gradient of one row."""
    y = _pieces(y_ptr + row * (R * E), E, COUNT, BLOCK)
    if R == 2:
        y = y + _pieces(y_ptr + row * (R * E) + E, E, COUNT, BLOCK)
    return y, _pieces(gate_ptr + row * gate_l, E, COUNT, BLOCK), _pieces(dout_ptr + row * E, E, COUNT, BLOCK)


@triton.jit(do_not_specialize=["num_rows"])
def _gated_norm_backward_kernel(
    dout_ptr, y_ptr, gate_ptr, weight_ptr, dy_ptr, dgate_ptr, out_ptr, dweight_ptr, num_rows, gate_units, eps,
    UNIT: tl.constexpr, R: tl.constexpr, E: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Row after row, the next one loaded ahead. All sums over a row are one reduction: none waits for another."""
    e = tl.arange(0, BLOCK)
    gate_l = gate_units * UNIT
    first = tl.program_id(0)
    dweight = ()
    for _ in tl.static_range(R * COUNT):
        dweight = dweight + (tl.zeros((BLOCK,), tl.float32),)
    y, gate, dout = _row(y_ptr, gate_ptr, dout_ptr, first.to(tl.int64), gate_l, E, R, COUNT, BLOCK)
    for below in range(0, num_rows - first, tl.num_programs(0)):
        row = first.to(tl.int64) + below
        following = tl.minimum(row + tl.num_programs(0), num_rows - 1)
        next_y, next_gate, next_dout = _row(y_ptr, gate_ptr, dout_ptr, following, gate_l, E, R, COUNT, BLOCK)
        silu, scale, along = (), (), ()
        for piece in tl.static_range(COUNT):
            opening = gate[piece].to(tl.float32)
            silu = silu + (opening * sigmoid(opening),)
        sums = ()
        for r in tl.static_range(R):
            squares = tl.zeros((BLOCK,), tl.float32)
            products = tl.zeros((BLOCK,), tl.float32)
            for piece in tl.static_range(COUNT):
                place = piece * BLOCK + e
                weight = tl.load(weight_ptr + r * E + place, mask=place < E, other=0.0).to(tl.float32)
                gated = y[r * COUNT + piece].to(tl.float32) * silu[piece]
                squares += gated * gated
                products += gated * weight * dout[piece].to(tl.float32)
            sums = sums + (squares, products)
        if R == 2:
            sums = tl.reduce(sums, 0, _add_fours)
        else:
            sums = tl.reduce(sums, 0, _add_pairs)
        for r in tl.static_range(R):
            by = tl.rsqrt(sums[2 * r] / E + eps)
            scale = scale + (by / R,)
            along = along + (by * by * sums[2 * r + 1] / E,)
        added = ()
        for piece in tl.static_range(COUNT):
            place = piece * BLOCK + e
            inside = place < E
            opening = gate[piece].to(tl.float32)
            out = tl.zeros((BLOCK,), tl.float32)
            dsilu = tl.zeros((BLOCK,), tl.float32)
            for r in tl.static_range(R):
                weight = tl.load(weight_ptr + r * E + place, mask=inside, other=0.0).to(tl.float32)
                each = y[r * COUNT + piece].to(tl.float32)
                unit = each * silu[piece] * scale[r]
                out += unit * weight
                grown = dout[piece].to(tl.float32)
                added = added + (grown * unit,)
                dgated = grown * weight * scale[r] - unit * along[r]
                dy = (dgated * silu[piece]).to(dy_ptr.dtype.element_ty)
                tl.store(dy_ptr + row * (R * E) + r * E + place, dy, mask=inside)
                dsilu += dgated * each
            tl.store(out_ptr + row * E + place, out.to(out_ptr.dtype.element_ty), mask=inside)
            dgate = dsilu * sigmoid(opening) * (1.0 + opening - silu[piece])
            tl.store(dgate_ptr + row * gate_l + place, dgate.to(dgate_ptr.dtype.element_ty), mask=inside)
        total = ()
        for r in tl.static_range(R):
            for piece in tl.static_range(COUNT):
                total = total + (dweight[r * COUNT + piece] + added[piece * R + r],)
        dweight = total
        y, gate, dout = next_y, next_gate, next_dout
    dweight_ptr += tl.program_id(0) * (R * E)
    for r in tl.static_range(R):
        for piece in tl.static_range(COUNT):
            place = piece * BLOCK + e
            tl.store(dweight_ptr + r * E + place, dweight[r * COUNT + piece], mask=place < E)


def gated_norm_forward(y: Tensor, gate: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """(B, L, R E), (B, L, E), (R, E) -> (B, L, E), dense, in the dtype of the gate."""
    batch, length, inner = gate.shape
    directions = weight.shape[0]
    unit = row_unit(gate)
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    _gated_norm_forward_kernel[(batch * length,)](
        y, gate, weight, out, inner, gate.stride(1) // unit, eps,
        UNIT=unit, R=directions, BLOCK=row_block(inner), num_warps=row_warps(directions * inner),
    )  # fmt: skip
    return out


def gated_norm_backward(
    dout: Tensor, y: Tensor, gate: Tensor, weight: Tensor, dgate: Tensor, *, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The output again, and the gradients of y and (float32) of the weight; that of the gate goes into `dgate`."""
    batch, length, inner = gate.shape
    directions = weight.shape[0]
    unit = row_unit(gate)
    num_rows = batch * length
    count, block = row_pieces(inner)
    num_warps = max(1, min(16, block // 128))
    num_programs = min(num_rows, BACKWARD_WARPS // min(4, num_warps))
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    dy = torch.empty(y.shape, dtype=y.dtype, device=y.device)
    dweight = torch.empty(num_programs, directions, inner, dtype=torch.float32, device=y.device)
    _gated_norm_backward_kernel[(num_programs,)](
        dout.contiguous(), y, gate, weight, dy, dgate, out, dweight, num_rows, gate.stride(1) // unit, eps,
        UNIT=unit, R=directions, E=inner, COUNT=count, BLOCK=block,
        num_warps=num_warps, maxnreg=168,
    )  # fmt: skip
    return out, dy, add_up(dweight)


def row_pieces(width: int) -> tuple[int, int]:
    """How many pieces of which power of two: three thirds where that pads nothing, else one."""
    third, rest = divmod(width, 3)
    exact = rest == 0 and third & (third - 1) == 0
    return (3, third) if exact and third >= 32 else (1, row_block(width))
