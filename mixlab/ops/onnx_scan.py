"""Both scans in ONNX: one `Scan` over the sequence, which takes any length. No operator of our own.

The recurrence of the references, step by step: each decay is a factor from 0 to 1, so that none is too strong. Imported
when something is exported: it needs onnxscript.
"""

# mypy: disallow-untyped-defs=False

from collections.abc import Callable
from typing import Any

import torch
from onnxscript import FLOAT, graph, script
from onnxscript import opset18 as op
from onnxscript.values import Opset

import mixlab.ops.selective_scan.op
import mixlab.ops.ssd.op  # noqa: F401  both register what is translated here

LAST = -(2**31)  # the end of a slice that runs backwards to the first place
LENGTH, SCANS = 1, 2  # axes


@script(Opset("mixlab", 1), default_opset=op)
def recurrence(q: FLOAT, k: FLOAT, fed: FLOAT, dt: FLOAT, rates: FLOAT, start: FLOAT) -> FLOAT:
    """q, k (B, L, S or 1, N); fed (B, L, S, E); dt (B, L, S, E or 1); rates (S, N or 1, E or 1); start (B, S, N, E)."""

    @graph()
    def step(state, q_now, k_now, fed_now, dt_now):
        third, fourth = op.Constant(value_ints=[2]), op.Constant(value_ints=[3])
        decay = op.Exp(op.Unsqueeze(dt_now, third) * rates)
        after = decay * state + op.Unsqueeze(k_now, fourth) * op.Unsqueeze(fed_now, third)
        read = op.Squeeze(op.MatMul(op.Unsqueeze(q_now, third), after), third)
        return after, read

    _, y = op.Scan(
        start,
        q,
        k,
        fed,
        dt,
        body=step,
        num_scan_inputs=4,
        scan_input_axes=[1, 1, 1, 1],
        scan_output_axes=[1],
    )
    return y


def selective_scan(q: Any, k: Any, v: Any, dt: Any, A: Any, skip: Any, bias: Any, num_reverse: int) -> Any:
    """`mixlab::selective_scan`, shapes in `selective_scan/reference.py`."""
    steps = dt if bias is None else op.Softplus(op.Add(dt, bias))
    rates = op.Transpose(A, perm=[0, 2, 1])  # (S, N, E)
    return _scan(q, k, v, op.Mul(steps, v), steps, rates, skip, num_reverse)


def ssd(q: Any, k: Any, v: Any, dt: Any, A: Any, skip: Any, num_reverse: int, keep_states: bool) -> Any:
    """`mixlab::ssd`, shapes in `ssd/reference.py`: a decay for each head, shared by its states and channels."""
    groups, heads = q.shape[SCANS], v.shape[SCANS]
    if groups > 1:
        q, k = (_per_head(t, heads // groups) for t in (q, k))
    last = op.Constant(value_ints=[3])
    steps = op.Unsqueeze(dt, last)
    rates, skip = (op.Unsqueeze(t, op.Constant(value_ints=ends)) for t, ends in ((A, [1, 2]), (skip, [1])))
    y = _scan(q, k, v, op.Mul(steps, v), steps, rates, skip, num_reverse)
    states = _zeros(v, [heads, 0, q.shape[3], v.shape[3]])  # nothing is kept for a backward pass
    return y, states, op.ConstantOfShape(op.Constant(value_ints=[0]))


def _scan(q: Any, k: Any, v: Any, fed: Any, dt: Any, rates: Any, skip: Any, num_reverse: int) -> Any:
    scans = v.shape[SCANS]
    inputs = [_turned(t, num_reverse, scans) for t in (q, k, fed, dt)]
    start = _zeros(v, [scans, q.shape[3], v.shape[3]])
    y = _turned(recurrence(*inputs, rates, start), num_reverse, scans)
    return op.Add(y, op.Mul(skip, v))


def _turned(places: Any, num_reverse: int, scans: int) -> Any:
    """(B, L, S, F), the sequence of the last scans turned round."""
    if num_reverse == 0:
        return places
    if num_reverse == scans:
        return _flipped(places)
    num_forward = scans - num_reverse
    forward, reverse = _slice(places, 0, num_forward, SCANS), _slice(places, num_forward, scans, SCANS)
    return op.Concat(forward, _flipped(reverse), axis=SCANS)


def _flipped(places: Any) -> Any:
    return _slice(places, -1, LAST, LENGTH, step=-1)


def _slice(x: Any, start: int, end: int, axis: int, *, step: int = 1) -> Any:
    return op.Slice(x, *(op.Constant(value_ints=[each]) for each in (start, end, axis, step)))


def _zeros(like: Any, shape: list[int]) -> Any:
    """(B, *shape), as many images as `like` has."""
    batch = op.Shape(like, start=0, end=1)
    return op.Expand(op.Constant(value_float=0.0), op.Concat(batch, op.Constant(value_ints=shape), axis=0))


def _per_head(shared: Any, times: int) -> Any:
    """(B, L, G, N) -> (B, L, G times, N)."""
    repeated = op.Expand(op.Unsqueeze(shared, op.Constant(value_ints=[3])), op.Constant(value_ints=[1, 1, 1, times, 1]))
    return op.Reshape(repeated, op.Constant(value_ints=[0, 0, -1, shared.shape[3]]))


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.mixlab.selective_scan.default: selective_scan,
    torch.ops.mixlab.ssd.default: ssd,
}
