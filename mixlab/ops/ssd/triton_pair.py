"""The scan of sequences a little longer than a tile, a tile and a short tail: no states, as with one tile.

What the tail reads of the tile is a matrix, too: scores times exp2 of the decay from the one token to the other.
"""

# mypy: disallow-untyped-defs=False

import triton
import triton.language as tl
from torch import Tensor

from mixlab.ops.ssd.tiling import Tiling
from mixlab.ops.ssd.triton_launch import dot_precision, largest_divisor, launch, warps_of_pair
from mixlab.ops.ssd.triton_steps import Flows
from mixlab.ops.ssd.triton_tile import flows_inside, weights_of

HEADS = 12  # of a program, forward


@triton.jit
def _rows(L, first_head, first_reverse, T: tl.constexpr, TAIL: tl.constexpr):
    """Where the tokens of the tile and of the tail lie, in scan order, and which of the tail's are there."""
    reverse = first_head >= first_reverse
    begin = tl.where(reverse, L - 1, 0)
    step = tl.where(reverse, -1, 1)
    late = T + tl.arange(0, TAIL)[:, None]
    return begin + tl.arange(0, T)[:, None] * step, begin + late * step, late < L


@triton.jit
def _load_both(pointer, row, late_row, inside, stride):
    """The tile's rows, and the tail's."""
    return tl.load(pointer + row * stride), tl.load(pointer + late_row * stride, mask=inside, other=0.0)


@triton.jit(do_not_specialize=["L", "group_heads", "first_reverse", "heads"])
def _pair_kernel(
    q_ptr, k_ptr, v_ptr, steps_ptr, skip_ptr, y_ptr,
    L, H, group_heads, first_reverse, plane, heads, q_b, q_l, q_g, k_b, k_l, k_g, v_b, v_l, v_h,
    T: tl.constexpr, TAIL: tl.constexpr, N: tl.constexpr, P: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """All tokens of several heads of one image: scores once, then two decays and products per head."""
    first_head = tl.program_id(0) * heads
    b = tl.program_id(1).to(tl.int64)
    group = (first_head // group_heads).to(tl.int64)
    row, late_row, inside = _rows(L, first_head, first_reverse, T, TAIL)
    i = tl.arange(0, T)
    t = tl.arange(0, TAIL)
    n = tl.arange(0, N)
    p = tl.arange(0, P)
    q, late_q = _load_both(q_ptr + b * q_b + group * q_g + n, row, late_row, inside, q_l)
    k, late_k = _load_both(k_ptr + b * k_b + group * k_g + n, row, late_row, inside, k_l)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    on_scores = tl.dot(late_q, tl.trans(k), input_precision=PRECISION)  # (TAIL, T)
    late_scores = tl.dot(late_q, tl.trans(late_k), input_precision=PRECISION)
    v_ptr += b * v_b + p
    y_ptr += b * L * H * P + p
    steps_ptr += b * H * (T + TAIL)
    for head in range(first_head, first_head + heads):
        v, late_v = _load_both(v_ptr + head * v_h, row, late_row, inside, v_l)
        head_ptr = steps_ptr + head * (T + TAIL)
        source = tl.load(head_ptr + plane + i)
        late_decay = tl.load(head_ptr + T + t)
        skip = tl.load(skip_ptr + head)
        weights = weights_of(scores, tl.load(head_ptr + i), source, skip, T)
        y = tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        tl.store(y_ptr + head * P + row * (H * P), y.to(v.dtype))
        whole = tl.load(head_ptr + T - 1)
        on_weights = on_scores * tl.exp2(late_decay[:, None] + (whole - source)[None, :])
        late_weights = weights_of(late_scores, late_decay, tl.load(head_ptr + plane + T + t), skip, TAIL)
        late_y = tl.dot(on_weights.to(v.dtype), v, input_precision=PRECISION)
        late_y = tl.dot(late_weights.to(v.dtype), late_v, late_y, input_precision=PRECISION)
        tl.store(y_ptr + head * P + late_row * (H * P), late_y.to(v.dtype), mask=inside)


@triton.jit(do_not_specialize=["L", "group_heads", "first_reverse", "heads"])
def _pair_values_kernel(
    q_ptr, k_ptr, v_ptr, dy_ptr, steps_ptr, skip_ptr, dq_ptr, dk_ptr, dv_ptr, sent_ptr, read_ptr,
    L, H, group_heads, first_reverse, heads, plane,
    q_b, q_l, q_g, k_b, k_l, k_g, v_b, v_l, v_h, dq_s, dq_b, dq_l, dq_g,
    T: tl.constexpr, TAIL: tl.constexpr, N: tl.constexpr, P: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dv, the flows, dq and dk of several heads of one group; transposed matrices have the source token as row."""
    first_head = tl.program_id(0) * heads
    b = tl.program_id(1).to(tl.int64)
    group = (first_head // group_heads).to(tl.int64)
    row, late_row, inside = _rows(L, first_head, first_reverse, T, TAIL)
    padded = T + TAIL
    i = tl.arange(0, T)
    t = tl.arange(0, TAIL)
    n = tl.arange(0, N)
    p = tl.arange(0, P)
    q, late_q = _load_both(q_ptr + b * q_b + group * q_g + n, row, late_row, inside, q_l)
    k, late_k = _load_both(k_ptr + b * k_b + group * k_g + n, row, late_row, inside, k_l)
    dscores_t = tl.zeros((T, T), tl.float32)
    on_dscores_t = tl.zeros((T, TAIL), tl.float32)
    late_dscores_t = tl.zeros((TAIL, TAIL), tl.float32)
    v_ptr += b * v_b + p
    y_offset = b * L * H * P + p
    steps_ptr += b * H * padded
    sent_ptr += b * H * padded * 4
    read_ptr += b * H * padded
    for head in range(first_head, first_head + heads):
        y_head = y_offset + head * P
        v, late_v = _load_both(v_ptr + head * v_h, row, late_row, inside, v_l)
        dy, late_dy = _load_both(dy_ptr + y_head, row, late_row, inside, H * P)
        here = head * padded
        source = tl.load(steps_ptr + plane + here + i)
        late_decay = tl.load(steps_ptr + here + T + t)
        whole = tl.load(steps_ptr + here + T - 1)
        skip = tl.load(skip_ptr + head)

        late_source = tl.load(steps_ptr + plane + here + T + t)
        late_dscores_t, weights_t, sent, same, read = flows_inside(
            late_dscores_t, late_q, late_k, late_v, late_dy, late_decay, late_source, skip, TAIL, PRECISION
        )
        late_dv = tl.dot(weights_t, late_dy, input_precision=PRECISION)
        tl.store(dv_ptr + y_head + late_row * (H * P), late_dv.to(v.dtype), mask=inside)
        tl.store(read_ptr + here + T + t, read)
        all_sent = tl.join(tl.join(sent, tl.zeros((TAIL,), tl.float32)), tl.join(same, same)).reshape(TAIL, 4)
        tl.store(sent_ptr + (here + T + t[:, None]) * 4 + tl.arange(0, 4), all_sent)

        decay = tl.load(steps_ptr + here + i)
        dscores_t, weights_t, sent, same, read = flows_inside(dscores_t, q, k, v, dy, decay, source, skip, T, PRECISION)
        dv = tl.dot(weights_t, dy, input_precision=PRECISION)
        tl.store(read_ptr + here + i, read)

        on_decay_t = tl.exp2((whole - source)[:, None] + late_decay[None, :])
        on_weights_t = tl.dot(k, tl.trans(late_q), input_precision=PRECISION) * on_decay_t
        on_dweights_t = tl.dot(v, tl.trans(late_dy), input_precision=PRECISION)
        on_dscores_t += on_dweights_t * on_decay_t
        on_flow_t = on_dweights_t * on_weights_t
        tl.store(read_ptr + plane + here + T + t, tl.sum(on_flow_t, 0))
        dv = tl.dot(on_weights_t.to(dy.dtype), late_dy, dv, input_precision=PRECISION)
        tl.store(dv_ptr + y_head + row * (H * P), dv.to(v.dtype))
        all_sent = tl.join(tl.join(sent, tl.sum(on_flow_t, 1)), tl.join(same, same)).reshape(T, 4)
        tl.store(sent_ptr + (here + i[:, None]) * 4 + tl.arange(0, 4), all_sent)
    dqk = (first_head % group_heads // heads).to(tl.int64) * dq_s + b * dq_b + group * dq_g
    dq_ptr += dqk
    dk_ptr += dqk
    dscores_t = dscores_t.to(q.dtype)
    on_dscores_t = on_dscores_t.to(q.dtype)
    late_dscores_t = late_dscores_t.to(q.dtype)
    dk = tl.dot(dscores_t, q, input_precision=PRECISION)
    dk = tl.dot(on_dscores_t, late_q, dk, input_precision=PRECISION)
    tl.store(dk_ptr + row * dq_l + n, dk.to(dk_ptr.dtype.element_ty))
    late_dk = tl.dot(late_dscores_t, late_q, input_precision=PRECISION)
    tl.store(dk_ptr + late_row * dq_l + n, late_dk.to(dk_ptr.dtype.element_ty), mask=inside)
    # dq transposed as a whole: Triton before 3.7.1 may transpose dscores_t, made of products, wrongly on Hopper.
    dq_t = tl.dot(tl.trans(k), dscores_t, input_precision=PRECISION)  # (n, i)
    late_dq_t = tl.dot(tl.trans(k), on_dscores_t, input_precision=PRECISION)
    late_dq_t = tl.dot(tl.trans(late_k), late_dscores_t, late_dq_t, input_precision=PRECISION)
    tl.store(dq_ptr + tl.trans(row) * dq_l + n[:, None], dq_t.to(dq_ptr.dtype.element_ty))
    late_dq_ptr = dq_ptr + tl.trans(late_row) * dq_l + n[:, None]
    tl.store(late_dq_ptr, late_dq_t.to(dq_ptr.dtype.element_ty), mask=tl.trans(inside))


def pair_forward(
    q: Tensor, k: Tensor, v: Tensor, steps: Tensor, skip: Tensor, y: Tensor, tiles: Tiling, *, num_reverse: int
) -> None:
    """Fill y."""
    batch, length, num_heads, width = v.shape
    group_heads = num_heads // q.shape[2]
    heads = largest_divisor(group_heads, limit=HEADS)
    launch(
        _pair_kernel, (num_heads // heads, batch), q, k, v, steps, skip, y,
        length, num_heads, group_heads, num_heads - num_reverse, steps.stride(0), heads,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        T=tiles.tile, TAIL=tiles.tail, N=q.shape[3], P=width, PRECISION=dot_precision(v.dtype),
        num_warps=warps_of_pair(tiles.tile, q, v),
    )  # fmt: skip


def pair_backward(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, steps: Tensor, skip: Tensor, dqk: Tensor, dv: Tensor, flows: Flows,
    tiles: Tiling, *, heads: int, num_reverse: int,
) -> None:  # fmt: skip
    """Fill dqk (2, shares, B, L, G, N), `heads` to a share, dv, and what is sent and read."""
    batch, length, num_heads, width = v.shape
    launch(
        _pair_values_kernel, (num_heads // heads, batch), q, k, v, dy, steps, skip, *dqk, dv, flows.sent, flows.read,
        length, num_heads, num_heads // q.shape[2], num_heads - num_reverse, heads, steps.stride(0),
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *dqk.stride()[1:5],
        T=tiles.tile, TAIL=tiles.tail, N=q.shape[3], P=width, PRECISION=dot_precision(v.dtype),
        num_warps=warps_of_pair(tiles.tile, q, v),
    )  # fmt: skip
