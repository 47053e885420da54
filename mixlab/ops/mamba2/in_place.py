"""The mixer of `reference.py` on a CPU where no gradient is recorded: some images, or a piece of one, at a time: these
stay in the cache. Large tensors would go through memory once for every step, on pages that the C library maps anew."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mixlab.ops.ssd.chunked import chunk_length
from mixlab.ops.ssd.in_place import block_scans, make_steps, takes


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
    (directions, heads), (_, inner), (_, channels, width) = A_log.shape, norm_weight.shape, conv_weight.shape
    widths = (inner, (channels - inner) // 2, (channels - inner) // 2)  # of v, k, q
    gate_weight, xkq_weight, dt_weight, _ = in_weight.tensor_split((inner, inner + channels, inner + channels + heads))
    taps, A, norm_weight = conv_weight.mT.contiguous(), -A_log.exp(), norm_weight * (inner**0.5 / directions)
    skip, chunk = skip.unsqueeze(2).repeat(1, 1, head_dim), chunk_length(x.shape[1])
    raw = F.linear(x, dt_weight)
    steps = [make_steps(F.softplus(raw + dt_bias[r]), A[r], chunk, reverse=r == 1) for r in range(directions)]
    out, kept = x.new_empty(*x.shape[:2], len(out_weight)), (inner, channels, inner)
    for images, scan in block_scans(x, heads, head_dim, widths[1], chunk, kept=kept, used=channels):
        for r in range(directions):
            state, before = None, None if len(scan.pieces) == 1 else x.new_zeros(scan.num_images, width - 1, channels)
            for piece in scan.in_order(reverse=r == 1):
                here, (gate, xkq, mixed) = (images, piece.tokens), scan.kept[piece]
                if r == 0:
                    F.silu(torch.matmul(x[here], gate_weight.mT, out=gate), inplace=True)
                    torch.matmul(x[here], xkq_weight.mT, out=xkq)
                convolved = scan.buffers[piece[1:]].used
                before = _short_conv(xkq, before, taps[r], conv_bias[r], out=convolved, reverse=r == 1)
                v, k, q = convolved.split(widths, dim=2)
                inputs = (q, k, v.unflatten(2, (heads, -1)), steps[r], skip[r])
                y, state = scan.scan(piece, *inputs, images=images, state=state, reverse=r == 1)
                y = y.flatten(3)
                lengths = torch.linalg.vector_norm(y.mul_(piece.cut(gate)), dim=3, keepdim=True)
                y.mul_(lengths.square_().add_(inner * eps).rsqrt_())  # the norm over √E, which is in its weight
                if r == 0:
                    torch.mul(y, norm_weight[r], out=piece.cut(mixed))
                else:
                    piece.cut(mixed).addcmul_(y, norm_weight[r])
                if r == directions - 1:
                    if (tokens := out[here]).is_contiguous():
                        torch.matmul(mixed, out_weight.mT, out=tokens)
                    else:  # a part of several images
                        tokens.copy_(F.linear(mixed, out_weight))
    return out


def _short_conv(
    x: Tensor, before: Tensor | None, taps: Tensor, bias: Tensor, *, out: Tensor, reverse: bool
) -> Tensor | None:
    """silu(conv(x) + bias), and the tokens before the next piece. `before` (B, W - 1, C) stands before x (B, L, C), in
    reverse behind it; taps (W, C), the last for the token itself."""
    length, kept = x.shape[1], len(taps) - 1
    torch.addcmul(bias, x, taps[-1], out=out)
    for back in range(1, len(taps)):
        earlier, later = (slice(back, None), slice(-back)) if reverse else (slice(-back), slice(back, None))
        out[:, later].addcmul_(x[:, earlier], taps[-1 - back])
        if before is not None:
            num = min(back, length)
            edge, seen = (slice(length - num, None), back - num) if reverse else (slice(num), kept - back)
            out[:, edge].addcmul_(before[:, seen : seen + num], taps[-1 - back])
    F.silu(out, inplace=True)
    if before is None:
        return None
    before = torch.cat([x[:, :kept], before] if reverse else [before, x[:, -kept:]], dim=1)
    return before[:, :kept] if reverse else before[:, -kept:]
