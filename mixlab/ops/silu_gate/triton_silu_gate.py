"""Bias, SiLU and gate in one pass, and back in one pass; a program takes whole rows of E numbers."""

# mypy: disallow-untyped-defs=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixlab.ops.add_norm.triton_add_norm import in_rows, row_block, row_programs, row_unit, row_warps
from mixlab.ops.triton_sums import add_up


@triton.jit
def _silu_gate_forward_kernel(
    y_ptr, gate_ptr, bias_ptr, out_ptr, E, gate_units, UNIT: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK)
    inside = e < E
    y = tl.load(y_ptr + row * E + e, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + row * (gate_units * UNIT) + e, mask=inside, other=0.0).to(tl.float32)
    y += tl.load(bias_ptr + e, mask=inside, other=0.0).to(tl.float32)
    out = y * tl.sigmoid(y) * gate * tl.sigmoid(gate)
    tl.store(out_ptr + row * E + e, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def _silu_gate_backward_kernel(
    dout_ptr, y_ptr, gate_ptr, bias_ptr, dy_ptr, dgate_ptr, dbias_ptr, num_rows, E, gate_units,
    UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    e = tl.arange(0, BLOCK)
    inside = e < E
    bias = tl.load(bias_ptr + e, mask=inside, other=0.0).to(tl.float32)
    dbias = tl.zeros((BLOCK,), tl.float32)
    first = tl.program_id(0)
    gate_l = gate_units * UNIT
    for below in range(0, num_rows - first, tl.num_programs(0)):
        row = first.to(tl.int64) + below
        dout = tl.load(dout_ptr + row * E + e, mask=inside, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + row * E + e, mask=inside, other=0.0).to(tl.float32) + bias
        gate = tl.load(gate_ptr + row * gate_l + e, mask=inside, other=0.0).to(tl.float32)
        y_share, gate_share = tl.sigmoid(y), tl.sigmoid(gate)
        dy = dout * gate * gate_share * y_share * (1 + y * (1 - y_share))
        dgate = dout * y * y_share * gate_share * (1 + gate * (1 - gate_share))
        dbias += dy
        tl.store(dy_ptr + row * E + e, dy.to(dy_ptr.dtype.element_ty), mask=inside)
        tl.store(dgate_ptr + row * E + e, dgate.to(dgate_ptr.dtype.element_ty), mask=inside)
    tl.store(dbias_ptr + tl.program_id(0) * E + e, dbias, mask=inside)


def silu_gate_forward(y: Tensor, gate: Tensor, bias: Tensor) -> Tensor:
    y, gate = y.contiguous(), in_rows(gate)
    width, unit = y.shape[-1], row_unit(gate)
    out = torch.empty(y.shape, dtype=y.dtype, device=y.device)
    _silu_gate_forward_kernel[(y.numel() // width,)](
        y, gate, bias, out, width, gate.stride(1) // unit, UNIT=unit, BLOCK=row_block(width), num_warps=row_warps(width)
    )
    return out


def silu_gate_backward(dout: Tensor, y: Tensor, gate: Tensor, bias: Tensor) -> list[Tensor]:
    """Gradients of y, the gate and the bias, whose partial sums are added in a fixed order."""
    dout, y, gate = dout.contiguous(), y.contiguous(), in_rows(gate)
    width, unit = y.shape[-1], row_unit(gate)
    num_rows = y.numel() // width
    num_programs = row_programs(num_rows)
    dy, dgate = (torch.empty(y.shape, dtype=y.dtype, device=y.device) for _ in range(2))
    dbias = torch.empty(num_programs, width, dtype=torch.float32, device=y.device)
    _silu_gate_backward_kernel[(num_programs,)](
        dout, y, gate, bias, dy, dgate, dbias, num_rows, width, gate.stride(1) // unit,
        UNIT=unit, BLOCK=row_block(width), num_warps=row_warps(width),
    )  # fmt: skip
    return [dy, dgate, add_up(dbias).to(bias.dtype)]
