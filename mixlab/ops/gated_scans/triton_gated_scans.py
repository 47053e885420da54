"""The mean or the sum of several scans times SiLU of a gate, and back, each in one pass.

Every scan has the same gradient, which is written once: it is returned as a view that repeats it. In `ops/silu_gate` it
has not, and a bias to be summed over all rows: a kernel for both would be two kernels behind one switch.
"""

# mypy: disallow-untyped-defs=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixlab.ops.add_norm.triton_add_norm import in_rows
from mixlab.ops.short_conv.triton_short_conv import sigmoid

ROWS, CHANNELS = 8, 256  # of a program


@triton.jit
def _total(y_ptr, row, c, inside, L, y_b, y_l, y_s, SCANS: tl.constexpr):
    """The sum of the scans of each token."""
    at = y_ptr + row // L * y_b + row % L * y_l + c
    total = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    for scan in tl.static_range(1, SCANS):
        total += tl.load(at + scan * y_s, mask=inside, other=0.0).to(tl.float32)
    return total


@triton.jit(do_not_specialize=["num_rows", "L"])
def _gated_scans_forward_kernel(
    y_ptr, gate_ptr, out_ptr, num_rows, L, E, y_b, y_l, y_s, gate_l, share,
    SCANS: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    c = (tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    inside = (row < num_rows) & (c < E)
    gate = tl.load(gate_ptr + row * gate_l + c, mask=inside, other=0.0).to(tl.float32)
    total = _total(y_ptr, row, c, inside, L, y_b, y_l, y_s, SCANS) * share
    tl.store(out_ptr + row * E + c, (total * gate * sigmoid(gate)).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_rows", "L"])
def _gated_scans_backward_kernel(
    dout_ptr, y_ptr, gate_ptr, dy_ptr, dgate_ptr, num_rows, L, E, y_b, y_l, y_s, gate_l, share,
    SCANS: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    c = (tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    inside = (row < num_rows) & (c < E)
    gate = tl.load(gate_ptr + row * gate_l + c, mask=inside, other=0.0).to(tl.float32)
    dout = tl.load(dout_ptr + row * E + c, mask=inside, other=0.0).to(tl.float32) * share
    opened = sigmoid(gate)
    dgate = dout * _total(y_ptr, row, c, inside, L, y_b, y_l, y_s, SCANS) * opened * (1.0 + gate * (1.0 - opened))
    tl.store(dy_ptr + row * E + c, (dout * gate * opened).to(dy_ptr.dtype.element_ty), mask=inside)
    tl.store(dgate_ptr + row * E + c, dgate.to(dgate_ptr.dtype.element_ty), mask=inside)


def gated_scans_forward(y: Tensor, gate: Tensor, mean: bool) -> Tensor:
    out = torch.empty(gate.shape, dtype=y.dtype, device=y.device)
    y, gate = _dense_channels(y), in_rows(gate)
    grid = _grid(gate)
    _gated_scans_forward_kernel[grid](
        y, gate, out, *_sizes(y, gate, mean), SCANS=y.shape[2], ROWS=ROWS, CHANNELS=CHANNELS
    )
    return out


def gated_scans_backward(dout: Tensor, y: Tensor, gate: Tensor, mean: bool) -> list[Tensor]:
    dy, dgate = (torch.empty(gate.shape, dtype=y.dtype, device=y.device) for _ in range(2))
    dout, y, gate = dout.contiguous(), _dense_channels(y), in_rows(gate)
    grid = _grid(gate)
    _gated_scans_backward_kernel[grid](
        dout, y, gate, dy, dgate, *_sizes(y, gate, mean), SCANS=y.shape[2], ROWS=ROWS, CHANNELS=CHANNELS
    )
    return [dy.unsqueeze(2).expand(y.shape), dgate]


def _grid(gate: Tensor) -> tuple[int, int]:
    return triton.cdiv(gate.shape[0] * gate.shape[1], ROWS), triton.cdiv(gate.shape[2], CHANNELS)


def _sizes(y: Tensor, gate: Tensor, mean: bool) -> tuple[float, ...]:
    batch, length, width = gate.shape
    return batch * length, length, width, *y.stride()[:3], gate.stride(1), 1 / y.shape[2] if mean else 1.0


def _dense_channels(y: Tensor) -> Tensor:
    return y if y.stride(3) == 1 else y.contiguous()
