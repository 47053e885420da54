"""Bias, SiLU and gate, wherever the tensors are: one kernel for CUDA tensors, plain torch for the rest."""

import torch
from torch import Tensor

from mixlab.ops.backend import kernels_run
from mixlab.ops.operator import Operator
from mixlab.ops.silu_gate import reference

DTYPES = (torch.float32, torch.bfloat16)
MAX_WIDTH = 8192  # a row must fit into the registers of one program


def silu_gate(y: Tensor, gate: Tensor, bias: Tensor) -> Tensor:
    """(B, L, E) twice and (E,) -> silu(y + bias) silu(gate)."""
    fits = y.dtype == gate.dtype and y.dtype in DTYPES and y.numel() > 0 and y.shape[-1] <= MAX_WIDTH
    if not (fits and kernels_run(y)):
        return reference.silu_gate(y, gate, bias)
    return _gate(y, gate, bias)


def _forward(y: Tensor, gate: Tensor, bias: Tensor) -> Tensor:
    from mixlab.ops.silu_gate.triton_silu_gate import silu_gate_forward  # here: without a GPU there may be no Triton

    return silu_gate_forward(y, gate, bias)


def _backward(dout: Tensor, y: Tensor, gate: Tensor, bias: Tensor) -> list[Tensor]:
    from mixlab.ops.silu_gate.triton_silu_gate import silu_gate_backward

    return silu_gate_backward(dout, y, gate, bias)


_gate = Operator(
    "silu_gate",
    forward=_forward,
    fake=lambda y, gate, bias: y.new_empty(y.shape),
    backward=_backward,
    fake_backward=lambda dout, *inputs: [each.new_empty(each.shape) for each in inputs],
    keep=lambda y, gate, bias, out: ((y, gate, bias), ()),
)
