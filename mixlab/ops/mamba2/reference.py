"""A Mamba-2 mixer behind its input projection: convolution, scan, gate, norm and output, for one or two directions.

Parameters are stacked over R directions: conv_weight (R, E + 2N, W), conv_bias (R, E + 2N), dt_bias, A_log and skip
(R, heads), norm_weight (R, E), with E the inner width; out_weight (D, E) is shared. Direction 0 reads
from the left, direction 1 from the right.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mixlab.ops.gated_norm.reference import gated_norm
from mixlab.ops.short_conv.reference import short_conv
from mixlab.ops.ssd.op import ssd


def scan_inputs(
    xkq: Tensor, dt: Tensor, conv_weight: Tensor, conv_bias: Tensor, dt_bias: Tensor, *, head_dim: int, reverse: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What one direction scans, from raw projections: q, k (B, L, 1, N), v (B, L, heads, P), dt (B, L, heads)."""
    num_heads = dt_bias.shape[0]
    inner = num_heads * head_dim
    state = (conv_weight.shape[0] - inner) // 2
    v, k, q = short_conv(xkq, conv_weight, conv_bias, reverse=reverse).split([inner, state, state], dim=-1)
    precise = torch.promote_types(dt.dtype, torch.float32)  # decays are exponentials: never in half precision
    return q.unsqueeze(2), k.unsqueeze(2), v.unflatten(-1, (num_heads, -1)), F.softplus(dt.to(precise) + dt_bias)


def split_projected(
    projected: Tensor, conv_weight: Tensor, dt_bias: Tensor, norm_weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The input projection [gate, x, k, q, dt, unused] as gate (E), xkq (E + 2N) and dt (heads)."""
    inner, channels, num_heads = (each.shape[1] for each in (norm_weight, conv_weight, dt_bias))
    behind = inner + channels
    return projected[..., :inner], projected[..., inner:behind], projected[..., behind : behind + num_heads]


def mamba2(
    projected: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor,
    dt_bias: Tensor,
    A_log: Tensor,
    skip: Tensor,
    norm_weight: Tensor,
    out_weight: Tensor,
    *,
    head_dim: int,
    eps: float,
) -> Tensor:
    """From the input projection (B, L, 2E + 2N + heads or more) to the mixer's output (B, L, D)."""
    gate, xkq, dt = split_projected(projected, conv_weight, dt_bias, norm_weight)
    A = -A_log.exp()
    outputs = []
    for r in range(A.shape[0]):
        q, k, v, steps = scan_inputs(
            xkq, dt, conv_weight[r], conv_bias[r], dt_bias[r], head_dim=head_dim, reverse=r == 1
        )
        y = ssd(q, k, v, steps, A[r], skip[r], num_reverse=r * A.shape[1])
        outputs.append(gated_norm(y.flatten(2), gate, norm_weight[r] / A.shape[0], eps=eps))
    return F.linear(outputs[0] if len(outputs) == 1 else outputs[0] + outputs[1], out_weight)
