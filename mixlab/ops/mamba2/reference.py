"""Everything of a Mamba-2 mixer between its two projections: convolution, scan, gate and norm, for one or two directions.

Parameters are stacked over R directions: conv_weight (R, E + 2N, W), conv_bias (R, E + 2N), dt_bias, A_log and skip
(R, heads), norm_weight (R, E), with E the inner width. Direction 0 reads from the left, direction 1 from the right.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mixlab.ops.gated_norm.reference import gated_norm
from mixlab.ops.short_conv.reference import short_conv
from mixlab.ops.ssd.op import ssd


def scan_inputs(
    projected: Tensor, conv_weight: Tensor, conv_bias: Tensor, dt_bias: Tensor, *, head_dim: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Split the input projection [gate, x, k, q, dt] (B, L, 2E + 2N + heads) into gate, q, k, v and dt of the scan."""
    num_directions, channels, _ = conv_weight.shape
    num_heads = dt_bias.shape[1]
    inner = num_heads * head_dim
    state = (channels - inner) // 2
    gate, xkq, dt = projected.split([inner, channels, num_heads], dim=-1)
    x, k, q = short_conv(xkq, conv_weight, conv_bias).split([inner, state, state], dim=-1)  # (B, L, R, ...)
    v = x.reshape(*x.shape[:2], num_directions * num_heads, head_dim)
    precise = torch.promote_types(dt.dtype, torch.float32)  # decays are exponentials: never in half precision
    dt = F.softplus(dt.to(precise).unsqueeze(2) + dt_bias).flatten(2)  # (B, L, R * heads)
    return gate, q, k, v, dt


def mamba2_inner(
    projected: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor,
    dt_bias: Tensor,
    A_log: Tensor,
    skip: Tensor,
    norm_weight: Tensor,
    *,
    head_dim: int,
    eps: float,
) -> Tensor:
    """From the input projection (B, L, 2E + 2N + heads) to what the output projection reads (B, L, E)."""
    gate, q, k, v, dt = scan_inputs(projected, conv_weight, conv_bias, dt_bias, head_dim=head_dim)
    num_reverse = A_log[1:].numel()
    y = ssd(q, k, v, dt, -A_log.exp().flatten(), skip.flatten(), num_reverse=num_reverse)
    return gated_norm(y.flatten(2).unflatten(2, (A_log.shape[0], -1)), gate, norm_weight, eps=eps)
