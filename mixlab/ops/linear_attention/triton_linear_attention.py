"""Fully visible linear attention with both softmaxes inside; a program walks the tokens of one head of one image.

With Q the softmax of q over features and K that of k over tokens, the output is Q S with S = Kᵀ v, one P x P state.
Backward, from dout: dS = Qᵀ dout, dQ = dout Sᵀ, dK = v dSᵀ, dv = K dS. The softmax over tokens needs, per feature, the
sum over tokens of dK K: that is the sum over P of dS S, so one walk gathers S and dS, and a second writes gradients.
"""

# mypy: disallow-untyped-defs=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixlab.ops.ssd.triton_steps import dot_precision

TILE = 64  # tokens at a time


@triton.jit
def _softmax_over_features(q):
    e = tl.exp(q - tl.max(q, 1)[:, None])
    return e / tl.sum(e, 1)[:, None]


@triton.jit
def _forward_kernel(
    qkv_ptr, out_ptr, log_sum_ptr, L, D, P: tl.constexpr, T: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    head, image = tl.program_id(0), tl.program_id(1).to(tl.int64)
    feature = tl.arange(0, P)
    token = tl.arange(0, T)
    qkv_ptr += image * L * 3 * D + head * P
    largest = tl.full((P,), float("-inf"), tl.float32)
    total = tl.zeros((P,), tl.float32)
    state = tl.zeros((P, P), tl.float32)
    for start in range(0, L, T):
        inside = (start + token < L)[:, None]
        place = qkv_ptr + (start + token)[:, None] * (3 * D) + feature[None, :]
        k = tl.load(place + D, mask=inside, other=float("-inf")).to(tl.float32)
        v = tl.load(place + 2 * D, mask=inside, other=0.0)
        new_largest = tl.maximum(largest, tl.max(k, 0))
        shrink = tl.exp(largest - new_largest)
        e = tl.exp(k - new_largest[None, :])
        total = total * shrink + tl.sum(e, 0)
        state = tl.dot(tl.trans(e.to(v.dtype)), v, state * shrink[:, None], input_precision=PRECISION)
        largest = new_largest
    tl.store(log_sum_ptr + image * D + head * P + feature, largest + tl.log(total))
    state = (state / total[:, None]).to(out_ptr.dtype.element_ty)
    for start in range(0, L, T):
        inside = (start + token < L)[:, None]
        row = (start + token)[:, None]
        q = tl.load(qkv_ptr + row * (3 * D) + feature[None, :], mask=inside, other=0.0).to(tl.float32)
        out = tl.dot(_softmax_over_features(q).to(state.dtype), state, input_precision=PRECISION)
        to = out_ptr + (image * L + row) * D + head * P + feature[None, :]
        tl.store(to, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _load_tile(qkv_ptr, dout_ptr, log_sum, start, L, D, P: tl.constexpr, T: tl.constexpr):
    """Q and K softmaxed (float32), v and dout as they are; rows past the end are zero in K, v and dout."""
    row = (start + tl.arange(0, T))[:, None]
    feature = tl.arange(0, P)[None, :]
    inside = row < L
    place = qkv_ptr + row * (3 * D) + feature
    q = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    k = tl.load(place + D, mask=inside, other=float("-inf")).to(tl.float32)
    v = tl.load(place + 2 * D, mask=inside, other=0.0)
    dout = tl.load(dout_ptr + row * D + feature, mask=inside, other=0.0)
    return _softmax_over_features(q), tl.exp(k - log_sum[None, :]), v, dout


@triton.jit
def _backward_kernel(
    dout_ptr, qkv_ptr, log_sum_ptr, dqkv_ptr, L, D, P: tl.constexpr, T: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    head, image = tl.program_id(0), tl.program_id(1).to(tl.int64)
    feature = tl.arange(0, P)
    qkv_ptr += image * L * 3 * D + head * P
    dqkv_ptr += image * L * 3 * D + head * P
    dout_ptr += image * L * D + head * P
    log_sum = tl.load(log_sum_ptr + image * D + head * P + feature)
    state = tl.zeros((P, P), tl.float32)
    dstate = tl.zeros((P, P), tl.float32)
    for start in range(0, L, T):
        q, k, v, dout = _load_tile(qkv_ptr, dout_ptr, log_sum, start, L, D, P, T)
        state = tl.dot(tl.trans(k.to(v.dtype)), v, state, input_precision=PRECISION)
        dstate = tl.dot(tl.trans(q.to(v.dtype)), dout, dstate, input_precision=PRECISION)
    shared = tl.sum(state * dstate, 1)  # (P,): per feature of k, the sum over tokens of dK K
    kind = dqkv_ptr.dtype.element_ty
    state_t, dstate_cast = tl.trans(state.to(kind)), dstate.to(kind)
    for start in range(0, L, T):
        q, k, v, dout = _load_tile(qkv_ptr, dout_ptr, log_sum, start, L, D, P, T)
        dq = tl.dot(dout, state_t, input_precision=PRECISION)
        dq = q * (dq - tl.sum(dq * q, 1)[:, None])
        dk = k * (tl.dot(v, tl.trans(dstate_cast), input_precision=PRECISION) - shared[None, :])
        dv = tl.dot(k.to(kind), dstate_cast, input_precision=PRECISION)
        row = (start + tl.arange(0, T))[:, None]
        place = dqkv_ptr + row * (3 * D) + feature[None, :]
        tl.store(place, dq.to(kind), mask=row < L)
        tl.store(place + D, dk.to(kind), mask=row < L)
        tl.store(place + 2 * D, dv.to(kind), mask=row < L)


def forward(qkv: Tensor, *, head_dim: int) -> tuple[Tensor, Tensor]:
    """(B, L, 3 H P) -> (B, L, H P), and the log of each key feature's sum over tokens, float32 (B, H P)."""
    qkv = qkv.contiguous()
    batch, length, width = qkv.shape
    inner = width // 3
    out = torch.empty(batch, length, inner, dtype=qkv.dtype, device=qkv.device)
    log_sums = torch.empty(batch, inner, dtype=torch.float32, device=qkv.device)
    _forward_kernel[(inner // head_dim, batch)](
        qkv, out, log_sums, length, inner, **_sizes(qkv, head_dim)
    )  # fmt: skip
    return out, log_sums


def backward(dout: Tensor, qkv: Tensor, log_sums: Tensor, *, head_dim: int) -> Tensor:
    """The gradient of qkv (B, L, 3 H P)."""
    qkv = qkv.contiguous()
    batch, length, width = qkv.shape
    dqkv = torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)
    _backward_kernel[(width // 3 // head_dim, batch)](
        dout.contiguous(), qkv, log_sums, dqkv, length, width // 3, **_sizes(qkv, head_dim)
    )  # fmt: skip
    return dqkv


def _sizes(qkv: Tensor, head_dim: int) -> dict[str, int | str]:
    tile = min(TILE, max(16, triton.next_power_of_2(qkv.shape[1])))
    if qkv.dtype == torch.float32:
        tile = min(tile, 32)  # for the registers
    return {"P": head_dim, "T": tile, "PRECISION": dot_precision(qkv.dtype), "num_warps": 4}
