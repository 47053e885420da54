"""Fully visible linear attention with both softmaxes inside; a program walks the tokens of one head of one image.

With Q the softmax of q over features and K that of k over tokens, the output is Q S with S = Kᵀ v, one P x P state.
Backward, from dout: dS = Qᵀ dout, dQ = dout Sᵀ, dK = v dSᵀ, dv = K dS. The softmax over tokens needs, per feature, the
sum over tokens of dK K: that is the sum over P of dS S, so one walk gathers S and dS, and a second writes gradients.

Few images with many tokens leave most of a GPU idle that way. Then the tokens are cut into spans: a program for each
gathers its part of the states, torch adds them up, and a program for each writes its part.
"""

# mypy: disallow-untyped-defs=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixlab.ops.ssd.triton_launch import dot_precision

TILE = 64  # tokens at a time
MANY_PROGRAMS = 64  # images x heads: with fewer, most of the GPU would wait while a few programs walk the tokens
FULL_GPU = 264  # programs: two for every multiprocessor of a large GPU
MIN_TILES = 4  # of a span


@triton.jit
def _softmax_over_features(q):
    e = tl.exp(q - tl.max(q, 1)[:, None])
    return e / tl.sum(e, 1)[:, None]


@triton.jit
def _gather(qkv_ptr, first, last, L, D, P: tl.constexpr, T: tl.constexpr, PRECISION: tl.constexpr):
    """Over tokens from first to last: each key feature's maximum m, the sum of exp(k - m), and exp(k - m)ᵀ v."""
    feature = tl.arange(0, P)
    token = tl.arange(0, T)
    largest = tl.full((P,), float("-inf"), tl.float32)
    total = tl.zeros((P,), tl.float32)
    state = tl.zeros((P, P), tl.float32)
    for start in range(first, last, T):
        inside = (start + token < L)[:, None]
        place = qkv_ptr + tl.cast(start, tl.int64) * (3 * D) + (token[:, None] * (3 * D) + feature[None, :])
        k = tl.load(place + D, mask=inside, other=float("-inf")).to(tl.float32)
        v = tl.load(place + 2 * D, mask=inside, other=0.0)
        new_largest = tl.maximum(largest, tl.max(k, 0))
        shrink = tl.exp(largest - new_largest)
        e = tl.exp(k - new_largest[None, :])
        total = total * shrink + tl.sum(e, 0)
        state = tl.dot(tl.trans(e.to(v.dtype)), v, state * shrink[:, None], input_precision=PRECISION)
        largest = new_largest
    return largest, total, state


@triton.jit
def _write(qkv_ptr, out_ptr, state, first, last, L, D, P: tl.constexpr, T: tl.constexpr, PRECISION: tl.constexpr):
    feature = tl.arange(0, P)
    token = tl.arange(0, T)
    state = state.to(out_ptr.dtype.element_ty)
    for start in range(first, last, T):
        inside = (start + token < L)[:, None]
        base = tl.cast(start, tl.int64) * D
        q_offset = token[:, None] * (3 * D) + feature[None, :]
        q = tl.load(qkv_ptr + 3 * base + q_offset, mask=inside, other=0.0).to(tl.float32)
        out = tl.dot(_softmax_over_features(q).to(state.dtype), state, input_precision=PRECISION)
        out_offset = token[:, None] * D + feature[None, :]
        tl.store(out_ptr + base + out_offset, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _forward_kernel(
    qkv_ptr, out_ptr, log_sum_ptr, L, D, P: tl.constexpr, T: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    head, image = tl.program_id(0), tl.program_id(1).to(tl.int64)
    qkv_ptr += image * L * 3 * D + head * P
    largest, total, state = _gather(qkv_ptr, 0, L, L, D, P, T, PRECISION)
    tl.store(log_sum_ptr + image * D + head * P + tl.arange(0, P), largest + tl.log(total))
    _write(qkv_ptr, out_ptr + image * L * D + head * P, state / total[:, None], 0, L, L, D, P, T, PRECISION)


@triton.jit
def _gather_span_kernel(
    qkv_ptr, log_sum_ptr, state_ptr, L, D, span, P: tl.constexpr, T: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Of one span: the log of each key feature's sum, (S, B, D), and the state by that sum, (S, B, H, P, P)."""
    head, image, number = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    first = number.to(tl.int32) * span
    qkv_ptr += image * L * 3 * D + head * P
    largest, total, state = _gather(qkv_ptr, first, tl.minimum(first + span, L), L, D, P, T, PRECISION)
    feature = tl.arange(0, P)
    row = number * tl.num_programs(1) + image
    tl.store(log_sum_ptr + row * D + head * P + feature, largest + tl.log(total))
    place = state_ptr + (row * D + head * P + feature[:, None]) * P + feature[None, :]
    tl.store(place, state / total[:, None])


@triton.jit
def _write_span_kernel(
    qkv_ptr, state_ptr, out_ptr, L, D, span, P: tl.constexpr, T: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    head, image, first = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2) * span
    feature = tl.arange(0, P)
    state = tl.load(state_ptr + (image * D + head * P + feature[:, None]) * P + feature[None, :])
    qkv_ptr += image * L * 3 * D + head * P
    out_ptr += image * L * D + head * P
    _write(qkv_ptr, out_ptr, state, first, tl.minimum(first + span, L), L, D, P, T, PRECISION)


@triton.jit
def _load_tile(qkv_ptr, dout_ptr, log_sum, start, L, D, P: tl.constexpr, T: tl.constexpr):
    """Q and K softmaxed (float32), v and dout as they are; rows past the end are zero in K, v and dout."""
    row = tl.arange(0, T)[:, None]
    feature = tl.arange(0, P)[None, :]
    inside = start + row < L
    base = tl.cast(start, tl.int64) * D
    place = qkv_ptr + 3 * base + (row * (3 * D) + feature)
    q = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    k = tl.load(place + D, mask=inside, other=float("-inf")).to(tl.float32)
    v = tl.load(place + 2 * D, mask=inside, other=0.0)
    dout = tl.load(dout_ptr + base + (row * D + feature), mask=inside, other=0.0)
    return _softmax_over_features(q), tl.exp(k - log_sum[None, :]), v, dout


@triton.jit
def _gather_both(
    qkv_ptr, dout_ptr, log_sum, first, last, L, D, P: tl.constexpr, T: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """The state and its gradient over tokens from first to last."""
    state = tl.zeros((P, P), tl.float32)
    dstate = tl.zeros((P, P), tl.float32)
    for start in range(first, last, T):
        q, k, v, dout = _load_tile(qkv_ptr, dout_ptr, log_sum, start, L, D, P, T)
        state = tl.dot(tl.trans(k.to(v.dtype)), v, state, input_precision=PRECISION)
        dstate = tl.dot(tl.trans(q.to(v.dtype)), dout, dstate, input_precision=PRECISION)
    return state, dstate


@triton.jit
def _write_gradients(
    qkv_ptr, dout_ptr, log_sum, dqkv_ptr, state, dstate, first, last, L, D,
    P: tl.constexpr, T: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    feature = tl.arange(0, P)
    shared = tl.sum(state * dstate, 1)  # (P,): per feature of k, the sum over tokens of dK K
    kind = dqkv_ptr.dtype.element_ty
    state_t, dstate_cast = tl.trans(state.to(kind)), dstate.to(kind)
    for start in range(first, last, T):
        q, k, v, dout = _load_tile(qkv_ptr, dout_ptr, log_sum, start, L, D, P, T)
        dq = tl.dot(dout, state_t, input_precision=PRECISION)
        dq = q * (dq - tl.sum(dq * q, 1)[:, None])
        dk = k * (tl.dot(v, tl.trans(dstate_cast), input_precision=PRECISION) - shared[None, :])
        dv = tl.dot(k.to(kind), dstate_cast, input_precision=PRECISION)
        row = tl.arange(0, T)[:, None]
        inside = start + row < L
        place = dqkv_ptr + tl.cast(start, tl.int64) * (3 * D) + (row * (3 * D) + feature[None, :])
        tl.store(place, dq.to(kind), mask=inside)
        tl.store(place + D, dk.to(kind), mask=inside)
        tl.store(place + 2 * D, dv.to(kind), mask=inside)


@triton.jit
def _backward_kernel(
    dout_ptr, qkv_ptr, log_sum_ptr, dqkv_ptr, L, D, P: tl.constexpr, T: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    head, image = tl.program_id(0), tl.program_id(1).to(tl.int64)
    qkv_ptr += image * L * 3 * D + head * P
    dqkv_ptr += image * L * 3 * D + head * P
    dout_ptr += image * L * D + head * P
    log_sum = tl.load(log_sum_ptr + image * D + head * P + tl.arange(0, P))
    state, dstate = _gather_both(qkv_ptr, dout_ptr, log_sum, 0, L, L, D, P, T, PRECISION)
    _write_gradients(qkv_ptr, dout_ptr, log_sum, dqkv_ptr, state, dstate, 0, L, L, D, P, T, PRECISION)


@triton.jit
def _gather_both_span_kernel(
    dout_ptr, qkv_ptr, log_sum_ptr, states_ptr, L, D, span, P: tl.constexpr, T: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Of one span: its part of the state and of its gradient, (S, 2, B, H, P, P)."""
    head, image, number = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    first = number.to(tl.int32) * span
    feature = tl.arange(0, P)
    log_sum = tl.load(log_sum_ptr + image * D + head * P + feature)
    state, dstate = _gather_both(
        qkv_ptr + image * L * 3 * D + head * P, dout_ptr + image * L * D + head * P, log_sum,
        first, tl.minimum(first + span, L), L, D, P, T, PRECISION,
    )  # fmt: skip
    batch = tl.num_programs(1)
    place = states_ptr + ((2 * number * batch + image) * D + head * P + feature[:, None]) * P + feature[None, :]
    tl.store(place, state)
    tl.store(place + batch * D * P, dstate)


@triton.jit
def _write_gradients_span_kernel(
    dout_ptr, qkv_ptr, log_sum_ptr, states_ptr, dqkv_ptr, L, D, span,
    P: tl.constexpr, T: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    head, image, first = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2) * span
    feature = tl.arange(0, P)
    log_sum = tl.load(log_sum_ptr + image * D + head * P + feature)
    place = states_ptr + (image * D + head * P + feature[:, None]) * P + feature[None, :]
    state, dstate = tl.load(place), tl.load(place + tl.num_programs(1).to(tl.int64) * D * P)
    qkv_ptr += image * L * 3 * D + head * P
    dqkv_ptr += image * L * 3 * D + head * P
    dout_ptr += image * L * D + head * P
    last = tl.minimum(first + span, L)
    _write_gradients(qkv_ptr, dout_ptr, log_sum, dqkv_ptr, state, dstate, first, last, L, D, P, T, PRECISION)


def forward(qkv: Tensor, *, head_dim: int) -> tuple[Tensor, Tensor]:
    """(B, L, 3 H P) -> (B, L, H P), and the log of each key feature's sum over tokens, float32 (B, H P)."""
    qkv = qkv.contiguous()
    batch, length, width = qkv.shape
    inner, heads = width // 3, width // 3 // head_dim
    out = torch.empty(batch, length, inner, dtype=qkv.dtype, device=qkv.device)
    sizes = _sizes(qkv, head_dim)
    spans, span = _spans(batch * heads, length, int(sizes["T"]))
    if spans == 1:
        log_sums = torch.empty(batch, inner, dtype=torch.float32, device=qkv.device)
        _forward_kernel[(heads, batch)](qkv, out, log_sums, length, inner, **sizes)
        return out, log_sums
    parts = torch.empty(spans, batch, inner, dtype=torch.float32, device=qkv.device)
    states = torch.empty(spans, batch, inner, head_dim, dtype=torch.float32, device=qkv.device)
    _gather_span_kernel[(heads, batch, spans)](qkv, parts, states, length, inner, span, **sizes)
    log_sums = parts.logsumexp(0)
    state = (states * (parts - log_sums).exp_()[..., None]).sum(0)
    _write_span_kernel[(heads, batch, spans)](qkv, state, out, length, inner, span, **sizes)
    return out, log_sums


def backward(dout: Tensor, qkv: Tensor, log_sums: Tensor, *, head_dim: int) -> Tensor:
    """The gradient of qkv (B, L, 3 H P)."""
    qkv, dout = qkv.contiguous(), dout.contiguous()
    batch, length, width = qkv.shape
    inner, heads = width // 3, width // 3 // head_dim
    dqkv = torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)
    sizes = _sizes(qkv, head_dim)
    spans, span = _spans(batch * heads, length, int(sizes["T"]))
    if spans == 1:
        _backward_kernel[(heads, batch)](dout, qkv, log_sums, dqkv, length, inner, **sizes)
        return dqkv
    parts = torch.empty(spans, 2, batch, inner, head_dim, dtype=torch.float32, device=qkv.device)
    _gather_both_span_kernel[(heads, batch, spans)](dout, qkv, log_sums, parts, length, inner, span, **sizes)
    states = parts.sum(0)
    _write_gradients_span_kernel[(heads, batch, spans)](
        dout, qkv, log_sums, states, dqkv, length, inner, span, **sizes
    )  # fmt: skip
    return dqkv


def _spans(num_programs: int, length: int, tile: int) -> tuple[int, int]:
    """How many spans, and the tokens of each: whole tiles, and one span where programs are many or tokens few."""
    tiles = -(-length // tile)
    wanted = 1 if num_programs >= MANY_PROGRAMS else min(-(-FULL_GPU // num_programs), tiles // MIN_TILES)
    per_span = -(-tiles // max(1, wanted))
    return -(-tiles // per_span), per_span * tile


def _sizes(qkv: Tensor, head_dim: int) -> dict[str, int | str]:
    tile = min(TILE, max(16, triton.next_power_of_2(qkv.shape[1])))
    if qkv.dtype == torch.float32:
        tile = min(tile, 32)  # for the registers
    return {"P": head_dim, "T": tile, "PRECISION": dot_precision(qkv.dtype), "num_warps": 4}
