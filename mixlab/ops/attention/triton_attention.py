"""Attention over at most 128 tokens; a program has one head of as many whole images as its rows can hold.

Kernels for long sequences stream keys past a tile of queries. Ten tokens fill a sixth of such a tile, and sixty-five
take two, of which the second is empty but for one. Here the tokens of several images lie under each other, and scores
between images are masked. Queries, keys and values are read where the projection wrote them, and their gradients lie
in the same way: nothing is copied or joined. A program sees all scores of its rows, so the backward pass makes them
again from q and k and keeps nothing else: with P the probabilities and dP = dout vᵀ,

    dS = P (dP - Σ_keys P dP) / √width,   dv = Pᵀ dout,   dk = dSᵀ q,   dq = dS k.

It works on the transposed matrices (keys x queries) and gets dq transposed, since a product that is transposed in
registers and multiplied again is wrong on Hopper with Triton 3.4 to 3.7.0. For the same reason what is needed both ways
is loaded both ways.
"""

# mypy: disallow-untyped-defs=False

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixlab.ops.ssd.triton_launch import dot_precision

MIN_ROWS = 64  # of a program: the height of a Hopper matrix instruction
FAR = tl.constexpr(-1.0e30)  # the score of a key that is not seen; infinity would give rows without any no maximum


@triton.jit
def _visible(query, key, last, L, ALONE: tl.constexpr, CAUSAL: tl.constexpr):
    """Whether a query sees a key, by their rows: both in one image, and the key no row behind the last."""
    seen = (key < last) & (query >= 0)
    if not ALONE:
        seen = seen & (query // L == key // L)
    if CAUSAL:
        seen = seen & (key <= query)
    return seen


@triton.jit
def _softmax_forward_kernel(
    qkv_ptr, out_ptr, num_rows, rows, L, D, scale,
    P: tl.constexpr, T: tl.constexpr, ALONE: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    head, first = tl.program_id(0), tl.program_id(1).to(tl.int64) * rows
    last = tl.minimum(num_rows - first, rows).to(tl.int32)
    row, feature = tl.arange(0, T), tl.arange(0, P)
    inside = (row < last)[:, None]
    qkv_ptr += first * (3 * D) + head * P
    place = row[:, None] * (3 * D) + feature[None, :]
    place_t = row[None, :] * (3 * D) + feature[:, None]
    q = tl.load(qkv_ptr + place, mask=inside, other=0.0)
    k_t = tl.load(qkv_ptr + D + place_t, mask=(row < last)[None, :], other=0.0)
    v = tl.load(qkv_ptr + 2 * D + place, mask=inside, other=0.0)
    seen = _visible(row[:, None], row[None, :], last, L, ALONE, CAUSAL)
    scores = tl.where(seen, tl.dot(q, k_t, input_precision=PRECISION) * scale, FAR)
    share = tl.where(seen, tl.exp2(scores - tl.max(scores, 1)[:, None]), 0.0)
    total = tl.sum(share, 1)
    out = tl.dot(share.to(v.dtype), v, input_precision=PRECISION) / tl.where(total > 0, total, 1.0)[:, None]
    out_place = first * D + head * P + row[:, None] * D + feature[None, :]
    tl.store(out_ptr + out_place, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _softmax_backward_kernel(
    dout_ptr, qkv_ptr, dqkv_ptr, num_rows, rows, L, D, scale, root,
    P: tl.constexpr, T: tl.constexpr, ALONE: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    head, first = tl.program_id(0), tl.program_id(1).to(tl.int64) * rows
    last = tl.minimum(num_rows - first, rows).to(tl.int32)
    row, feature = tl.arange(0, T), tl.arange(0, P)
    inside, inside_t = (row < last)[:, None], (row < last)[None, :]
    qkv_ptr += first * (3 * D) + head * P
    dqkv_ptr += first * (3 * D) + head * P
    dout_ptr += first * D + head * P
    place = row[:, None] * (3 * D) + feature[None, :]
    place_t = row[None, :] * (3 * D) + feature[:, None]
    k = tl.load(qkv_ptr + D + place, mask=inside, other=0.0)
    q_t = tl.load(qkv_ptr + place_t, mask=inside_t, other=0.0)
    seen = _visible(row[None, :], row[:, None], last, L, ALONE, CAUSAL)  # keys x queries
    scores = tl.where(seen, tl.dot(k, q_t, input_precision=PRECISION) * scale, FAR)
    share = tl.where(seen, tl.exp2(scores - tl.max(scores, 0)[None, :]), 0.0)
    total = tl.sum(share, 0)
    share = share / tl.where(total > 0, total, 1.0)[None, :]
    dout = tl.load(dout_ptr + row[:, None] * D + feature[None, :], mask=inside, other=0.0)
    dv = tl.dot(share.to(dout.dtype), dout, input_precision=PRECISION)
    tl.store(dqkv_ptr + 2 * D + place, dv.to(dqkv_ptr.dtype.element_ty), mask=inside)
    v = tl.load(qkv_ptr + 2 * D + place, mask=inside, other=0.0)
    dout_t = tl.load(dout_ptr + row[None, :] * D + feature[:, None], mask=inside_t, other=0.0)
    dshare = tl.dot(v, dout_t, input_precision=PRECISION)
    dscores = share * (dshare - tl.sum(share * dshare, 0)[None, :]) * root
    dscores = dscores.to(dqkv_ptr.dtype.element_ty)
    q = tl.load(qkv_ptr + place, mask=inside, other=0.0)
    dk = tl.dot(dscores, q, input_precision=PRECISION)
    tl.store(dqkv_ptr + D + place, dk.to(dqkv_ptr.dtype.element_ty), mask=inside)
    k_t = tl.load(qkv_ptr + D + place_t, mask=inside_t, other=0.0)
    dq_t = tl.dot(k_t, dscores, input_precision=PRECISION)
    tl.store(dqkv_ptr + place_t, dq_t.to(dqkv_ptr.dtype.element_ty), mask=inside_t)


def forward(qkv: Tensor, *, head_dim: int, causal: bool) -> Tensor:
    """(B, L, 3 H P) -> (B, L, H P)."""
    qkv = qkv.contiguous()
    batch, length, width = qkv.shape
    out = torch.empty(batch, length, width // 3, dtype=qkv.dtype, device=qkv.device)
    grid, rows, sizes = _cut(qkv, head_dim, causal)
    scale = head_dim**-0.5 * math.log2(math.e)
    _softmax_forward_kernel[grid](qkv, out, batch * length, rows, length, width // 3, scale, **sizes)
    return out


def backward(dout: Tensor, qkv: Tensor, *, head_dim: int, causal: bool) -> Tensor:
    """The gradient of qkv (B, L, 3 H P)."""
    qkv, dout = qkv.contiguous(), dout.contiguous()
    batch, length, width = qkv.shape
    dqkv = torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)
    grid, rows, sizes = _cut(qkv, head_dim, causal)
    root = head_dim**-0.5
    scale = root * math.log2(math.e)
    _softmax_backward_kernel[grid](dout, qkv, dqkv, batch * length, rows, length, width // 3, scale, root, **sizes)
    return dqkv


def _cut(qkv: Tensor, head_dim: int, causal: bool) -> tuple[tuple[int, int], int, dict[str, int | str | bool]]:
    """Programs by heads and groups of images; the tokens of a group; and the sizes of a program."""
    batch, length, width = qkv.shape
    tile = max(MIN_ROWS, triton.next_power_of_2(length))
    images = tile // length
    sizes = {"P": head_dim, "T": tile, "ALONE": images == 1, "CAUSAL": causal, "PRECISION": dot_precision(qkv.dtype)}
    grid = (width // 3 // head_dim, triton.cdiv(batch, images))
    return grid, images * length, {**sizes, "num_warps": 8 if tile > MIN_ROWS else 4}
