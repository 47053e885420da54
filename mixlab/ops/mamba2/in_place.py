"""The mixer of `reference.py` on a CPU where no gradient is recorded: some images at a time, in buffers that stay in
the cache. Large tensors would go through memory once for every step."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mixlab.ops.mamba2.reference import split_projected
from mixlab.ops.ssd.in_place import block_scans, takes


def takes_mixer(*tensors: Tensor) -> bool:
    """Whether the scan may run in place, and nothing is to be rounded on the way."""
    precise = tensors[0].dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    return precise and all(t.dtype == tensors[0].dtype for t in tensors) and takes(*tensors)


def mamba2_in_place(
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
    """The same arguments and result."""
    gates, xkqs, dts = split_projected(projected, conv_weight, dt_bias, norm_weight)
    directions, heads = A_log.shape
    state = (xkqs.shape[2] - gates.shape[2]) // 2
    taps, A, norm_weight = conv_weight.mT.contiguous(), -A_log.exp(), norm_weight / directions
    mixed = projected.new_empty(gates.shape)
    buffers: list[Tensor] = []
    for images, scan in block_scans(projected, heads, head_dim, state):
        buffers = buffers or [t.new_empty(t[images].shape) for t in (gates, gates, xkqs, xkqs)]
        gate, y, xkq, convolved = (buffer[: scan.num_images] for buffer in buffers)
        F.silu(gate.copy_(gates[images]), inplace=True)
        xkq.copy_(xkqs[images])
        for r in range(directions):
            _short_conv(xkq, taps[r], conv_bias[r], out=convolved, reverse=r == 1)
            v, k, q = convolved.split([gates.shape[2], state, state], dim=2)
            inputs = (q, k, v.unflatten(2, (heads, -1)), F.softplus(dts[images] + dt_bias[r]), A[r], skip[r])
            scan(*inputs, out=y.unflatten(2, (heads, -1)), reverse=r == 1)
            mean_square = torch.linalg.vector_norm(y.mul_(gate), dim=2, keepdim=True).square_().div_(y.shape[2])
            y.mul_(mean_square.add_(eps).rsqrt_())
            if r == 0:
                torch.mul(y, norm_weight[r], out=mixed[images])
            else:
                mixed[images].addcmul_(y, norm_weight[r])
    return F.linear(mixed, out_weight)


def _short_conv(x: Tensor, taps: Tensor, bias: Tensor, *, out: Tensor, reverse: bool) -> None:
    """silu(conv(x) + bias): x, out (B, L, C), taps (W, C), the last for the token itself."""
    torch.addcmul(bias, x, taps[-1], out=out)
    for distance in range(1, min(len(taps), x.shape[1])):
        here, there = slice(distance, None), slice(-distance)
        target, source = (there, here) if reverse else (here, there)
        out[:, target].addcmul_(x[:, source], taps[-1 - distance])
    F.silu(out, inplace=True)
