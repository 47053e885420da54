"""The selective scan on a GPU: a program walks through the sequence with the states of a few channels in registers.

Every step needs an exponential per channel and state, and little memory traffic: the states never leave the chip. All
walks take two steps at a time, while the next two are on their way. The backward pass walks twice: once forward, to
note the state before every second step, then back. Sums over channels and images are made of parts in a fixed order:
equal inputs give equal bits.
"""

# mypy: disallow-untyped-defs=False

from typing import Any, Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = tl.constexpr(1.4426950408889634)
NOTED_BYTES = 2**31  # of noted states at a time: a large batch goes backward in parts
Walk = Literal["read", "note", "back"]
# Numbers and channels of a program at most, stages of the compiler's pipeline with one state and with more: measured
# for 1 and 16 states.
LAUNCHES = {"read": (1024, 64, 4, 1), "note": (512, 64, 3, 2), "back": (512, 32, 3, 2)}


@triton.jit
def _advance(state, v, dt, k, A):
    """The state (N, E) after a step with v, dt (E) and k (N); A is (N, E) in base 2."""
    return tl.exp2(dt[None, :] * A) * state + k[:, None] * (dt * v)[None, :]


@triton.jit
def _row(ptr, i, L, stride, lane, num_lanes):
    """The numbers of step i, zeros for a step before the first or behind the last."""
    inside = lane < tl.where((i >= 0) & (i < L), num_lanes, 0)
    return tl.load(ptr + i * stride + lane, mask=inside, other=0.0)


@triton.jit
def _two_rows(ptr, step, L, stride, lane, num_lanes):
    """The numbers of two steps (lanes, 2), zeros for a step before the first or behind the last."""
    inside = (lane < num_lanes)[:, None] & ((step >= 0) & (step < L))[None, :]
    return tl.load(ptr + step[None, :] * stride + lane[:, None], mask=inside, other=0.0)


@triton.jit
def _each(rows):
    return tl.split(rows.to(tl.float32))


@triton.jit
def _log1p(x):
    """log(1 + x) for 0 <= x <= 1, to 2e-7 of itself: the polynomial of least relative error."""
    y = 0.00523269336 * x - 0.0295052389
    y = y * x + 0.0782259592
    y = y * x - 0.136632472
    y = y * x + 0.191060079
    y = y * x - 0.248429827
    y = y * x + 0.333190969
    y = y * x - 0.499994931
    return x + x * (x * y)


@triton.jit
def _steps(given, inside, bias, RAW: tl.constexpr):
    """dt as given, or softplus(raw + bias), and the derivative of that; zero unless `inside`."""
    dt = given.to(tl.float32)
    slope = dt
    if RAW:
        raw = dt + bias
        small = tl.exp2(-tl.abs(raw) * LOG2_E)
        dt = tl.where(inside, tl.maximum(raw, 0.0) + _log1p(small), 0.0)
        grown = 1.0 + small
        share = tl.rsqrt(grown * grown)  # fewer instructions than a division, as exact
        slope = tl.where(raw > 0.0, share, small * share)
    return dt, slope


@triton.jit
def _vectors(A_ptr, skip_ptr, bias_ptr, s, e, tile, inside, E, N, RAW: tl.constexpr):
    """What holds for all steps: A in base 2 (N, E), skip and bias (E)."""
    A = tl.load(A_ptr + s * N * E + tile, mask=inside, other=0.0) * LOG2_E
    skip = tl.load(skip_ptr + s * E + e, mask=e < E, other=0.0).to(tl.float32)
    bias = skip
    if RAW:
        bias = tl.load(bias_ptr + s * E + e, mask=e < E, other=0.0).to(tl.float32)
    return A, skip, bias


@triton.jit(do_not_specialize=["L", "first_reverse"])
def _walk_kernel(
    q_ptr, k_ptr, v_ptr, dt_ptr, A_ptr, skip_ptr, bias_ptr, out_ptr, L, S, E, N, first_reverse,
    q_b, q_l, q_s, v_b, v_l, v_s, dt_b, dt_l, dt_s,
    READ: tl.constexpr, RAW: tl.constexpr, STATES: tl.constexpr, CHANNELS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """With READ y, from A (S, N, E); else the states before every second step (B, S, pairs, E, N), from A (S, E, N).

    The layout of A becomes that of the states in registers: what lies side by side is shared among fewer lanes.
    """
    e, n, two = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS), tl.arange(0, STATES), tl.arange(0, 2)
    s, b = tl.program_id(1), tl.program_id(2).to(tl.int64)
    start, way = tl.where(s >= first_reverse, L - 1, 0).to(tl.int64), tl.where(s >= first_reverse, -1, 1)
    v_ptr += b * v_b + start * v_l + s * v_s
    dt_ptr += b * dt_b + start * dt_l + s * dt_s
    k_ptr += b * q_b + start * q_l + s * q_s
    q_ptr += b * q_b + start * q_l + s * q_s
    if READ:
        out_ptr += ((b * L + start) * S + s) * E
        tile = n[:, None] * E + e[None, :]
    else:
        out_ptr += (b * S + s) * tl.cdiv(L, 2) * N * E
        tile = n[:, None] + e[None, :] * N
    v_l, dt_l, q_l, y_l = v_l * way, dt_l * way, q_l * way, way * S * E
    inside = (n < N)[:, None] & (e < E)[None, :]
    A, skip, bias = _vectors(A_ptr, skip_ptr, bias_ptr, s, e, tile, inside, E, N, RAW)
    state = tl.zeros((STATES, CHANNELS), tl.float32)
    # Small rows are loaded two steps ahead by hand, those of channels by the compiler's pipeline.
    next_dt0, next_dt1 = _row(dt_ptr, 0, L, dt_l, e, E), _row(dt_ptr, 1, L, dt_l, e, E)
    next_k = _two_rows(k_ptr, two, L, q_l, n, N)
    next_q = next_k
    if READ:
        next_q = _two_rows(q_ptr, two, L, q_l, n, N)
    for pair in tl.range(tl.cdiv(L, 2), num_stages=STAGES):
        i = 2 * pair
        step = i + two
        if not READ:
            tl.store(out_ptr + tl.cast(pair, tl.int64) * N * E + tile, state, mask=inside)
        v0, v1 = _each(_two_rows(v_ptr, step, L, v_l, e, E))
        k0, k1 = _each(next_k)
        q0, q1 = _each(next_q)
        next_k = _two_rows(k_ptr, step + 2, L, q_l, n, N)
        if READ:
            next_q = _two_rows(q_ptr, step + 2, L, q_l, n, N)
        dt0, _ = _steps(next_dt0, True, bias, RAW)
        dt1, _ = _steps(next_dt1, i + 1 < L, bias, RAW)
        next_dt0, next_dt1 = _row(dt_ptr, i + 2, L, dt_l, e, E), _row(dt_ptr, i + 3, L, dt_l, e, E)
        state = _advance(state, v0, dt0, k0, A)
        if not READ:
            state = _advance(state, v1, dt1, k1, A)
        else:
            y0 = tl.sum(state * q0[:, None], 0) + skip * v0  # before the second step: both states need more registers
            state = _advance(state, v1, dt1, k1, A)
            y1 = tl.sum(state * q1[:, None], 0) + skip * v1
            known = (e < E)[:, None] & (step < L)[None, :]
            tl.store(out_ptr + step[None, :] * y_l + e[:, None], tl.join(y0, y1), mask=known)


@triton.jit
def _retreat(state, g, dA, dy, v, dt, k, q, A):
    """Back over a step, from the state before it and g, the gradient of the state after it by all later steps.

    Returns the gradient of the state before it, dA with the share of this step, and the gradients of q, of k, of what
    is fed to each channel (dt v) and of its steps by their decays alone.
    """
    decay = tl.exp2(dt[None, :] * A)
    kept = decay * state
    fed = dt * v
    dq = tl.sum((kept + k[:, None] * fed[None, :]) * dy[None, :], 1)
    g += q[:, None] * dy[None, :]
    dk = tl.sum(g * fed[None, :], 1)
    dfed = tl.sum(g * k[:, None], 0)
    through = g * kept
    return g * decay, dA + through * dt[None, :], dq, dk, dfed, tl.sum(through * A, 0) / LOG2_E


@triton.jit(do_not_specialize=["L", "first_reverse", "B"])
def _walk_back_kernel(
    dy_ptr, q_ptr, k_ptr, v_ptr, dt_ptr, A_ptr, skip_ptr, bias_ptr, noted_ptr,
    dqk_ptr, dv_ptr, ddt_ptr, dA_ptr, dskip_ptr, dbias_ptr,
    B, L, S, E, N, first_reverse, dy_b, dy_l, dy_s, q_b, q_l, q_s, v_b, v_l, v_s, dt_b, dt_l, dt_s,
    RAW: tl.constexpr, STATES: tl.constexpr, CHANNELS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Every gradient; those of q and k for these channels alone, those of A and skip for this image alone."""
    part = tl.program_id(0)
    e, n, two = part * CHANNELS + tl.arange(0, CHANNELS), tl.arange(0, STATES), tl.arange(0, 2)
    s, b = tl.program_id(1), tl.program_id(2).to(tl.int64)
    start, way = tl.where(s >= first_reverse, L - 1, 0).to(tl.int64), tl.where(s >= first_reverse, -1, 1)
    dy_ptr += b * dy_b + start * dy_l + s * dy_s
    v_ptr += b * v_b + start * v_l + s * v_s
    dt_ptr += b * dt_b + start * dt_l + s * dt_s
    k_ptr += b * q_b + start * q_l + s * q_s
    q_ptr += b * q_b + start * q_l + s * q_s
    dv_ptr += ((b * L + start) * S + s) * E
    ddt_ptr += ((b * L + start) * S + s) * E
    dqk_ptr += (((part * B + b) * L + start) * S + s) * 2 * N
    noted_ptr += (b * S + s) * tl.cdiv(L, 2) * N * E
    dy_l, v_l, dt_l, q_l = dy_l * way, v_l * way, dt_l * way, q_l * way
    dv_l, dqk_l = way * S * E, way * S * 2 * N
    mine = e < E
    tile, inside = n[:, None] + e[None, :] * N, (n < N)[:, None] & mine[None, :]
    A, skip, bias = _vectors(A_ptr, skip_ptr, bias_ptr, s, e, tile, inside, E, N, RAW)
    g = tl.zeros((STATES, CHANNELS), tl.float32)
    dA = tl.zeros((STATES, CHANNELS), tl.float32)
    dskip = tl.zeros((CHANNELS,), tl.float32)
    dbias = tl.zeros((CHANNELS,), tl.float32)
    i = 2 * tl.cdiv(L, 2) - 2
    next_dt0, next_dt1 = _row(dt_ptr, i, L, dt_l, e, E), _row(dt_ptr, i + 1, L, dt_l, e, E)
    next_k, next_q = _two_rows(k_ptr, i + two, L, q_l, n, N), _two_rows(q_ptr, i + two, L, q_l, n, N)
    for pair in tl.range(tl.cdiv(L, 2) - 1, -1, -1, num_stages=STAGES):
        i = 2 * pair
        step = i + two
        state0 = tl.load(noted_ptr + tl.cast(pair, tl.int64) * N * E + tile, mask=inside, other=0.0)
        v0, v1 = _each(_two_rows(v_ptr, step, L, v_l, e, E))
        dy0, dy1 = _each(_two_rows(dy_ptr, step, L, dy_l, e, E))
        k0, k1 = _each(next_k)
        q0, q1 = _each(next_q)
        next_k, next_q = _two_rows(k_ptr, step - 2, L, q_l, n, N), _two_rows(q_ptr, step - 2, L, q_l, n, N)
        dt0, slope0 = _steps(next_dt0, True, bias, RAW)
        dt1, slope1 = _steps(next_dt1, i + 1 < L, bias, RAW)
        next_dt0, next_dt1 = _row(dt_ptr, i - 2, L, dt_l, e, E), _row(dt_ptr, i - 1, L, dt_l, e, E)
        state1 = _advance(state0, v0, dt0, k0, A)
        g, dA, dq1, dk1, dfed1, ddt1 = _retreat(state1, g, dA, dy1, v1, dt1, k1, q1, A)
        g, dA, dq0, dk0, dfed0, ddt0 = _retreat(state0, g, dA, dy0, v0, dt0, k0, q0, A)
        dv = tl.join(dt0 * dfed0 + skip * dy0, dt1 * dfed1 + skip * dy1)
        tl.store(dv_ptr + step[None, :] * dv_l + e[:, None], dv, mask=mine[:, None] & (step < L)[None, :])
        ddt0, ddt1 = ddt0 + v0 * dfed0, ddt1 + v1 * dfed1
        if RAW:
            ddt0, ddt1 = ddt0 * slope0, ddt1 * slope1
            dbias += ddt0 + tl.where(i + 1 < L, ddt1, 0.0)
        tl.store(ddt_ptr + i * dv_l + e, ddt0, mask=mine)
        tl.store(ddt_ptr + (i + 1) * dv_l + e, ddt1, mask=e < tl.where(i + 1 < L, E, 0))
        dqk = tl.join(tl.join(dq0, dk0), tl.join(dq1, dk1))  # (N, q or k, step)
        at = step[None, None, :] * dqk_l + two[None, :, None] * N + n[:, None, None]
        tl.store(dqk_ptr + at, dqk, mask=(n < N)[:, None, None] & (step < L)[None, None, :])
        dskip += dy0 * v0 + dy1 * v1
    tl.store(dA_ptr + (b * S + s) * N * E + tile, dA, mask=inside)
    tl.store(dskip_ptr + (b * S + s) * E + e, dskip, mask=mine)
    if RAW:
        tl.store(dbias_ptr + (b * S + s) * E + e, dbias, mask=mine)


def scan_forward(
    q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, skip: Tensor, bias: Tensor | None, num_reverse: int
) -> Tensor:
    """y (B, L, S, E) in the dtype of v. With a bias (S, E), steps are softplus(dt + bias)."""
    y = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    q, k, v, dt = _dense(q, k, v, dt)
    _walk("read", y, q, k, v, dt, A.mT.contiguous(), skip, bias, num_reverse)
    return y


def scan_backward(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, skip: Tensor, bias: Tensor | None,
    num_reverse: int,
) -> list[Tensor]:  # fmt: skip
    """The gradients of all inputs that are tensors, in their shapes and dtypes."""
    q, k, v, dt, dy = _dense(q, k, v, dt, dy)
    A = A.contiguous()
    batch, length, num_scans, width = v.shape
    state = q.shape[3]
    launch = launch_of(state, "back")
    num_pairs, num_parts = triton.cdiv(length, 2), triton.cdiv(width, launch["CHANNELS"])
    dv, ddt = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (v, dt))
    dqk = torch.empty(*q.shape[:3], 2, state, device=v.device)
    dA = torch.empty(batch, *A.shape, device=v.device)
    dskip, dbias = torch.empty(2, batch, num_scans, width, device=v.device)
    at_once = max(1, NOTED_BYTES // (4 * num_scans * num_pairs * state * width))
    for first in range(0, batch, at_once):
        some = slice(first, first + at_once)
        images = (q[some], k[some], v[some], dt[some])
        num_images = len(images[0])
        noted = torch.empty(num_images, num_scans, num_pairs, width, state, device=v.device)
        parts = torch.empty(num_parts, *dqk[some].shape, device=v.device)
        _walk("note", noted, *images, A, skip, bias, num_reverse)
        _walk_back_kernel[(num_parts, num_scans, num_images)](
            dy[some], *images, A, skip, bias, noted,
            parts, dv[some], ddt[some], dA[some], dskip[some], dbias[some],
            num_images, length, num_scans, width, state, num_scans - num_reverse,
            *dy.stride()[:3], *q.stride()[:3], *v.stride()[:3], *dt.stride()[:3], RAW=bias is not None, **launch,
        )  # fmt: skip
        torch.sum(parts, 0, out=dqk[some])
    dq, dk = dqk.to(q.dtype).unbind(3)
    gradients = [dq, dk, dv, ddt, dA.sum(0), dskip.sum(0)]
    return gradients if bias is None else [*gradients, dbias.sum(0)]


def _walk(
    walk: Literal["read", "note"], out: Tensor, q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, skip: Tensor,
    bias: Tensor | None, num_reverse: int,
) -> None:  # fmt: skip
    """Fill `out`, with y or with the states."""
    batch, length, num_scans, width = v.shape
    launch = launch_of(q.shape[3], walk)
    _walk_kernel[(triton.cdiv(width, launch["CHANNELS"]), num_scans, batch)](
        q, k, v, dt, A, skip, bias, out, length, num_scans, width, q.shape[3], num_scans - num_reverse,
        *q.stride()[:3], *v.stride()[:3], *dt.stride()[:3], READ=walk == "read", RAW=bias is not None, **launch,
    )  # fmt: skip


def launch_of(state: int, walk: Walk) -> dict[str, Any]:
    """One warp per program, so that sums over channels wait for nobody; as many channels as registers hold."""
    states = triton.next_power_of_2(state)
    numbers, channels, stages_of_one, stages = LAUNCHES[walk]
    return {
        "STATES": states,
        "CHANNELS": min(channels, max(numbers // states, 8)),
        "STAGES": stages_of_one if state == 1 else stages,
        "num_warps": 1,
        "maxnreg": 128 if walk == "read" and state > 1 else None,  # more programs at a time
    }


def _dense(*tensors: Tensor) -> list[Tensor]:
    """As they are, or copied where the last dimension is strided or tokens lie so far apart that offsets from the first
    outgrow 32 bits; the first two share their strides."""
    dense = [t if t.stride(3) == 1 and t.shape[1] * t.stride(1) < 2**31 else t.contiguous() for t in tensors]
    if len(dense) > 1 and dense[0].stride() != dense[1].stride():
        dense[:2] = [t.contiguous() for t in dense[:2]]
    return dense
