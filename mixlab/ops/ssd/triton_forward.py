"""The scan, forward, as Triton kernels. Derivation, costs and what was tried: README.md beside this file.

Shapes as in `reference.py`; T tokens make a tile. Inside a tile the map is a matrix, between tiles a state (N, P).
Programs walk the tokens in scan order, so a reverse head is a first row and a negative stride and nothing else.
"""

# mypy: disallow-untyped-defs=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixlab.ops.ssd.cuda_triangle import triangle_forward
from mixlab.ops.ssd.tiling import Tiling
from mixlab.ops.ssd.triton_launch import dot_precision, largest_divisor, launch, rows_dense, warps_of_tile
from mixlab.ops.ssd.triton_pair import pair_forward
from mixlab.ops.ssd.triton_tile import weights_of

ONE_TILE_HEADS = 8  # per program: 4 to 24 measured alike, within 10 %


@triton.jit(do_not_specialize=["L", "group_heads", "first_reverse", "heads"])
def _one_tile_kernel(
    q_ptr, k_ptr, v_ptr, steps_ptr, skip_ptr, y_ptr,
    L, H, group_heads, first_reverse, plane, heads, q_b, q_l, q_g, k_b, k_l, k_g, v_b, v_l, v_h,
    T: tl.constexpr, N: tl.constexpr, P: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """All tokens of several heads of one image: scores once, then one decay and one product per head."""
    first_head = tl.program_id(0) * heads
    b = tl.program_id(1).to(tl.int64)
    group = (first_head // group_heads).to(tl.int64)
    reverse = first_head >= first_reverse
    begin = tl.where(reverse, L - 1, 0)
    step = tl.where(reverse, -1, 1)
    i = tl.arange(0, T)
    n = tl.arange(0, N)
    p = tl.arange(0, P)
    inside = (i < L)[:, None]
    row = begin + i[:, None] * step
    q = tl.load(q_ptr + b * q_b + group * q_g + row * q_l + n, mask=inside, other=0.0)
    k = tl.load(k_ptr + b * k_b + group * k_g + row * k_l + n, mask=inside, other=0.0)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    v_ptr += b * v_b + row * v_l + p
    y_ptr += b * L * H * P + row * (H * P) + p
    steps_ptr += b * H * T
    decay = tl.load(steps_ptr + first_head * T + i)
    source = tl.load(steps_ptr + plane + first_head * T + i)
    for head in range(first_head, first_head + heads):
        v = tl.load(v_ptr + head * v_h, mask=inside, other=0.0)
        following = tl.minimum(head + 1, first_head + heads - 1) * T + i
        next_decay = tl.load(steps_ptr + following)
        next_source = tl.load(steps_ptr + plane + following)
        weights = weights_of(scores, decay, source, tl.load(skip_ptr + head), T)
        y = tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        tl.store(y_ptr + head * P, y.to(v.dtype), mask=inside)
        decay = next_decay
        source = next_source


@triton.jit(do_not_specialize=["L", "group_heads", "first_reverse"])
def _many_tiles_kernel(
    q_ptr, k_ptr, v_ptr, steps_ptr, skip_ptr, y_ptr, states_ptr,
    L, H, group_heads, first_reverse, plane, q_b, q_l, q_g, k_b, k_l, k_g, v_b, v_l, v_h,
    T: tl.constexpr, TAIL: tl.constexpr, N: tl.constexpr, P: tl.constexpr, PRECISION: tl.constexpr,
    OUTPUT: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """All tokens of one head of one image, tile after tile, the state in registers; KEEP stores it behind each tile.

    Without OUTPUT, for the states alone.
    """
    head = tl.program_id(0).to(tl.int64)
    b = tl.program_id(1).to(tl.int64)
    group = head // group_heads
    reverse = head >= first_reverse
    begin = tl.where(reverse, L - 1, 0).to(tl.int64)
    step = tl.where(reverse, -1, 1)
    full = L // T
    q_ptr += b * q_b + group * q_g + begin * q_l
    k_ptr += b * k_b + group * k_g + begin * k_l
    v_ptr += b * v_b + head * v_h + begin * v_l
    y_ptr += (b * L + begin) * H * P + head * P
    steps_ptr += (b * H + head) * (full * T + TAIL)
    states_ptr += (b * H + head) * full * (N * P)
    skip = tl.load(skip_ptr + head)
    i = tl.arange(0, T)
    n = tl.arange(0, N)
    p = tl.arange(0, P)
    row = step * i[:, None]
    q_offset = row * q_l + n
    k_offset = row * k_l + n
    v_offset = row * v_l + p
    y_offset = row * (H * P) + p
    state_offset = n[:, None] * P + p
    state = tl.zeros((N, P), tl.float32)
    for _ in range(full):
        k = tl.load(k_ptr + k_offset)
        v = tl.load(v_ptr + v_offset)
        if OUTPUT:
            q = tl.load(q_ptr + q_offset)
            decay = tl.load(steps_ptr + i)
            source = tl.load(steps_ptr + plane + i)
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
            weights = weights_of(scores, decay, source, skip, T).to(v.dtype)
            y = tl.dot(q, state.to(q.dtype), input_precision=PRECISION) * tl.exp2(decay)[:, None]
            y = tl.dot(weights, v, y, input_precision=PRECISION)
            tl.store(y_ptr + y_offset, y.to(v.dtype))
        whole = tl.load(steps_ptr + T - 1)
        fed = (v * tl.exp2(whole - tl.load(steps_ptr + plane + i))[:, None]).to(v.dtype)
        state = tl.dot(tl.trans(k), fed, state * tl.exp2(whole), input_precision=PRECISION)
        if KEEP:
            tl.store(states_ptr + state_offset, state.to(states_ptr.dtype.element_ty))
        q_ptr += step * T * q_l
        k_ptr += step * T * k_l
        v_ptr += step * T * v_l
        y_ptr += step * T * H * P
        steps_ptr += T
        states_ptr += N * P
    if OUTPUT and TAIL > 0:
        i = tl.arange(0, TAIL)
        row = step * i[:, None]
        inside = full * T + i[:, None] < L
        q = tl.load(q_ptr + row * q_l + n, mask=inside, other=0.0)
        k = tl.load(k_ptr + row * k_l + n, mask=inside, other=0.0)
        v = tl.load(v_ptr + row * v_l + p, mask=inside, other=0.0)
        decay = tl.load(steps_ptr + i)
        source = tl.load(steps_ptr + plane + i)
        # The state before the scores: after them it takes k's place in shared memory, which ptxas 12.8 gets wrong.
        y = tl.dot(q, state.to(q.dtype), input_precision=PRECISION) * tl.exp2(decay)[:, None]
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        weights = weights_of(scores, decay, source, skip, TAIL).to(v.dtype)
        y = tl.dot(weights, v, y, input_precision=PRECISION)
        tl.store(y_ptr + row * (H * P) + p, y.to(v.dtype), mask=inside)


def scan_forward(
    q: Tensor, k: Tensor, v: Tensor, steps: Tensor, skip: Tensor, tiles: Tiling, *, num_reverse: int, keep_states: bool
) -> tuple[Tensor, Tensor]:
    """y (B, L, H, P), dense, in the dtype of v, and the states behind full tiles (B, H, tiles, N, P), none unless kept.

    `steps` as `triton_steps.make_steps` makes them; skip in float32.
    """
    if tiles.is_triangle:
        return triangle_forward(q, k, v, steps, skip, tiles, num_reverse=num_reverse), _room_for_states(q, v, 0)
    q, k, v = (rows_dense(t) for t in (q, k, v))
    batch, length, num_heads, width = v.shape
    group_heads = num_heads // q.shape[2]
    y = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    if tiles.num_full == 0:
        heads = largest_divisor(group_heads, limit=ONE_TILE_HEADS)
        launch(
            _one_tile_kernel, (num_heads // heads, batch), q, k, v, steps, skip, y,
            length, num_heads, group_heads, num_heads - num_reverse, steps.stride(0), heads,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
            T=tiles.tail, N=q.shape[3], P=width, PRECISION=dot_precision(v.dtype),
            num_warps=warps_of_tile(tiles.tail, q, v),
        )  # fmt: skip
        return y, _room_for_states(q, v, 0)
    if tiles.is_pair:
        pair_forward(q, k, v, steps, skip, y, tiles, num_reverse=num_reverse)
        return y, _room_for_states(q, v, 0)
    states = _room_for_states(q, v, tiles.num_states if keep_states else 0)
    _walk(q, k, v, steps, skip, y, states, tiles, num_reverse=num_reverse)
    return y, states


def scan_states(
    q: Tensor, k: Tensor, v: Tensor, steps: Tensor, skip: Tensor, tiles: Tiling, *, num_reverse: int
) -> Tensor:
    """The states alone: what the backward pass needs where y was kept."""
    q, k, v = (rows_dense(t) for t in (q, k, v))
    states = _room_for_states(q, v, tiles.num_states)
    if tiles.num_states:
        _walk(q, k, v, steps, skip, None, states, tiles, num_reverse=num_reverse)
    return states


def _room_for_states(q: Tensor, v: Tensor, count: int) -> Tensor:
    """States (B, H, count, N, P), unset."""
    batch, _, num_heads, width = v.shape
    return torch.empty(batch, num_heads, count, q.shape[3], width, dtype=v.dtype, device=v.device)


def _walk(
    q: Tensor, k: Tensor, v: Tensor, steps: Tensor, skip: Tensor, y: Tensor | None, states: Tensor, tiles: Tiling, *,
    num_reverse: int,
) -> None:  # fmt: skip
    """Fill y, if given, and the states, if there is room for them."""
    batch, length, num_heads, width = v.shape
    group_heads = num_heads // q.shape[2]
    launch(
        _many_tiles_kernel, (num_heads, batch), q, k, v, steps, skip, v if y is None else y, states,
        length, num_heads, group_heads, num_heads - num_reverse, steps.stride(0),
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        T=tiles.tile, TAIL=tiles.tail, N=q.shape[3], P=width, PRECISION=dot_precision(v.dtype),
        OUTPUT=y is not None, KEEP=states.numel() > 0, num_warps=4,
        maxnreg=168 if q.shape[3] * width <= 4096 and y is not None else None,
    )  # fmt: skip
