"""The scan, backward, as Triton kernels: every tile on its own; what crosses their borders is in `triton_across.py`.

Transposed matrices have the source token j as row and the reading token i as column.
"""

# mypy: disallow-untyped-defs=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixlab.ops.ssd.cuda_triangle import triangle_backward
from mixlab.ops.ssd.tiling import Tiling
from mixlab.ops.ssd.triton_across import add_across, state_gradients
from mixlab.ops.ssd.triton_launch import dot_precision, heads_per_program, launch, rows_dense, warps_of_tile
from mixlab.ops.ssd.triton_pair import pair_backward
from mixlab.ops.ssd.triton_steps import Flows
from mixlab.ops.ssd.triton_tile import flows_inside

SUM_BLOCK = 2048  # numbers that a program of `_sum_shares_kernel` adds up


@triton.jit
def _values_tile(
    pointers, order, strides, first, border,
    T: tl.constexpr, N: tl.constexpr, P: tl.constexpr, AFTER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of several heads of one group: dv, and what flows inside it. AFTER: whether tiles follow.

    The gradient of the decays is left as flows, `triton_steps` sums them up: sums across threads are dear here.
    """
    q_ptr, k_ptr, v_ptr, dy_ptr, steps_ptr, skip_ptr, dstates_ptr, dq_ptr, dk_ptr, dv_ptr, sent_ptr, read_ptr = pointers
    L, first_head, heads, padded, full, plane = order
    q_l, k_l, v_l, v_h, y_l, dq_l = strides
    i = tl.arange(0, T)
    n = tl.arange(0, N)
    p = tl.arange(0, P)
    row = i[:, None]
    inside = first + row < L
    start = tl.cast(first, tl.int64)
    v_ptr += start * v_l
    dy_ptr += start * y_l
    dv_ptr += start * y_l
    steps_ptr += first
    v_offset = row * v_l + p
    y_offset = row * y_l + p
    q = tl.load(q_ptr + start * q_l + row * q_l + n, mask=inside, other=0.0)
    k = tl.load(k_ptr + start * k_l + row * k_l + n, mask=inside, other=0.0)
    dscores_t = tl.zeros((T, T), tl.float32)
    decay = tl.load(steps_ptr + first_head * padded + i)
    source = tl.load(steps_ptr + plane + first_head * padded + i)
    for head in range(first_head, first_head + heads):
        v = tl.load(v_ptr + tl.cast(head, tl.int64) * v_h + v_offset, mask=inside, other=0.0)
        dy = tl.load(dy_ptr + head * P + y_offset, mask=inside, other=0.0)
        here = head * padded
        following = tl.minimum(head + 1, first_head + heads - 1) * padded
        next_decay = tl.load(steps_ptr + following + i)
        next_source = tl.load(steps_ptr + plane + following + i)
        skip = tl.load(skip_ptr + head)

        dscores_t, weights_t, sent, same, read = flows_inside(dscores_t, q, k, v, dy, decay, source, skip, T, PRECISION)
        tl.store(read_ptr + here + first + i, read)
        if AFTER:
            dafter = tl.load(dstates_ptr + (tl.cast(head, tl.int64) * full + border) * (N * P) + n[:, None] * P + p)
            whole = tl.load(steps_ptr + here + T - 1)
            dv = tl.dot(k, dafter, input_precision=PRECISION) * tl.exp2(whole - source)[:, None]
            sent_on = tl.sum(dv * v, 1)
            dv = tl.dot(weights_t, dy, dv, input_precision=PRECISION)
        else:
            sent_on = tl.zeros((T,), tl.float32)
            dv = tl.dot(weights_t, dy, input_precision=PRECISION)
        all_sent = tl.join(tl.join(sent, sent_on), tl.join(same, same)).reshape(T, 4)
        tl.store(sent_ptr + tl.cast(here + first, tl.int64) * 4 + row * 4 + tl.arange(0, 4), all_sent)
        tl.store(dv_ptr + head * P + y_offset, dv.to(v.dtype), mask=inside)
        decay = next_decay
        source = next_source
    dk = tl.dot(dscores_t.to(q.dtype), q, input_precision=PRECISION)
    tl.store(dk_ptr + start * dq_l + row * dq_l + n, dk.to(dk_ptr.dtype.element_ty), mask=inside)
    # Transposed as a whole: Triton before 3.7.1 may transpose dscores_t, made of products, wrongly on Hopper.
    dq_t = tl.dot(tl.trans(k), dscores_t.to(k.dtype), input_precision=PRECISION)  # (n, i)
    dq_ptr += start * dq_l + i[None, :] * dq_l + n[:, None]
    tl.store(dq_ptr, dq_t.to(dq_ptr.dtype.element_ty), mask=first + i[None, :] < L)


@triton.jit(do_not_specialize=["L", "group_heads", "first_reverse", "heads"])
def _values_kernel(
    q_ptr, k_ptr, v_ptr, dy_ptr, steps_ptr, skip_ptr, dstates_ptr, dq_ptr, dk_ptr, dv_ptr, sent_ptr, read_ptr,
    L, H, group_heads, first_reverse, heads, padded, plane,
    q_b, q_l, q_g, k_b, k_l, k_g, v_b, v_l, v_h, dq_s, dq_b, dq_l, dq_g,
    T: tl.constexpr, LAST_T: tl.constexpr, N: tl.constexpr, P: tl.constexpr,
    ONE_TILE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The last tile may be shorter, and sends nothing on."""
    first_head = tl.program_id(0) * heads
    tile = tl.program_id(1)
    b = tl.program_id(2).to(tl.int64)
    full = L // T
    group = (first_head // group_heads).to(tl.int64)
    reverse = first_head >= first_reverse
    begin = tl.where(reverse, L - 1, 0).to(tl.int64)
    step = tl.where(reverse, -1, 1)
    dqk = (first_head % group_heads // heads).to(tl.int64) * dq_s + b * dq_b + group * dq_g + begin * dq_l
    pointers = (
        q_ptr + b * q_b + group * q_g + begin * q_l,
        k_ptr + b * k_b + group * k_g + begin * k_l,
        v_ptr + b * v_b + begin * v_l,
        dy_ptr + (b * L + begin) * H * P,
        steps_ptr + b * H * padded,
        skip_ptr,
        dstates_ptr + b * H * full * (N * P),
        dq_ptr + dqk,
        dk_ptr + dqk,
        dv_ptr + (b * L + begin) * H * P,
        sent_ptr + b * H * padded * 4,
        read_ptr + b * H * padded,
    )
    order = (L, first_head, heads, padded, full, plane)
    strides = (step * q_l, step * k_l, step * v_l, v_h, step * H * P, step * dq_l)
    if ONE_TILE:
        _values_tile(pointers, order, strides, 0, 0, LAST_T, N, P, False, PRECISION)
    elif tile < tl.num_programs(1) - 1:
        _values_tile(pointers, order, strides, tile * T, tile, T, N, P, True, PRECISION)
    else:
        _values_tile(pointers, order, strides, tile * T, tile, LAST_T, N, P, False, PRECISION)


@triton.jit
def _sum_shares_kernel(parts_ptr, total_ptr, count, SHARES: tl.constexpr, BLOCK: tl.constexpr):
    """Of q's gradient or k's, added up over programs with heads of one group and rounded once."""
    which = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    total = tl.zeros((BLOCK,), tl.float32)
    for share in tl.static_range(SHARES):
        total += tl.load(parts_ptr + (which * SHARES + share) * count + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(total_ptr + which * count + at, total.to(total_ptr.dtype.element_ty), mask=inside)


def scan_backward(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, steps: Tensor, skip: Tensor, states: Tensor, tiles: Tiling, *,
    num_reverse: int,
) -> tuple[Tensor, Tensor, Flows]:  # fmt: skip
    """Gradients of q and k (2, B, L, G, N) and of v, dense, in their dtype; and the flows for `steps_backward`."""
    if tiles.is_triangle:
        dqk, dv, flows = triangle_backward(dy, q, k, v, steps, skip, tiles, num_reverse=num_reverse)
        return _summed(dqk), dv, flows
    dy = dy.contiguous()
    q, k, v = (rows_dense(t) for t in (q, k, v))
    batch, length, num_heads, width = v.shape
    groups, state = q.shape[2:]
    group_heads = num_heads // groups
    heads = heads_per_program(group_heads, groups * tiles.count * batch)
    device = v.device
    dqk = torch.empty(2, group_heads // heads, *q.shape, dtype=q.dtype, device=device)
    dv = torch.empty(v.shape, dtype=v.dtype, device=device)
    flows = Flows(
        sent=torch.empty(batch, num_heads, tiles.padded, 4, dtype=torch.float32, device=device),
        read=torch.empty(2, batch, num_heads, tiles.padded, dtype=torch.float32, device=device),
        crossing=torch.empty(batch, tiles.count, num_heads, state, dtype=torch.float32, device=device),
    )
    if tiles.is_pair:
        pair_backward(dy, q, k, v, steps, skip, dqk, dv, flows, tiles, heads=heads, num_reverse=num_reverse)
        return _summed(dqk), dv, flows
    dstates = states
    if tiles.count > 1:
        dstates = state_gradients(q, dy, steps, states, flows.crossing, tiles, num_reverse=num_reverse)
    launch(
        _values_kernel, (num_heads // heads, tiles.count, batch),
        q, k, v, dy, steps, skip, dstates, *dqk, dv, flows.sent, flows.read, length, num_heads, group_heads,
        num_heads - num_reverse, heads, tiles.padded, steps.stride(0),
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *dqk.stride()[1:5],
        T=tiles.tile, LAST_T=tiles.tail or tiles.tile, N=state, P=width, ONE_TILE=tiles.count == 1,
        PRECISION=dot_precision(v.dtype), num_warps=4 if tiles.num_full else warps_of_tile(tiles.tail, q, v),
    )  # fmt: skip
    if tiles.count > 1:
        add_across(q, v, dy, steps, states, dstates, dqk, flows.read, tiles, heads=heads, num_reverse=num_reverse)
    return _summed(dqk), dv, flows


def _summed(dqk: Tensor) -> Tensor:
    """Over the shares of (2, shares, B, L, G, N), dense."""
    if dqk.shape[1] == 1:
        return dqk.squeeze(1)
    total = torch.empty(2, *dqk.shape[2:], dtype=dqk.dtype, device=dqk.device)
    count = total[0].numel()
    _sum_shares_kernel[(-(-count // SUM_BLOCK), 2)](
        dqk, total, count, SHARES=dqk.shape[1], BLOCK=SUM_BLOCK, num_warps=8
    )  # fmt: skip
    return total
