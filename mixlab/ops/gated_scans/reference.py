"""What a Mamba block does behind its scans: one of several, times the SiLU of the gate."""

import torch.nn.functional as F
from torch import Tensor


def gated_scans(y: Tensor, gate: Tensor, *, mean: bool) -> Tensor:
    """y (B, L, S, E), gate (B, L, E) -> (B, L, E)."""
    return (y.mean(2) if mean else y.sum(2)) * F.silu(gate)
