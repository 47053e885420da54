"""The gate and the norm behind the scan."""

import torch
import torch.nn.functional as F
from torch import Tensor


def gated_norm(y: Tensor, gate: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Mean over R directions of RMSNorm(y · silu(gate)): y (B, L, R, D), gate (B, L, D), weight (R, D) -> (B, L, D)."""
    precise = torch.promote_types(gate.dtype, torch.float32)
    gated = y.to(precise) * F.silu(gate.to(precise)).unsqueeze(2)
    scale = (gated.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (gated * scale * weight).mean(2).to(gate.dtype)
