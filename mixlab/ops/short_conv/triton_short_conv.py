"""The short convolution with bias and SiLU for R directions in one pass over its input, and back in one pass.

The input is a slice x (B, L, C) of dense rows. The channels are three runs [values E | keys N | queries N]; what comes
out is dense per run: values (B, L, R E), keys and queries (B, L, R N). A program takes CHANNELS of one run.
"""

# mypy: disallow-untyped-defs=False
# ruff: noqa: RUF005

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixlab.ops.add_norm.triton_add_norm import row_unit
from mixlab.ops.short_conv.cuda_short_conv import march_backward, march_takes
from mixlab.ops.triton_sums import add_up

WIDTH = 4  # taps: the kernels keep a window of so many tokens in registers
SEGMENT = 256  # tokens per program, about
AHEAD = 4  # rows that the backward pass loads ahead, of each of its three inputs
BACKWARD_REGISTERS = 128


@triton.jit
def _run_of(channel, values_ptr, keys_ptr, queries_ptr, E, N):
    """Where a channel's run lives: its tensor, the channel inside it, and the width of a direction."""
    pointer = values_ptr
    if channel >= E + N:
        pointer = queries_ptr
    elif channel >= E:
        pointer = keys_ptr
    inner = channel - tl.where(channel >= E + N, E + N, tl.where(channel >= E, E, 0))
    return pointer, inner, tl.where(channel >= E, N, E)


@triton.jit
def _taps(weight_ptr, bias_ptr, c):
    """Four weights and the bias of each channel."""
    w0 = tl.load(weight_ptr + c * 4).to(tl.float32)
    w1 = tl.load(weight_ptr + c * 4 + 1).to(tl.float32)
    w2 = tl.load(weight_ptr + c * 4 + 2).to(tl.float32)
    w3 = tl.load(weight_ptr + c * 4 + 3).to(tl.float32)
    return w0, w1, w2, w3, tl.load(bias_ptr + c).to(tl.float32)


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)), the division by a reciprocal root: fewer instructions, as exact."""
    grown = 1.0 + tl.exp2(x * -1.4426950408889634)
    return tl.rsqrt(grown * grown)


@triton.jit
def _convolved(taps, x0, x1, x2, x3):
    """Four taps and the bias."""
    a0, a1, a2, a3, bias = taps
    return bias + a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3


@triton.jit
def _silu(total):
    return total * sigmoid(total)


@triton.jit(do_not_specialize=["L", "segment_tokens"])
def _conv_forward_kernel(
    x_ptr, weight_ptr, bias_ptr, values_ptr, keys_ptr, queries_ptr, L, E, N, segment_tokens, x_units,
    R: tl.constexpr, CHANNELS: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """March over a segment: at front f the window x[f-3..f] gives token f from the left, token f-3 from the right.

    Four fronts at a time, loaded four ahead, none of them masked; before and behind them one at a time.
    """
    channel = tl.program_id(0) * CHANNELS
    b = tl.program_id(2).to(tl.int64)
    c = channel + tl.arange(0, CHANNELS)
    C = E + 2 * N
    out_ptr, inner, width = _run_of(channel, values_ptr, keys_ptr, queries_ptr, E, N)
    out_l = R * width
    out_ptr += b * L * out_l + inner + tl.arange(0, CHANNELS)
    x_l = x_units * UNIT
    x_ptr += b * L * x_l + c
    begin = tl.program_id(1) * segment_tokens
    end = tl.minimum(begin + segment_tokens, L)
    a = _taps(weight_ptr, bias_ptr, c)
    z = a
    if R == 2:
        z = _taps(weight_ptr, bias_ptr, C + c)
    x1 = tl.load(x_ptr + (begin - 3) * x_l, mask=c < tl.where(begin >= 3, C, 0), other=0.0).to(tl.float32)
    x2 = tl.load(x_ptr + (begin - 2) * x_l, mask=c < tl.where(begin >= 2, C, 0), other=0.0).to(tl.float32)
    x3 = tl.load(x_ptr + (begin - 1) * x_l, mask=c < tl.where(begin >= 1, C, 0), other=0.0).to(tl.float32)
    following = tl.load(x_ptr + begin * x_l)
    first = begin + 3 * (R - 1)  # from here on, tokens of both directions lie in the segment
    num_fours = tl.maximum(end - first, 0) // 4
    for front in range(begin, tl.minimum(first, end)):
        x0, x1, x2 = x1, x2, x3
        x3 = following.to(tl.float32)
        following = tl.load(x_ptr + tl.minimum(front + 1, L - 1) * x_l)
        tl.store(out_ptr + front * out_l, _silu(_convolved(a, x0, x1, x2, x3)).to(out_ptr.dtype.element_ty))
    next0 = following
    next1 = tl.load(x_ptr + tl.minimum(first + 1, L - 1) * x_l)
    next2 = tl.load(x_ptr + tl.minimum(first + 2, L - 1) * x_l)
    next3 = tl.load(x_ptr + tl.minimum(first + 3, L - 1) * x_l)
    for four in range(num_fours):
        front = first + 4 * four
        x4, x5, x6, x7 = next0.to(tl.float32), next1.to(tl.float32), next2.to(tl.float32), next3.to(tl.float32)
        next0 = tl.load(x_ptr + tl.minimum(front + 4, L - 1) * x_l)
        next1 = tl.load(x_ptr + tl.minimum(front + 5, L - 1) * x_l)
        next2 = tl.load(x_ptr + tl.minimum(front + 6, L - 1) * x_l)
        next3 = tl.load(x_ptr + tl.minimum(front + 7, L - 1) * x_l)
        near_ptr = out_ptr + front * out_l
        tl.store(near_ptr, _silu(_convolved(a, x1, x2, x3, x4)).to(out_ptr.dtype.element_ty))
        tl.store(near_ptr + out_l, _silu(_convolved(a, x2, x3, x4, x5)).to(out_ptr.dtype.element_ty))
        tl.store(near_ptr + 2 * out_l, _silu(_convolved(a, x3, x4, x5, x6)).to(out_ptr.dtype.element_ty))
        tl.store(near_ptr + 3 * out_l, _silu(_convolved(a, x4, x5, x6, x7)).to(out_ptr.dtype.element_ty))
        if R == 2:
            far_ptr = out_ptr + (front - 3) * out_l + width
            tl.store(far_ptr, _silu(_convolved(z, x4, x3, x2, x1)).to(out_ptr.dtype.element_ty))
            tl.store(far_ptr + out_l, _silu(_convolved(z, x5, x4, x3, x2)).to(out_ptr.dtype.element_ty))
            tl.store(far_ptr + 2 * out_l, _silu(_convolved(z, x6, x5, x4, x3)).to(out_ptr.dtype.element_ty))
            tl.store(far_ptr + 3 * out_l, _silu(_convolved(z, x7, x6, x5, x4)).to(out_ptr.dtype.element_ty))
        x1, x2, x3 = x5, x6, x7
    for front in range(tl.minimum(first, end) + 4 * num_fours, end + 3 * (R - 1)):
        x0, x1, x2 = x1, x2, x3
        x3 = tl.load(x_ptr + front * x_l, mask=c < tl.where(front < L, C, 0), other=0.0).to(tl.float32)
        near = _silu(_convolved(a, x0, x1, x2, x3)).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + front * out_l, near, mask=c < tl.where(front < end, C, 0))
        if R == 2:
            far = _silu(_convolved(z, x3, x2, x1, x0)).to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + (front - 3) * out_l + width, far, mask=c < tl.where(front - 3 >= begin, C, 0))


@triton.jit
def _silu_backward(total, dout):
    opened = sigmoid(total)
    return dout * opened * (1.0 + total * (1.0 - opened))


@triton.jit
def _add_taps(sums, gradient, x0, x1, x2, x3):
    s0, s1, s2, s3, s_bias = sums
    return s0 + gradient * x0, s1 + gradient * x1, s2 + gradient * x2, s3 + gradient * x3, s_bias + gradient


@triton.jit
def _front_rows(x_ptr, near_ptr, far_ptr, front, x_l, dout_l, L, R: tl.constexpr):
    """What front f reads: x and its gradient from the left, and the gradient of token f-3 from the right.

    Rows before the first or behind the last token are read as these: what is made of them is left out.
    """
    row = tl.minimum(front, L - 1)
    x = tl.load(x_ptr + row * x_l)
    near = tl.load(near_ptr + row * dout_l)
    far = near
    if R == 2:
        far = tl.load(far_ptr + tl.minimum(tl.maximum(front - 3, 0), L - 1) * dout_l)
    return x, near, far


@triton.jit
def _one_front(
    dx_ptr, rows, window, ga, gz, da, dz, a, z, front, begin, end, x_l, L, C, c, R: tl.constexpr
):  # fmt: skip
    """The general step: masks whatever lies outside the segment."""
    x0, x1, x2 = window
    ga0, ga1, ga2 = ga
    gz0, gz1, gz2 = gz
    x, near, far = rows
    x3 = tl.where(front < L, x.to(tl.float32), 0.0)
    ga3 = tl.where(front < L, _silu_backward(_convolved(a, x0, x1, x2, x3), near.to(tl.float32)), 0.0)
    da = _add_taps(da, tl.where(front < end, ga3, 0.0), x0, x1, x2, x3)
    a0, a1, a2, a3, _ = a
    dx = a3 * ga0 + a2 * ga1 + a1 * ga2 + a0 * ga3
    gz3 = gz2
    if R == 2:
        gz3 = tl.where(front >= 3, _silu_backward(_convolved(z, x3, x2, x1, x0), far.to(tl.float32)), 0.0)
        dz = _add_taps(dz, tl.where(front - 3 >= begin, gz3, 0.0), x3, x2, x1, x0)
        z0, z1, z2, z3, _ = z
        dx += z3 * gz3 + z2 * gz2 + z1 * gz1 + z0 * gz0
    tl.store(dx_ptr + (front - 3) * x_l, dx.to(dx_ptr.dtype.element_ty), mask=c < tl.where(front - 3 >= begin, C, 0))
    return (x1, x2, x3), (ga1, ga2, ga3), (gz1, gz2, gz3), da, dz


@triton.jit
def _inner_front(dx_ptr, rows, window, ga, gz, da, dz, a, z, front, x_l, R: tl.constexpr):
    """The same where all lies inside."""
    x0, x1, x2 = window
    ga0, ga1, ga2 = ga
    gz0, gz1, gz2 = gz
    x, near, far = rows
    x3 = x.to(tl.float32)
    ga3 = _silu_backward(_convolved(a, x0, x1, x2, x3), near.to(tl.float32))
    da = _add_taps(da, ga3, x0, x1, x2, x3)
    a0, a1, a2, a3, _ = a
    dx = a3 * ga0 + a2 * ga1 + a1 * ga2 + a0 * ga3
    gz3 = gz2
    if R == 2:
        gz3 = _silu_backward(_convolved(z, x3, x2, x1, x0), far.to(tl.float32))
        dz = _add_taps(dz, gz3, x3, x2, x1, x0)
        z0, z1, z2, z3, _ = z
        dx += z3 * gz3 + z2 * gz2 + z1 * gz1 + z0 * gz0
    tl.store(dx_ptr + (front - 3) * x_l, dx.to(dx_ptr.dtype.element_ty))
    return (x1, x2, x3), (ga1, ga2, ga3), (gz1, gz2, gz3), da, dz


@triton.jit(do_not_specialize=["L", "segment_tokens"])
def _conv_backward_kernel(
    x_ptr, weight_ptr, bias_ptr, dvalues_ptr, dkeys_ptr, dqueries_ptr, dx_ptr, partial_ptr,
    L, E, N, segment_tokens, x_units,
    R: tl.constexpr, CHANNELS: tl.constexpr, UNIT: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """March over a segment. At front f the window x[f-3..f] gives the gradient before SiLU of token f from the left and
    of token f-3 from the right, and with the last four of each the gradient of x[f-3].

    AHEAD fronts at a time, loaded so many ahead, none of them masked; before and behind them one at a time."""
    channel = tl.program_id(0) * CHANNELS
    segment = tl.program_id(1)
    b = tl.program_id(2).to(tl.int64)
    c = channel + tl.arange(0, CHANNELS)
    C = E + 2 * N
    dout_ptr, inner, width = _run_of(channel, dvalues_ptr, dkeys_ptr, dqueries_ptr, E, N)
    dout_l = R * width
    near_ptr = dout_ptr + b * L * dout_l + inner + tl.arange(0, CHANNELS)
    far_ptr = near_ptr + width
    x_l = x_units * UNIT
    x_ptr += b * L * x_l + c
    dx_ptr += b * L * x_l + c
    begin = segment * segment_tokens
    end = tl.minimum(begin + segment_tokens, L)

    a = _taps(weight_ptr, bias_ptr, c)
    z = a
    if R == 2:
        z = _taps(weight_ptr, bias_ptr, C + c)
    zero = tl.zeros((CHANNELS,), tl.float32)
    da = (zero, zero, zero, zero, zero)
    dz = (zero, zero, zero, zero, zero)
    x1 = tl.load(x_ptr + (begin - 3) * x_l, mask=c < tl.where(begin >= 3, C, 0), other=0.0).to(tl.float32)
    x2 = tl.load(x_ptr + (begin - 2) * x_l, mask=c < tl.where(begin >= 2, C, 0), other=0.0).to(tl.float32)
    x3 = tl.load(x_ptr + (begin - 1) * x_l, mask=c < tl.where(begin >= 1, C, 0), other=0.0).to(tl.float32)
    window = (x1, x2, x3)
    # The gradients of tokens before the segment touch nothing that is stored. Any start will do but a shared constant:
    # Triton 3.6 takes registers that shift along from one constant for that constant.
    ga, gz = window, window
    following = _front_rows(x_ptr, near_ptr, far_ptr, begin, x_l, dout_l, L, R)
    first = tl.minimum(begin + 3, end)  # from here on, tokens of both directions lie in the segment
    num_inner = (end - first) // AHEAD
    for front in range(begin, first):
        rows = following
        following = _front_rows(x_ptr, near_ptr, far_ptr, front + 1, x_l, dout_l, L, R)
        window, ga, gz, da, dz = _one_front(
            dx_ptr, rows, window, ga, gz, da, dz, a, z, front, begin, end, x_l, L, C, c, R
        )  # fmt: skip
    ahead = (following,)
    for more in tl.static_range(1, AHEAD):
        ahead = ahead + (_front_rows(x_ptr, near_ptr, far_ptr, first + more, x_l, dout_l, L, R),)
    for block in range(num_inner):
        front = first + block * AHEAD
        rows = ahead
        ahead = ()
        for more in tl.static_range(AHEAD):
            ahead = ahead + (_front_rows(x_ptr, near_ptr, far_ptr, front + AHEAD + more, x_l, dout_l, L, R),)
        for more in tl.static_range(AHEAD):
            window, ga, gz, da, dz = _inner_front(
                dx_ptr, rows[more], window, ga, gz, da, dz, a, z, front + more, x_l, R
            )  # fmt: skip
    for front in range(first + num_inner * AHEAD, end + 3):
        rows = _front_rows(x_ptr, near_ptr, far_ptr, front, x_l, dout_l, L, R)
        window, ga, gz, da, dz = _one_front(
            dx_ptr, rows, window, ga, gz, da, dz, a, z, front, begin, end, x_l, L, C, c, R
        )  # fmt: skip
    partial_ptr += ((b * tl.num_programs(1) + segment) * R * C + c) * 5
    for tap in tl.static_range(5):
        tl.store(partial_ptr + tap, da[tap])
        if R == 2:
            tl.store(partial_ptr + C * 5 + tap, dz[tap])


def short_conv_forward(x: Tensor, weight: Tensor, bias: Tensor, state: int) -> tuple[Tensor, Tensor, Tensor]:
    """x (B, L, C), weight (R, C, W), bias (R, C) -> values (B, L, R E), keys and queries (B, L, R N)."""
    batch, length, channels = x.shape
    directions = weight.shape[0]
    inner = channels - 2 * state
    widths = (inner, state, state)
    outs = [torch.empty(batch, length, directions * w, dtype=x.dtype, device=x.device) for w in widths]
    block = channel_block(inner, state)
    segments = -(-length // SEGMENT)
    unit = row_unit(x)
    _conv_forward_kernel[(channels // block, segments, batch)](
        x, weight, bias, *outs, length, inner, state, -(-length // segments), x.stride(1) // unit,
        R=directions, CHANNELS=block, UNIT=unit, num_warps=1,
    )  # fmt: skip
    values, keys, queries = outs
    return values, keys, queries


def short_conv_backward(
    dvalues: Tensor, dqk: Tensor, x: Tensor, weight: Tensor, bias: Tensor, dx: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of weight (R, C, W) and bias (R, C) in float32; that of x goes into `dx`, a slice like x."""
    batch, length, channels = x.shape
    directions = weight.shape[0]
    dqueries, dkeys = dqk
    state = dkeys.shape[-1]
    if march_takes(x, dx, directions=directions, state=state):
        return march_backward(dvalues, dqk, x, weight, bias, dx)
    inner = channels - 2 * state
    segments = -(-length // SEGMENT)
    unit = row_unit(x)
    partial = torch.empty(batch * segments, directions, channels, WIDTH + 1, dtype=torch.float32, device=x.device)
    block = channel_block(inner, state)
    _conv_backward_kernel[(channels // block, segments, batch)](
        x, weight, bias, dvalues, dkeys, dqueries, dx, partial, length, inner, state, -(-length // segments),
        x.stride(1) // unit, R=directions, CHANNELS=block, UNIT=unit, AHEAD=AHEAD,
        num_warps=1, maxnreg=BACKWARD_REGISTERS,
    )  # fmt: skip
    dtaps = add_up(partial)
    return dtaps[..., :-1], dtaps[..., -1]


def channel_block(inner: int, state: int) -> int:
    """Channels of one program: a power of two that divides both runs, 64 at most (a warp's 128 bytes in bfloat16)."""
    block = 64
    while inner % block or state % block:
        block //= 2
    return block
