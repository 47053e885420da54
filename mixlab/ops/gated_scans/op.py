"""Several scans as one, under a gate: a kernel for CUDA tensors, else plain torch."""

import torch
from torch import Tensor

from mixlab.ops.backend import kernels_run
from mixlab.ops.gated_scans import reference
from mixlab.ops.operator import Operator


def gated_scans(y: Tensor, gate: Tensor, *, mean: bool) -> Tensor:
    """y (B, L, S, E), gate (B, L, E) -> SiLU(gate) times the mean or the sum of the scans (B, L, E)."""
    if runs_kernels(y, gate):
        return _gate(y, gate, mean)
    return reference.gated_scans(y, gate, mean=mean)


def runs_kernels(y: Tensor, gate: Tensor) -> bool:
    """The one dispatch: whether a kernel does it."""
    return y.dtype in (torch.bfloat16, torch.float32) and gate.dtype == y.dtype and y.numel() > 0 and kernels_run(y)


def _forward(y: Tensor, gate: Tensor, mean: bool) -> Tensor:
    from mixlab.ops.gated_scans.triton_gated_scans import gated_scans_forward  # without a GPU there may be no Triton

    return gated_scans_forward(y, gate, mean)


def _backward(dout: Tensor, y: Tensor, gate: Tensor, mean: bool) -> list[Tensor]:
    from mixlab.ops.gated_scans.triton_gated_scans import gated_scans_backward

    return gated_scans_backward(dout, y, gate, mean)


def _fake_backward(dout: Tensor, y: Tensor, gate: Tensor, mean: bool) -> list[Tensor]:
    return [dout.new_empty(dout.shape).unsqueeze(2).expand(y.shape), dout.new_empty(gate.shape)]


_gate = Operator(
    "gated_scans",
    forward=_forward,
    fake=lambda y, gate, mean: gate.new_empty(gate.shape),
    backward=_backward,
    fake_backward=_fake_backward,
    keep=lambda y, gate, mean, out: ((y, gate), (mean,)),
)
