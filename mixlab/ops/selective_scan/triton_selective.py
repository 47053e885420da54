"""The selective scan on a GPU: a program walks through the sequence with the states of a few channels in registers.

Every step needs an exponential per channel and state, and little memory traffic: the states never leave the chip. The
backward pass walks twice: once forward, to note the state before every second step, then back, two steps at a time.
Sums over channels and images are made of parts in a fixed order: equal inputs give equal bits.
"""

# mypy: disallow-untyped-defs=False

import os
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = tl.constexpr(1.4426950408889634)
GROUP = 2  # steps from one noted state to the next; written out in `_walk_back_kernel`
NOTED_BYTES = 2**31  # of noted states at a time: a large batch goes backward in parts


@triton.jit
def _advance(state, v, dt, k, A):
    """The state (N, E) after a step with v, dt (E) and k (N); A is (N, E) in base 2."""
    return tl.exp2(dt[None, :] * A) * state + k[:, None] * (dt * v)[None, :]


@triton.jit
def _raw(ptr, i, L, stride, lane, num_lanes):
    inside = lane < tl.where((i < L) & (i >= 0), num_lanes, 0)
    return tl.load(ptr + i * stride + lane, mask=inside, other=0.0)


@triton.jit
def _float(x):
    return x.to(tl.float32)


@triton.jit
def _rows(ptr, step, L, stride, lane, num_lanes):
    """(lanes, 2): the numbers of two steps."""
    inside = (lane < num_lanes)[:, None] & (step < L)[None, :]
    return tl.load(ptr + step[None, :] * stride + lane[:, None], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _row(ptr, i, L, stride, lane, num_lanes):
    """The numbers of step i, zeros from L on: a step of zeros changes no state."""
    inside = lane < tl.where(i < L, num_lanes, 0)
    return tl.load(ptr + i * stride + lane, mask=inside, other=0.0).to(tl.float32)


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
def _reciprocal(x):
    """Of 1 <= x <= 2, by a reciprocal root: fewer instructions than a division, as exact."""
    return tl.rsqrt(x * x)


@triton.jit
def _steps(dt, inside, bias, RAW: tl.constexpr):
    """dt as given, or softplus(raw + bias), and the derivative of that; zero where no step is inside."""
    slope = dt
    if RAW:
        raw = dt + bias
        small = tl.exp2(-tl.abs(raw) * LOG2_E)
        dt = tl.where(inside, tl.maximum(raw, 0.0) + _log1p(small), 0.0)
        part = _reciprocal(1.0 + small)
        slope = tl.where(raw > 0.0, part, small * part)
    return dt, slope


@triton.jit
def _rates(A_ptr, s, e, n, E, N, tile):
    inside = (n < N)[:, None] & (e < E)[None, :]
    return tl.load(A_ptr + s * N * E + tile, mask=inside, other=0.0) * LOG2_E


@triton.jit(do_not_specialize=["L", "first_reverse"])
def _walk_kernel(
    q_ptr, k_ptr, v_ptr, dt_ptr, A_ptr, skip_ptr, bias_ptr, y_ptr, noted_ptr, L, S, E, N, first_reverse,
    q_b, q_l, q_s, v_b, v_l, v_s, dt_b, dt_l, dt_s, by_n, by_e,
    STATES: tl.constexpr, CHANNELS: tl.constexpr, NOTE: tl.constexpr,
    GROUP: tl.constexpr, RAW: tl.constexpr,
):  # fmt: skip
    """y, or with NOTE the states before every second step."""
    e, n = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS), tl.arange(0, STATES)
    s, b = tl.program_id(1), tl.program_id(2).to(tl.int64)
    start, way = tl.where(s >= first_reverse, L - 1, 0).to(tl.int64), tl.where(s >= first_reverse, -1, 1)
    v_ptr += b * v_b + start * v_l + s * v_s
    dt_ptr += b * dt_b + start * dt_l + s * dt_s
    k_ptr += b * q_b + start * q_l + s * q_s
    q_ptr += b * q_b + start * q_l + s * q_s
    if NOTE:
        noted_ptr += (b * S + s) * tl.cdiv(L, GROUP) * N * E
    else:
        y_ptr += ((b * L + start) * S + s) * E
    tile = n[:, None] * by_n + e[None, :] * by_e
    v_l, dt_l, q_l = v_l * way, dt_l * way, q_l * way
    y_l = way * S * E
    mine, known = e < E, n < N
    A = _rates(A_ptr, s, e, n, E, N, tile)
    skip = tl.load(skip_ptr + s * E + e, mask=mine, other=0.0).to(tl.float32)
    bias = skip
    if RAW:
        bias = tl.load(bias_ptr + s * E + e, mask=mine, other=0.0).to(tl.float32)
    state = tl.zeros((STATES, CHANNELS), tl.float32)
    i = 0
    v = _row(v_ptr, i, L, v_l, e, E)
    dt, _ = _steps(_row(dt_ptr, i, L, dt_l, e, E), i < L, bias, RAW)
    k, q = _row(k_ptr, i, L, q_l, n, N), _row(q_ptr, i, L, q_l, n, N)
    for i in range(L):
        # the next step is loaded before this one is taken
        next_v = _row(v_ptr, i + 1, L, v_l, e, E)
        next_dt, _ = _steps(_row(dt_ptr, i + 1, L, dt_l, e, E), i + 1 < L, bias, RAW)
        next_k, next_q = _row(k_ptr, i + 1, L, q_l, n, N), _row(q_ptr, i + 1, L, q_l, n, N)
        if NOTE:  # noqa: SIM102  the first is known when the kernel is compiled
            if i % GROUP == 0:
                at = noted_ptr + tl.cast(i // GROUP, tl.int64) * N * E + tile
                tl.store(at, state, mask=known[:, None] & mine[None, :])
        state = _advance(state, v, dt, k, A)
        if not NOTE:
            y = tl.sum(state * q[:, None], 0) + skip * v
            tl.store(y_ptr + i * y_l + e, y, mask=mine)
        v, dt, k, q = next_v, next_dt, next_k, next_q


@triton.jit
def _retreat(state, g, dA, dy, v, dt, k, q, A):
    """Back over a step, from the state before it and g, the gradient of the state after it by all later steps.

    Returns the gradient of the state before it, dA with the share of this step, and the gradients of q, k, of what is
    fed to each channel and of the logarithm of its decays.
    """
    decay = tl.exp2(dt[None, :] * A)
    kept = decay * state
    fed = dt * v
    dq = tl.sum((kept + k[:, None] * fed[None, :]) * dy[None, :], 1)
    g += q[:, None] * dy[None, :]
    dk = tl.sum(g * fed[None, :], 1)
    dfed = tl.sum(g * k[:, None], 0)
    through = g * kept
    return g * decay, dA + through * dt[None, :], dq, dk, dfed, tl.sum(through * A, 0)


@triton.jit(do_not_specialize=["L", "first_reverse", "B"])
def _walk_back_kernel(
    dy_ptr, q_ptr, k_ptr, v_ptr, dt_ptr, A_ptr, skip_ptr, bias_ptr, noted_ptr,
    dq_ptr, dv_ptr, ddt_ptr, dA_ptr, dskip_ptr, dbias_ptr,
    B, L, S, E, N, first_reverse, dy_b, dy_l, dy_s, q_b, q_l, q_s, v_b, v_l, v_s, dt_b, dt_l, dt_s,
    by_n, by_e, STATES: tl.constexpr, CHANNELS: tl.constexpr, GROUP: tl.constexpr, STAGES: tl.constexpr, RAW: tl.constexpr,
):  # fmt: skip
    """Every gradient; those of q and k for these channels alone, those of A and skip for this image alone."""
    part = tl.program_id(0)
    e, n = part * CHANNELS + tl.arange(0, CHANNELS), tl.arange(0, STATES)
    s, b = tl.program_id(1), tl.program_id(2).to(tl.int64)
    start, way = tl.where(s >= first_reverse, L - 1, 0).to(tl.int64), tl.where(s >= first_reverse, -1, 1)
    dy_ptr += b * dy_b + start * dy_l + s * dy_s
    v_ptr += b * v_b + start * v_l + s * v_s
    dt_ptr += b * dt_b + start * dt_l + s * dt_s
    k_ptr += b * q_b + start * q_l + s * q_s
    q_ptr += b * q_b + start * q_l + s * q_s
    dv_ptr += ((b * L + start) * S + s) * E
    ddt_ptr += ((b * L + start) * S + s) * E
    dq_ptr += (((part * B + b) * L + start) * S + s) * 2 * N
    dA_ptr += (b * S + s) * N * E
    noted_ptr += (b * S + s) * tl.cdiv(L, GROUP) * N * E
    tile = n[:, None] * by_n + e[None, :] * by_e
    dy_l, v_l, dt_l, q_l = dy_l * way, v_l * way, dt_l * way, q_l * way
    dv_l, dq_l = way * S * E, way * S * 2 * N
    mine, known = e < E, n < N
    both = known[:, None] & mine[None, :]
    A = _rates(A_ptr, s, e, n, E, N, tile)
    skip = tl.load(skip_ptr + s * E + e, mask=mine, other=0.0).to(tl.float32)
    bias = skip
    if RAW:
        bias = tl.load(bias_ptr + s * E + e, mask=mine, other=0.0).to(tl.float32)
    g = tl.zeros((STATES, CHANNELS), tl.float32)
    dA = tl.zeros((STATES, CHANNELS), tl.float32)
    dskip = tl.zeros((CHANNELS,), tl.float32)
    dbias = tl.zeros((CHANNELS,), tl.float32)
    two, both_ways = tl.arange(0, 2), tl.arange(0, 2)
    last = tl.cdiv(L, GROUP) * GROUP - GROUP
    next_dt0, next_dt1 = _raw(dt_ptr, last, L, dt_l, e, E), _raw(dt_ptr, last + 1, L, dt_l, e, E)
    for group in tl.range(tl.cdiv(L, GROUP) - 1, -1, -1, num_stages=STAGES):
        i0 = group * GROUP
        step = i0 + two
        state0 = tl.load(noted_ptr + tl.cast(group, tl.int64) * N * E + tile, mask=both, other=0.0)
        v = _rows(v_ptr, step, L, v_l, e, E)
        dy = _rows(dy_ptr, step, L, dy_l, e, E)
        dt0, slope0 = _steps(next_dt0.to(tl.float32), True, bias, RAW)
        dt1, slope1 = _steps(next_dt1.to(tl.float32), i0 + 1 < L, bias, RAW)
        next_dt0, next_dt1 = _raw(dt_ptr, i0 - 2, L, dt_l, e, E), _raw(dt_ptr, i0 - 1, L, dt_l, e, E)
        k0, k1 = tl.split(_rows(k_ptr, step, L, q_l, n, N))
        q0, q1 = tl.split(_rows(q_ptr, step, L, q_l, n, N))
        v0, v1 = tl.split(v)
        dy0, dy1 = tl.split(dy)
        state1 = _advance(state0, v0, dt0, k0, A)
        g, dA, dq1, dk1, dfed1, dlog1 = _retreat(state1, g, dA, dy1, v1, dt1, k1, q1, A)
        g, dA, dq0, dk0, dfed0, dlog0 = _retreat(state0, g, dA, dy0, v0, dt0, k0, q0, A)
        dv = tl.join(dt0 * dfed0 + skip * dy0, dt1 * dfed1 + skip * dy1)
        ddt0, ddt1 = dlog0 / LOG2_E + v0 * dfed0, dlog1 / LOG2_E + v1 * dfed1
        channels = mine[:, None] & (step < L)[None, :]
        at = step[None, :] * dv_l + e[:, None]
        tl.store(dv_ptr + at, dv, mask=channels)
        if RAW:
            ddt0 *= slope0
            ddt1 *= slope1
            dbias += ddt0 + tl.where(i0 + 1 < L, ddt1, 0.0)
        tl.store(ddt_ptr + i0 * dv_l + e, ddt0, mask=mine)
        tl.store(ddt_ptr + (i0 + 1) * dv_l + e, ddt1, mask=e < tl.where(i0 + 1 < L, E, 0))
        dqk = tl.join(tl.join(dq0, dk0), tl.join(dq1, dk1))  # (N, q or k, step)
        at = step[None, None, :] * dq_l + both_ways[None, :, None] * N + n[:, None, None]
        tl.store(dq_ptr + at, dqk, mask=known[:, None, None] & (step < L)[None, None, :])
        dskip += dy0 * v0 + dy1 * v1
    tl.store(dA_ptr + tile, dA, mask=both)
    tl.store(dskip_ptr + (b * S + s) * E + e, dskip, mask=mine)
    if RAW:
        tl.store(dbias_ptr + (b * S + s) * E + e, dbias, mask=mine)


def scan_forward(
    q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, skip: Tensor, bias: Tensor | None, num_reverse: int
) -> Tensor:
    """y (B, L, S, E) in the dtype of v. With a bias (S, E), steps are softplus(dt + bias)."""
    y = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    q, k, v, dt = _dense(q, k, v, dt)
    _walk(q, k, v, dt, _laid(A), skip, bias, num_reverse, y=y)
    return y


def scan_backward(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, skip: Tensor, bias: Tensor | None,
    num_reverse: int,
) -> list[Tensor]:  # fmt: skip
    """The gradients of all inputs that are tensors, in their shapes and dtypes."""
    q, k, v, dt, dy = _dense(q, k, v, dt, dy)
    A = _laid(A)
    batch, length, num_scans, width = v.shape
    state = q.shape[3]
    launch = _launch_of(state, backward=True)
    num_groups, num_parts = triton.cdiv(length, GROUP), triton.cdiv(width, launch["CHANNELS"])
    dv, ddt = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (v, dt))
    dqk = torch.empty(*q.shape[:3], 2, state, device=v.device)
    dA = torch.empty(batch, num_scans, state, width, device=v.device)
    dskip, dbias = torch.empty(2, batch, num_scans, width, device=v.device)
    at_once = max(1, NOTED_BYTES // (4 * num_scans * num_groups * state * width))
    for first in range(0, batch, at_once):
        some = slice(first, first + at_once)
        images = (q[some], k[some], v[some], dt[some])
        num_images = len(images[0])
        noted = torch.empty(num_images, num_scans, num_groups, state, width, device=v.device)
        parts = torch.empty(num_parts, num_images, length, num_scans, 2, state, device=v.device)
        _walk(*images, A, skip, bias, num_reverse, noted=noted)
        _walk_back_kernel[(num_parts, num_scans, num_images)](
            dy[some], *images, A, skip, bias, noted,
            parts, dv[some], ddt[some], dA[some], dskip[some], dbias[some],
            num_images, length, num_scans, width, state, num_scans - num_reverse,
            *dy.stride()[:3], *q.stride()[:3], *v.stride()[:3], *dt.stride()[:3], *_by(state, width), RAW=bias is not None, **launch,
        )  # fmt: skip
        torch.sum(parts, 0, out=dqk[some])
    dq, dk = dqk.to(q.dtype).unbind(3)
    gradients = [dq, dk, dv, ddt, _unlaid(dA.sum(0)), dskip.sum(0)]
    return gradients if bias is None else [*gradients, dbias.sum(0)]


def _walk(
    q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, skip: Tensor, bias: Tensor | None, num_reverse: int,
    *, y: Tensor | None = None, noted: Tensor | None = None,
) -> None:  # fmt: skip
    """Fill `y`, or `noted` with the states."""
    batch, length, num_scans, width = v.shape
    launch = _launch_of(q.shape[3], backward=False)
    _walk_kernel[(triton.cdiv(width, launch["CHANNELS"]), num_scans, batch)](
        q, k, v, dt, A, skip, bias, y, noted, length, num_scans, width, q.shape[3], num_scans - num_reverse,
        *q.stride()[:3], *v.stride()[:3], *dt.stride()[:3], *_by(q.shape[3], width), NOTE=y is None, RAW=bias is not None, **launch,
    )  # fmt: skip


def _launch_of(state: int, *, backward: bool) -> dict[str, Any]:
    """One warp per program, so that sums over channels wait for nobody; as many channels as registers hold."""
    states, numbers = triton.next_power_of_2(state), 512 if backward else 1024  # measured for 1 and 16 states
    return {
        "STATES": states,
        "CHANNELS": int(os.environ.get("CH_B" if backward else "CH_F", 0)) or min(32 if backward else 64, max(numbers // states, 8)),
        "GROUP": GROUP,
        **({"STAGES": int(os.environ.get("STAGES", 1))} if backward else {}),
        "num_warps": 1,
        "maxnreg": int(os.environ.get("REGS", 168)) or None if backward and state > 1 else None,  # more programs at a time
    }


STATES_FAST = bool(int(os.environ.get('FAST','1')))
def _laid(A): return A.contiguous() if STATES_FAST else A.mT.contiguous()
def _unlaid(dA): return dA.view(dA.shape[0], dA.shape[2], dA.shape[1]) if STATES_FAST else dA.mT.contiguous()
def _by(state, width): return (1, state) if STATES_FAST else (width, 1)


def _dense(*tensors: Tensor) -> list[Tensor]:
    """As they are, or copied where the last dimension is strided or tokens lie so far apart that offsets from the first
    outgrow 32 bits; the first two share their strides."""
    dense = [t if t.stride(3) == 1 and t.shape[1] * t.stride(1) < 2**31 else t.contiguous() for t in tensors]
    if len(dense) > 1 and dense[0].stride() != dense[1].stride():
        dense[:2] = [t.contiguous() for t in dense[:2]]
    return dense
