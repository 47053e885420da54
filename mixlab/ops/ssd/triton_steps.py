"""From dt and A to the decays that the tile kernels read, and their gradients back.

`steps` holds planes (3 or 5, B, H, padded) in float32, in scan order, the last tile padded with the smallest dt:
the base-2 log decay from the tile's start to each token, the same less log2(dt), and dt.
So what token i reads of token j is exp2(steps[0, i] - steps[1, j]), and no kernel flips or sums anything.
Triangles have two more, of factors instead of logarithms: the decay from the block's start to each token, and what the
block's end has of it.
"""

# mypy: disallow-untyped-defs=False

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixlab.ops.ssd.tiling import Tiling
from mixlab.ops.triton_sums import add_up

LOG2_E = tl.constexpr(1.4426950408889634)
MIN_LOG2_DECAY = tl.constexpr(-57.7)  # e^-40, as in chunked.py: nothing beside 1, and the sums stay small and exact
MIN_DT = tl.constexpr(2.0**-64)  # stands for less, zero included: nothing beside 1, and gradients can be divided by it
STEP_HEADS = 16  # heads per program here: 64 bytes of a row of dt


class Flows(NamedTuple):
    """What tokens send and read, value times gradient: all that the gradients of dt, A and skip need."""

    sent: Tensor  # (B, H, padded, 4): to the token's own tile, its dy·v, to later tiles, and its dy·v again
    read: Tensor  # (2, B, H, padded): in the token's own tile, and from earlier ones (unset in the first tile)
    crossing: Tensor  # (B, tiles, H, N): what crosses the tile, before its decay (unset in the first and the last)


@triton.jit
def _positive(raw_ptr, bias_ptr, b, row, head, inside, raw_b, raw_l, raw_h, num_raw, RAW: tl.constexpr):
    """dt as given, or softplus(raw + bias) of raw steps that all directions share; and the derivative of that."""
    raw_ptr += b * raw_b + row.to(tl.int64) * raw_l + (head % num_raw).to(tl.int64) * raw_h
    raw = tl.load(raw_ptr, mask=inside, other=0.0).to(tl.float32)
    slope = tl.full(raw.shape, 1.0, tl.float32)
    if RAW:
        raw += tl.load(bias_ptr + head, mask=inside, other=0.0).to(tl.float32)
        slope = tl.sigmoid(raw)
        small = tl.exp(tl.minimum(raw, 20.0))
        grown = 1.0 + small
        log1p = tl.where(grown == 1.0, small, tl.log(grown) * (small / (grown - 1.0)))  # exact for small steps, too
        raw = tl.where(raw > 20.0, raw, log1p)
    return tl.maximum(tl.where(inside, raw, 0.0), MIN_DT), slope


@triton.jit
def _negative(A_ptr, head, H, RAW: tl.constexpr):
    """A as given, or -exp of its logarithm."""
    A = tl.load(A_ptr + head, mask=head < H, other=0.0).to(tl.float32)
    if RAW:
        A = -tl.exp(A)
    return A


@triton.jit(do_not_specialize=["L", "first_reverse"])
def _steps_kernel(
    raw_ptr, bias_ptr, A_ptr, steps_ptr, L, H, padded, first_reverse, plane, raw_b, raw_l, raw_h, num_raw,
    T: tl.constexpr, HEADS: tl.constexpr, RAW: tl.constexpr, FACTORS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0) * HEADS + tl.arange(0, HEADS)[None, :]
    b = tl.program_id(2).to(tl.int64)
    i = tl.program_id(1) * T + tl.arange(0, T)[:, None]
    row = tl.where(head >= first_reverse, L - 1 - i, i)
    inside = (i < L) & (head < H)
    dt, _ = _positive(raw_ptr, bias_ptr, b, row, head, inside, raw_b, raw_l, raw_h, num_raw, RAW)
    A = _negative(A_ptr, head, H, RAW)
    step = tl.maximum(dt * (A * LOG2_E), MIN_LOG2_DECAY)
    decay = tl.cumsum(step, 0)
    source = decay - tl.log2(dt)
    out_ptr = steps_ptr + (b * H + head) * padded + i
    valid = (i < padded) & (head < H)
    tl.store(out_ptr, decay, mask=valid)
    tl.store(out_ptr + plane, source, mask=valid)
    tl.store(out_ptr + 2 * tl.cast(plane, tl.int64), dt, mask=valid)
    if FACTORS:
        tl.store(out_ptr + 3 * tl.cast(plane, tl.int64), tl.exp2(decay), mask=valid)
        sends = tl.exp2(tl.sum(step, 0, keep_dims=True) - source)
        tl.store(out_ptr + 4 * tl.cast(plane, tl.int64), sends, mask=valid)


@triton.jit(do_not_specialize=["L", "first_reverse"])
def _steps_backward_kernel(
    steps_ptr, sent_ptr, read_ptr, crossing_ptr, raw_ptr, bias_ptr, A_ptr, draw_ptr, sums_ptr,
    L, H, padded, first_reverse, plane, raw_b, raw_l, raw_h, num_raw,
    T: tl.constexpr, N: tl.constexpr, HEADS: tl.constexpr, RAW: tl.constexpr,
):  # fmt: skip
    """The flows summed up: a step's decay scales all that goes from the tokens before it to it and later ones."""
    head = tl.program_id(0) * HEADS + tl.arange(0, HEADS)[None, :]
    tile = tl.program_id(1)
    num_tiles = tl.num_programs(1)
    b = tl.program_id(2).to(tl.int64)
    i = tile * T + tl.arange(0, T)[:, None]
    row = tl.where(head >= first_reverse, L - 1 - i, i)
    offset = (b * H + head) * padded + i
    inside = (i < padded) & (head < H)
    dt = tl.load(steps_ptr + 2 * tl.cast(plane, tl.int64) + offset, mask=inside, other=1.0)
    sent = tl.load(sent_ptr + 4 * offset, mask=inside, other=0.0)
    same = tl.load(sent_ptr + 4 * offset + 1, mask=inside, other=0.0)
    sent_on = tl.load(sent_ptr + 4 * offset + 2, mask=inside, other=0.0)
    read = tl.load(read_ptr + offset, mask=inside, other=0.0)
    read += tl.load(read_ptr + plane + offset, mask=inside & (i >= T), other=0.0)
    n = tl.arange(0, N)[:, None]
    partial = (b * num_tiles + tile) * H + head
    crossed = (head < H) & (n < tl.where((tile > 0) & (tile < num_tiles - 1), N, 0))
    crossing = tl.load(crossing_ptr + partial * N + n, mask=crossed, other=0.0)
    end = tl.minimum(tile * T + T, padded)
    whole = tl.load(steps_ptr + (b * H + head) * padded + end - 1, mask=head < H, other=0.0)
    dlog = tl.cumsum(read - sent, 0, reverse=True) + tl.cumsum(sent_on, 0) - sent_on
    dlog += tl.sum(crossing, 0, keep_dims=True) * tl.exp2(whole)
    A = _negative(A_ptr, head, H, RAW)
    dlog = tl.where(dt * (A * LOG2_E) > MIN_LOG2_DECAY, dlog, 0.0)
    inside = (i < L) & (head < H)
    _, slope = _positive(raw_ptr, bias_ptr, b, row, head, inside, raw_b, raw_l, raw_h, num_raw, RAW)
    draw = tl.where(inside, ((sent + sent_on) / dt + dlog * A) * slope, 0.0)
    tl.store(draw_ptr + (b * L + row) * H + head, draw, mask=inside)
    total = tl.num_programs(2) * num_tiles * H
    dA = tl.sum(dlog * dt, 0, keep_dims=True)
    if RAW:
        dA *= A
    tl.store(sums_ptr + partial, dA, mask=head < H)
    tl.store(sums_ptr + total + partial, tl.sum(same, 0, keep_dims=True), mask=head < H)
    if RAW:
        tl.store(sums_ptr + 2 * total + partial, tl.sum(draw, 0, keep_dims=True), mask=head < H)


def make_steps(dt: Tensor, A: Tensor, tiles: Tiling, *, num_reverse: int, bias: Tensor | None = None) -> Tensor:
    """dt (B, L, H) and A (H,) -> steps (3 or 5, B, H, padded) in float32.

    With a bias (H,) both are raw: dt (B, L, H or a divisor) becomes softplus(dt + bias), A becomes -exp(A).
    """
    batch, length, _ = dt.shape
    num_heads = A.shape[0]
    steps = torch.empty(tiles.num_planes, batch, num_heads, tiles.padded, dtype=torch.float32, device=dt.device)
    _steps_kernel[(-(-num_heads // STEP_HEADS), tiles.count, batch)](
        dt, bias, A, steps, length, num_heads, tiles.padded, num_heads - num_reverse, steps.stride(0),
        *dt.stride(), dt.shape[2], T=tiles.tile, HEADS=STEP_HEADS, RAW=bias is not None,
        FACTORS=tiles.is_triangle,
    )  # fmt: skip
    return steps


def steps_backward(
    steps: Tensor, flows: Flows, dt: Tensor, A: Tensor, tiles: Tiling, *, num_reverse: int, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Gradients in float32: of dt for every head (B, L, H); of A, skip and the bias, if there is one (2 or 3, H)."""
    if tiles.is_triangle:  # its flows are those of one tile
        tiles = Tiling(1 << (tiles.padded - 1).bit_length(), 0, tiles.padded)
    heads = STEP_HEADS if tiles.tile <= 64 else STEP_HEADS // 2  # in registers
    batch, length, _ = dt.shape
    num_heads = A.shape[0]
    ddt = torch.empty(batch, length, num_heads, dtype=torch.float32, device=dt.device)
    num_sums = 2 if bias is None else 3
    sums = torch.empty(num_sums, batch * tiles.count, num_heads, dtype=torch.float32, device=dt.device)
    _steps_backward_kernel[(-(-num_heads // heads), tiles.count, batch)](
        steps, *flows, dt, bias, A, ddt, sums, length, num_heads, tiles.padded, num_heads - num_reverse,
        steps.stride(0), *dt.stride(), dt.shape[2],
        T=tiles.tile, N=flows.crossing.shape[3], HEADS=heads, RAW=bias is not None,
    )  # fmt: skip
    return ddt, add_up(sums, dim=1)
