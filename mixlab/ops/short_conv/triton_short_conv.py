"""The short convolution with bias and SiLU for R directions in one pass over its input, and back in one pass.

The input is a slice x (B, L, C) of dense rows. The channels are three runs [values E | keys N | queries N]; what comes
out is dense per run: values (B, L, R E), keys and queries (B, L, R N). A program takes CHANNELS of one run.
"""

# mypy: disallow-untyped-defs=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixlab.ops.add_norm.triton_add_norm import row_unit

WIDTH = 4  # taps: the kernels keep a window of so many tokens in registers
SEGMENT = 128  # tokens per program, about


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


@triton.jit(do_not_specialize=["L", "segment_tokens"])
def _conv_forward_kernel(
    x_ptr, weight_ptr, bias_ptr, values_ptr, keys_ptr, queries_ptr, L, E, N, segment_tokens, x_units,
    R: tl.constexpr, CHANNELS: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """March over a segment: at front f the window x[f-3..f] gives token f from the left, token f-3 from the right."""
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
    a0, a1, a2, a3, a_bias = _taps(weight_ptr, bias_ptr, c)
    if R == 2:
        z0, z1, z2, z3, z_bias = _taps(weight_ptr, bias_ptr, C + c)
    x1 = tl.load(x_ptr + (begin - 3) * x_l, mask=c < tl.where(begin >= 3, C, 0), other=0.0).to(tl.float32)
    x2 = tl.load(x_ptr + (begin - 2) * x_l, mask=c < tl.where(begin >= 2, C, 0), other=0.0).to(tl.float32)
    x3 = tl.load(x_ptr + (begin - 1) * x_l, mask=c < tl.where(begin >= 1, C, 0), other=0.0).to(tl.float32)
    next_x = tl.load(x_ptr + begin * x_l)
    for ahead in tl.range(0, end - begin + 3 * (R - 1), loop_unroll_factor=4):
        front = begin + ahead
        x0, x1, x2 = x1, x2, x3
        x3 = next_x.to(tl.float32)
        next_x = tl.load(x_ptr + (front + 1) * x_l, mask=c < tl.where(front + 1 < L, C, 0), other=0.0)
        total = a_bias + a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
        out = (total * sigmoid(total)).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + front * out_l, out, mask=c < tl.where(front < end, C, 0))
        if R == 2:
            total = z_bias + z0 * x3 + z1 * x2 + z2 * x1 + z3 * x0
            out = (total * sigmoid(total)).to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + (front - 3) * out_l + width, out, mask=c < tl.where(front - 3 >= begin, C, 0))


@triton.jit
def _silu_backward(total, dout):
    opened = sigmoid(total)
    return dout * opened * (1.0 + total * (1.0 - opened))


@triton.jit(do_not_specialize=["L", "segment_tokens"])
def _conv_backward_kernel(
    x_ptr, weight_ptr, bias_ptr, dvalues_ptr, dkeys_ptr, dqueries_ptr, dx_ptr, partial_ptr,
    L, E, N, segment_tokens, x_units,
    R: tl.constexpr, CHANNELS: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """March over a segment. At front f the window x[f-3..f] gives the gradient before SiLU of token f from the left and
    of token f-3 from the right, and with the last four of each the gradient of x[f-3]."""
    channel = tl.program_id(0) * CHANNELS
    segment = tl.program_id(1)
    b = tl.program_id(2).to(tl.int64)
    c = channel + tl.arange(0, CHANNELS)
    C = E + 2 * N
    dout_ptr, inner, width = _run_of(channel, dvalues_ptr, dkeys_ptr, dqueries_ptr, E, N)
    dout_l = R * width
    dout_ptr += b * L * dout_l + inner + tl.arange(0, CHANNELS)
    x_l = x_units * UNIT
    x_ptr += b * L * x_l + c
    dx_ptr += b * L * x_l + c
    begin = segment * segment_tokens
    end = tl.minimum(begin + segment_tokens, L)

    a0, a1, a2, a3, a_bias = _taps(weight_ptr, bias_ptr, c)
    zero = tl.zeros((CHANNELS,), tl.float32)
    da0, da1, da2, da3, da_bias = zero, zero, zero, zero, zero
    if R == 2:
        z0, z1, z2, z3, z_bias = _taps(weight_ptr, bias_ptr, C + c)
    dz0, dz1, dz2, dz3, dz_bias = zero, zero, zero, zero, zero
    x1 = tl.load(x_ptr + (begin - 3) * x_l, mask=c < tl.where(begin >= 3, C, 0), other=0.0).to(tl.float32)
    x2 = tl.load(x_ptr + (begin - 2) * x_l, mask=c < tl.where(begin >= 2, C, 0), other=0.0).to(tl.float32)
    x3 = tl.load(x_ptr + (begin - 1) * x_l, mask=c < tl.where(begin >= 1, C, 0), other=0.0).to(tl.float32)
    # The gradients of tokens before the segment touch nothing that is stored. Any start will do but a shared constant:
    # Triton 3.6 takes registers that shift along from one constant for that constant.
    ga1, ga2, ga3 = x1, x2, x3
    gz1, gz2, gz3 = x1, x2, x3
    next_x = tl.load(x_ptr + begin * x_l)
    next_near = tl.load(dout_ptr + begin * dout_l)
    next_far = next_near
    if R == 2:
        next_far = tl.load(dout_ptr + (begin - 3) * dout_l + width, mask=c < tl.where(begin >= 3, C, 0), other=0.0)
    for ahead in tl.range(0, end + 3 - begin, loop_unroll_factor=4):
        front = begin + ahead
        behind = front - 3
        x0, x1, x2 = x1, x2, x3
        x3 = next_x.to(tl.float32)
        near = next_near.to(tl.float32)
        far = next_far.to(tl.float32)
        more = c < tl.where(front + 1 < L, C, 0)
        next_x = tl.load(x_ptr + (front + 1) * x_l, mask=more, other=0.0)
        next_near = tl.load(dout_ptr + (front + 1) * dout_l, mask=more, other=0.0)
        if R == 2:
            seen = c < tl.where((behind + 1 >= 0) & (behind + 1 < L), C, 0)
            next_far = tl.load(dout_ptr + (behind + 1) * dout_l + width, mask=seen, other=0.0)
        ga0, ga1, ga2 = ga1, ga2, ga3
        ga3 = _silu_backward(a_bias + a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3, near)
        mine = tl.where(front < end, ga3, 0.0)
        da0 += mine * x0
        da1 += mine * x1
        da2 += mine * x2
        da3 += mine * x3
        da_bias += mine
        dx = a3 * ga0 + a2 * ga1 + a1 * ga2 + a0 * ga3
        if R == 2:
            gz0, gz1, gz2 = gz1, gz2, gz3
            gz3 = _silu_backward(z_bias + z0 * x3 + z1 * x2 + z2 * x1 + z3 * x0, far)
            mine = tl.where(behind >= begin, gz3, 0.0)
            dz0 += mine * x3
            dz1 += mine * x2
            dz2 += mine * x1
            dz3 += mine * x0
            dz_bias += mine
            dx += z3 * gz3 + z2 * gz2 + z1 * gz1 + z0 * gz0
        tl.store(dx_ptr + behind * x_l, dx.to(dx_ptr.dtype.element_ty), mask=c < tl.where(behind >= begin, C, 0))
    partial_ptr += ((b * tl.num_programs(1) + segment) * R * C + c) * 5
    tl.store(partial_ptr, da0)
    tl.store(partial_ptr + 1, da1)
    tl.store(partial_ptr + 2, da2)
    tl.store(partial_ptr + 3, da3)
    tl.store(partial_ptr + 4, da_bias)
    if R == 2:
        partial_ptr += C * 5
        tl.store(partial_ptr, dz0)
        tl.store(partial_ptr + 1, dz1)
        tl.store(partial_ptr + 2, dz2)
        tl.store(partial_ptr + 3, dz3)
        tl.store(partial_ptr + 4, dz_bias)


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


def short_conv_backward(dvalues: Tensor, dqk: Tensor, x: Tensor, weight: Tensor, bias: Tensor, dx: Tensor) -> Tensor:
    """Gradient of weight and bias (R, C, W + 1; the bias last) in float32; that of x goes into `dx`, a slice like x."""
    batch, length, channels = x.shape
    directions = weight.shape[0]
    dqueries, dkeys = dqk
    state = dkeys.shape[-1]
    inner = channels - 2 * state
    segments = -(-length // SEGMENT)
    unit = row_unit(x)
    partial = torch.empty(batch * segments, directions, channels, WIDTH + 1, dtype=torch.float32, device=x.device)
    block = channel_block(inner, state)
    _conv_backward_kernel[(channels // block, segments, batch)](
        x, weight, bias, dvalues, dkeys, dqueries, dx, partial, length, inner, state, -(-length // segments),
        x.stride(1) // unit, R=directions, CHANNELS=block, UNIT=unit, num_warps=1, maxnreg=96,
    )  # fmt: skip
    return partial.sum(0)


def channel_block(inner: int, state: int) -> int:
    """Channels of one program: a power of two that divides both runs, 64 at most (a warp's 128 bytes in bfloat16)."""
    block = 64
    while inner % block or state % block:
        block //= 2
    return block
