"""The scan, backward, across the borders of tiles: gradients of states, and what they give to q and k.

Border s lies behind tile s of the scan order: `states[s]` is what tile s + 1 starts from, `dstates[s]` its gradient.
"""

# mypy: disallow-untyped-defs=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixlab.ops.ssd.tiling import Tiling
from mixlab.ops.ssd.triton_launch import dot_precision, launch


@triton.jit
def _carry(
    q_ptr, dy_ptr, steps_ptr, carried, first, rest, q_l, dy_l,
    T: tl.constexpr, N: tl.constexpr, P: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of the state before a tile of `rest` tokens, from that behind it and of the tile's outputs."""
    i = tl.arange(0, T)
    row = i[:, None]
    inside = row < rest
    start = tl.cast(first, tl.int64)
    q = tl.load(q_ptr + start * q_l + row * q_l + tl.arange(0, N), mask=inside, other=0.0)
    dy = tl.load(dy_ptr + start * dy_l + row * dy_l + tl.arange(0, P), mask=inside, other=0.0)
    whole = tl.load(steps_ptr + first + T - 1)
    fed = (dy * tl.exp2(tl.load(steps_ptr + first + i))[:, None]).to(dy.dtype)
    return tl.dot(tl.trans(q), fed, carried * tl.exp2(whole), input_precision=PRECISION)


@triton.jit(do_not_specialize=["L", "group_heads", "first_reverse"])
def _dstates_kernel(
    q_ptr, dy_ptr, steps_ptr, states_ptr, dstates_ptr, crossing_ptr,
    L, H, group_heads, first_reverse, q_b, q_l, q_g,
    T: tl.constexpr, TAIL: tl.constexpr, N: tl.constexpr, P: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """From the last tile back: the gradient of every state, and its product with the state one tile earlier."""
    head = tl.program_id(0).to(tl.int64)
    b = tl.program_id(1).to(tl.int64)
    group = head // group_heads
    reverse = head >= first_reverse
    begin = tl.where(reverse, L - 1, 0).to(tl.int64)
    step = tl.where(reverse, -1, 1)
    full = L // T
    num_tiles = full
    if TAIL > 0:
        num_tiles = full + 1
    q_ptr += b * q_b + group * q_g + begin * q_l
    dy_ptr += (b * L + begin) * H * P + head * P
    steps_ptr += (b * H + head) * (full * T + TAIL)
    n = tl.arange(0, N)
    slot = (b * H + head) * full * (N * P) + n[:, None] * P + tl.arange(0, P)
    tile_heads = tl.cast(H, tl.int64) * N
    crossing_ptr += b * num_tiles * tile_heads + head * N + n
    carried = tl.zeros((N, P), tl.float32)
    if TAIL > 0:
        before = tl.load(states_ptr + slot + tl.maximum(full - 2, 0) * (N * P))
        carried = _carry(
            q_ptr, dy_ptr, steps_ptr, carried, full * T, L - full * T, step * q_l, step * H * P, TAIL, N, P, PRECISION
        )
        tl.store(dstates_ptr + slot + (full - 1) * (N * P), carried.to(dstates_ptr.dtype.element_ty))
        tl.store(crossing_ptr + (full - 1) * tile_heads, tl.sum(carried * before, 1))
    for back in range(1, full):
        tile = full - back
        before = tl.load(states_ptr + slot + tl.maximum(tile - 2, 0) * (N * P))
        carried = _carry(q_ptr, dy_ptr, steps_ptr, carried, tile * T, T, step * q_l, step * H * P, T, N, P, PRECISION)
        tl.store(dstates_ptr + slot + (tile - 1) * (N * P), carried.to(dstates_ptr.dtype.element_ty))
        tl.store(crossing_ptr + (tile - 1) * tile_heads, tl.sum(carried * before, 1))


@triton.jit
def _queries_tile(
    q_ptr, dy_ptr, steps_ptr, states_ptr, dq_ptr, read_ptr, first, border, first_head, heads, L, padded, full,
    q_l, y_l, dq_l,
    T: tl.constexpr, N: tl.constexpr, P: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add to dq what a tile's tokens read from before the tile, summed over several heads."""
    i = tl.arange(0, T)
    n = tl.arange(0, N)
    p = tl.arange(0, P)
    row = i[:, None]
    inside = first + row < L
    start = tl.cast(first, tl.int64)
    dy_ptr += start * y_l
    steps_ptr += first
    read_ptr += first
    y_offset = row * y_l + p
    q = tl.load(q_ptr + start * q_l + row * q_l + n, mask=inside, other=0.0)
    dq = tl.zeros((T, N), tl.float32)
    last_head = first_head + heads - 1
    decay = tl.load(steps_ptr + first_head * padded + i)
    for head in range(first_head, first_head + heads):
        dy = tl.load(dy_ptr + head * P + y_offset, mask=inside, other=0.0)
        before = tl.load(states_ptr + (tl.cast(head, tl.int64) * full + border) * (N * P) + n[:, None] * P + p)
        next_decay = tl.load(steps_ptr + tl.minimum(head + 1, last_head) * padded + i)
        got = tl.dot(dy, tl.trans(before), input_precision=PRECISION) * tl.exp2(decay)[:, None]
        tl.store(read_ptr + head * padded + i, tl.sum(got * q, 1))
        dq += got
        decay = next_decay
    dq_ptr += start * dq_l + row * dq_l + n
    dq += tl.load(dq_ptr, mask=inside, other=0.0)
    tl.store(dq_ptr, dq.to(dq_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _keys_tile(
    v_ptr, steps_ptr, dstates_ptr, dk_ptr, border, first_head, heads, padded, full, plane, v_l, v_h, dk_l,
    T: tl.constexpr, N: tl.constexpr, P: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add to dk what a tile's tokens send behind the tile, summed over several heads."""
    i = tl.arange(0, T)
    n = tl.arange(0, N)
    p = tl.arange(0, P)
    row = i[:, None]
    start = tl.cast(border, tl.int64) * T
    v_ptr += start * v_l
    steps_ptr += start
    v_offset = row * v_l + p
    dk = tl.zeros((T, N), tl.float32)
    last_head = first_head + heads - 1
    source = tl.load(steps_ptr + plane + first_head * padded + i)
    whole = tl.load(steps_ptr + first_head * padded + T - 1)
    for head in range(first_head, first_head + heads):
        v = tl.load(v_ptr + head * v_h + v_offset)
        dafter = tl.load(dstates_ptr + (tl.cast(head, tl.int64) * full + border) * (N * P) + n[:, None] * P + p)
        following = tl.minimum(head + 1, last_head) * padded
        next_source = tl.load(steps_ptr + plane + following + i)
        next_whole = tl.load(steps_ptr + following + T - 1)
        dk += tl.dot(v, tl.trans(dafter), input_precision=PRECISION) * tl.exp2(whole - source)[:, None]
        source = next_source
        whole = next_whole
    dk_ptr += start * dk_l + row * dk_l + n
    dk += tl.load(dk_ptr)
    tl.store(dk_ptr, dk.to(dk_ptr.dtype.element_ty))


@triton.jit(do_not_specialize=["L", "group_heads", "first_reverse", "heads"])
def _across_kernel(
    q_ptr, v_ptr, dy_ptr, steps_ptr, states_ptr, dstates_ptr, dq_ptr, dk_ptr, read_ptr,
    L, H, group_heads, first_reverse, heads, padded, plane, q_b, q_l, q_g, v_b, v_l, v_h, dq_s, dq_b, dq_l, dq_g,
    T: tl.constexpr, LAST_T: tl.constexpr, N: tl.constexpr, P: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One border of several heads: add to dk of the tile before it; the odd programs, to dq of the tile behind it."""
    first_head = tl.program_id(0) // 2 * heads
    border = tl.program_id(1)
    b = tl.program_id(2).to(tl.int64)
    full = L // T
    group = (first_head // group_heads).to(tl.int64)
    reverse = first_head >= first_reverse
    begin = tl.where(reverse, L - 1, 0).to(tl.int64)
    step = tl.where(reverse, -1, 1)
    dqk = (first_head % group_heads // heads).to(tl.int64) * dq_s + b * dq_b + group * dq_g + begin * dq_l
    steps_ptr += b * H * padded
    dstates_ptr += b * H * full * (N * P)
    states_ptr += b * H * full * (N * P)
    if tl.program_id(0) % 2 == 0:
        _keys_tile(
            v_ptr + b * v_b + begin * v_l, steps_ptr, dstates_ptr, dk_ptr + dqk, border, first_head, heads, padded,
            full, plane, step * v_l, v_h, step * dq_l, T, N, P, PRECISION,
        )  # fmt: skip
    else:
        q_ptr += b * q_b + group * q_g + begin * q_l
        dy_ptr += (b * L + begin) * H * P
        read_ptr += plane + b * H * padded
        first = border * T + T
        if border < tl.num_programs(1) - 1:
            _queries_tile(
                q_ptr, dy_ptr, steps_ptr, states_ptr, dq_ptr + dqk, read_ptr, first, border, first_head, heads, L,
                padded, full, step * q_l, step * H * P, step * dq_l, T, N, P, PRECISION,
            )  # fmt: skip
        else:
            _queries_tile(
                q_ptr, dy_ptr, steps_ptr, states_ptr, dq_ptr + dqk, read_ptr, first, border, first_head, heads, L,
                padded, full, step * q_l, step * H * P, step * dq_l, LAST_T, N, P, PRECISION,
            )  # fmt: skip


def state_gradients(
    q: Tensor, dy: Tensor, steps: Tensor, states: Tensor, crossing: Tensor, tiles: Tiling, *, num_reverse: int
) -> Tensor:
    """The gradients of the states (B, H, tiles, N, P), and into `crossing` what passes whole tiles; dy dense."""
    batch, length, num_heads, width = dy.shape
    dstates = torch.empty(states.shape, dtype=states.dtype, device=states.device)
    launch(
        _dstates_kernel, (num_heads, batch),
        q, dy, steps, states, dstates, crossing, length, num_heads, num_heads // q.shape[2], num_heads - num_reverse,
        *q.stride()[:3], T=tiles.tile, TAIL=tiles.tail, N=q.shape[3], P=width, PRECISION=dot_precision(q.dtype),
        num_warps=4,
    )  # fmt: skip
    return dstates


def add_across(
    q: Tensor, v: Tensor, dy: Tensor, steps: Tensor, states: Tensor, dstates: Tensor, dqk: Tensor, read: Tensor,
    tiles: Tiling, *, heads: int, num_reverse: int,
) -> None:  # fmt: skip
    """Add to dqk (2, shares, B, L, G, N) what goes between tiles, `heads` to a share; note in `read` what is read."""
    batch, length, num_heads, width = v.shape
    launch(
        _across_kernel, (2 * num_heads // heads, tiles.count - 1, batch),
        q, v, dy, steps, states, dstates, *dqk, read, length, num_heads, num_heads // q.shape[2],
        num_heads - num_reverse, heads, tiles.padded, steps.stride(0), *q.stride()[:3], *v.stride()[:3],
        *dqk.stride()[1:5], T=tiles.tile, LAST_T=tiles.tail or tiles.tile, N=q.shape[3], P=width,
        PRECISION=dot_precision(q.dtype), num_warps=4,
    )  # fmt: skip
