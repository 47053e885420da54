"""Gate, RMSNorm and the mean over R directions in one pass, and back in one pass; a program takes whole rows.

y (B, L, R E), dense; weight (R, E); gate (B, L, E), a slice of dense rows.
"""

# mypy: disallow-untyped-defs=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixlab.ops.add_norm.triton_add_norm import row_block, row_programs, row_unit, row_warps
from mixlab.ops.short_conv.triton_short_conv import sigmoid


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


@triton.jit(do_not_specialize=["num_rows"])
def _gated_norm_backward_kernel(
    dout_ptr, y_ptr, gate_ptr, weight_ptr, dy_ptr, dgate_ptr, dweight_ptr, num_rows, E, gate_units, eps,
    UNIT: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    e = tl.arange(0, BLOCK)[None, :]
    both = tl.arange(0, R)[:, None] * E + e
    inside = e < E
    dweight = tl.zeros((R, BLOCK), tl.float32)
    gate_l = gate_units * UNIT
    first = tl.program_id(0)
    row = first.to(tl.int64)
    next_gate = tl.load(gate_ptr + row * gate_l + e, mask=inside, other=0.0)
    next_y = tl.load(y_ptr + row * (R * E) + both, mask=inside, other=0.0)
    next_dout = tl.load(dout_ptr + row * E + e, mask=inside, other=0.0)
    for below in range(0, num_rows - first, tl.num_programs(0)):
        row = first.to(tl.int64) + below
        gate = next_gate.to(tl.float32)
        y = next_y.to(tl.float32)
        dout = next_dout.to(tl.float32) / R
        following = tl.minimum(row + tl.num_programs(0), num_rows - 1)
        next_gate = tl.load(gate_ptr + following * gate_l + e, mask=inside, other=0.0)
        next_y = tl.load(y_ptr + following * (R * E) + both, mask=inside, other=0.0)
        next_dout = tl.load(dout_ptr + following * E + e, mask=inside, other=0.0)
        opened = sigmoid(gate)
        silu = gate * opened
        gated = y * silu
        scale = tl.rsqrt(tl.sum(gated * gated, 1, keep_dims=True) / E + eps)
        unit = gated * scale
        dweight += dout * unit
        dunit = dout * tl.load(weight_ptr + both, mask=inside, other=0.0).to(tl.float32)
        dgated = scale * (dunit - unit * (tl.sum(dunit * unit, 1, keep_dims=True) / E))
        tl.store(dy_ptr + row * (R * E) + both, (dgated * silu).to(dy_ptr.dtype.element_ty), mask=inside)
        dgate = tl.sum(dgated * y, 0, keep_dims=True) * opened * (1.0 + gate - silu)
        tl.store(dgate_ptr + row * gate_l + e, dgate.to(dgate_ptr.dtype.element_ty), mask=inside)
    tl.store(dweight_ptr + tl.program_id(0) * (R * E) + both, dweight, mask=inside)


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
) -> tuple[Tensor, Tensor]:
    """Gradients of y and (float32) of the weight; that of the gate goes into `dgate`, a slice like the gate."""
    batch, length, inner = gate.shape
    directions = weight.shape[0]
    unit = row_unit(gate)
    num_rows = batch * length
    num_programs = row_programs(num_rows)
    dy = torch.empty(y.shape, dtype=y.dtype, device=y.device)
    dweight = torch.empty(num_programs, directions, inner, dtype=torch.float32, device=y.device)
    _gated_norm_backward_kernel[(num_programs,)](
        dout.contiguous(), y, gate, weight, dy, dgate, dweight, num_rows, inner, gate.stride(1) // unit, eps,
        UNIT=unit, R=directions, BLOCK=row_block(inner), num_warps=row_warps(directions * inner), maxnreg=128,
    )  # fmt: skip
    return dy, dweight.sum(0)
