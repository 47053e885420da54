"""The gate and the norm behind the scan."""

import torch
import torch.nn.functional as F
from torch import Tensor


def gated_norm(y: Tensor, gate: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """RMSNorm(y · silu(gate)): y, gate (B, L, E), weight (E,) -> (B, L, E) in the dtype of the gate."""
    precise = torch.promote_types(gate.dtype, torch.float32)
    gated = y.to(precise) * F.silu(gate.to(precise).contiguous())  # SiLU is slow on a strided slice
    mean_square = torch.linalg.vector_norm(gated, dim=-1, keepdim=True).square() / gated.shape[-1]  # no squares stored
    return (gated * (mean_square + eps).rsqrt() * weight).to(gate.dtype)
