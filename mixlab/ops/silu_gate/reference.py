"""What a gated convolution does behind its window: add the bias, SiLU, times the SiLU of the gate."""

import torch.nn.functional as F
from torch import Tensor


def silu_gate(y: Tensor, gate: Tensor, bias: Tensor) -> Tensor:
    """(B, L, E) twice and (E,) -> (B, L, E)."""
    return F.silu(y + bias.to(y.dtype)) * F.silu(gate)
