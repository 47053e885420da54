"""The mixer of `reference.py` on a CPU where no gradient is recorded: some images, or a piece of one, at a time: these
stay in the cache. Large tensors would go through memory once for every step, on pages that the C library maps anew."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mixlab.ops.ssd.in_place import Piece, block_scans, takes


def takes_mixer(*tensors: Tensor) -> bool:
    """Whether the scan may run in place, and nothing is to be rounded on the way."""
    precise = tensors[0].dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    return precise and all(t.dtype == tensors[0].dtype for t in tensors) and takes(*tensors)


def mamba2_in_place(
    x: Tensor,
    in_weight: Tensor,
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
    """From tokens (B, L, D) to tokens; the input projection's weight comes before the arguments of the reference."""
    (directions, heads), inner = A_log.shape, norm_weight.shape[1]
    _, channels, width = conv_weight.shape
    widths = (inner, (channels - inner) // 2, (channels - inner) // 2)  # of v, k, q
    taps, A, norm_weight = conv_weight.mT.contiguous(), -A_log.exp(), norm_weight * (inner**0.5 / directions)
    mixed = x.new_empty(*x.shape[:2], inner)
    for images, scan in block_scans(x, heads, head_dim, widths[1]):
        projected: dict[Piece, tuple[Tensor, ...]] = {}
        for r in range(directions):
            state, before = None, x.new_zeros(scan.num_images, width - 1, channels)
            for piece in scan.in_order(reverse=r == 1):
                here = (images, piece.tokens)
                if r == 0:
                    projected[piece] = _project(x[here], in_weight, (inner, channels, heads))
                gate, xkq, dt = projected[piece]
                convolved, before = _short_conv(xkq, before, taps[r], conv_bias[r], reverse=r == 1)
                v, k, q = convolved.split(widths, dim=2)
                y, steps = torch.empty_like(gate), F.softplus(dt + dt_bias[r])
                inputs = (q, k, v.unflatten(2, (heads, -1)), steps, A[r], skip[r])
                state = scan.scan(piece, *inputs, state=state, out=y.unflatten(2, (heads, -1)), reverse=r == 1)
                lengths = torch.linalg.vector_norm(y.mul_(gate), dim=2, keepdim=True)
                y.mul_(lengths.square_().add_(inner * eps).rsqrt_())  # the norm over √E, which is in its weight
                if r == 0:
                    torch.mul(y, norm_weight[r], out=mixed[here])
                else:
                    mixed[here].addcmul_(y, norm_weight[r])
    return F.linear(mixed, out_weight)


def _project(x: Tensor, weight: Tensor, widths: tuple[int, int, int]) -> tuple[Tensor, ...]:
    """silu(gate), xkq and dt, each as wide as `widths` says."""
    inner, *rest = widths
    gate = F.silu(F.linear(x, weight[:inner]), inplace=True)
    return gate, *F.linear(x, weight[inner:]).split(rest, dim=2)


def _short_conv(x: Tensor, before: Tensor, taps: Tensor, bias: Tensor, *, reverse: bool) -> tuple[Tensor, Tensor]:
    """silu(conv(x) + bias), and the tokens before the next piece. `before` (B, W - 1, C) stands before x (B, L, C), in
    reverse behind it; taps (W, C), the last for the token itself."""
    length = x.shape[1]
    x = torch.cat([x, before] if reverse else [before, x], dim=1)
    out = torch.addcmul(bias, x[:, :length], taps[-1 if reverse else 0])
    for place in range(1, len(taps)):
        out.addcmul_(x[:, place : place + length], taps[-1 - place if reverse else place])
    return F.silu(out, inplace=True), x[:, : len(taps) - 1] if reverse else x[:, length:]
