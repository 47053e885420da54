"""The scan, wherever the tensors are: Triton kernels for CUDA tensors of sizes they know, plain torch for the rest."""

import torch
from torch import Tensor

from mixlab.errors import InputError
from mixlab.ops.operator import Operator, kept_whole
from mixlab.ops.ssd import in_place
from mixlab.ops.ssd.chunked import ssd_chunked
from mixlab.ops.ssd.tiling import kernels_take, tiling


def ssd(q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, skip: Tensor, *, num_reverse: int = 0) -> Tensor:
    """The two-way selective scan; arguments and meaning in `reference.py`. Returns (B, L, H, P) in the dtype of v."""
    _check(q, k, v, dt, A, skip, num_reverse)
    if kept_whole():
        return _scan.registered(q, k, v, dt, A, skip, num_reverse, False)[0]
    if in_place.takes(q, k, v, dt, A, skip):
        return in_place.ssd_in_place(q, k, v, dt, A, skip, num_reverse=num_reverse)
    if not runs_kernels(q, v):
        return ssd_chunked(q, k, v, dt, A, skip, num_reverse=num_reverse)
    q, k, dt, A, skip = q.to(v.dtype), k.to(v.dtype), dt.float(), A.float(), skip.float()
    keep_states = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v, dt, A, skip))
    return _scan(q, k, v, dt, A, skip, num_reverse, keep_states)


def runs_kernels(q: Tensor, v: Tensor) -> bool:
    """The one dispatch: whether this scan runs on the kernels."""
    return kernels_take(v, head_dim=v.shape[3], state=q.shape[3])


def _forward(
    q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, skip: Tensor, num_reverse: int, keep_states: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """y, and for the backward pass, if there will be one, the states and the decays that the kernels read."""
    from mixlab.ops.ssd.triton_forward import scan_forward  # here: a machine without a GPU may have no Triton
    from mixlab.ops.ssd.triton_steps import make_steps

    tiles = tiling(v, head_dim=v.shape[3], state=q.shape[3])
    steps = make_steps(dt, A, tiles, num_reverse=num_reverse)
    y, states = scan_forward(q, k, v, steps, skip, tiles, num_reverse=num_reverse, keep_states=keep_states)
    return y, states, steps if keep_states else steps.new_empty(0)


def _fake(
    q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, skip: Tensor, num_reverse: int, keep_states: bool
) -> tuple[Tensor, Tensor, Tensor]:
    batch, _, num_heads, width = v.shape
    tiles = tiling(v, head_dim=width, state=q.shape[3])
    states = v.new_empty(batch, num_heads, tiles.num_states if keep_states else 0, q.shape[3], width)
    steps = (tiles.num_planes, batch, num_heads, tiles.padded) if keep_states else (0,)
    return v.new_empty(v.shape), states, v.new_empty(steps, dtype=torch.float32)


def _backward(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, skip: Tensor, states: Tensor, steps: Tensor,
    num_reverse: int,
) -> list[Tensor]:  # fmt: skip
    from mixlab.ops.ssd.triton_backward import scan_backward
    from mixlab.ops.ssd.triton_steps import steps_backward

    tiles = tiling(v, head_dim=v.shape[3], state=q.shape[3])
    dqk, dv, flows = scan_backward(dy, q, k, v, steps, skip, states, tiles, num_reverse=num_reverse)
    ddt, sums = steps_backward(steps, flows, dt, A, tiles, num_reverse=num_reverse)
    return [*dqk, dv, ddt, *sums]


_scan = Operator(
    "ssd",
    forward=_forward,
    fake=_fake,
    backward=_backward,
    fake_backward=lambda dy, *kept: [t.new_empty(t.shape) for t in kept[:6]],
    keep=lambda q, k, v, dt, A, skip, num_reverse, _, y, *made: ((q, k, v, dt, A, skip, *made), (num_reverse,)),
)


def _check(q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, skip: Tensor, num_reverse: int) -> None:
    if q.dim() != 4 or v.dim() != 4:
        raise InputError(f"q {tuple(q.shape)} and v {tuple(v.shape)} must be (B, L, G, N) and (B, L, H, P)")
    batch, length, num_heads, _ = v.shape
    groups = q.shape[2]
    if k.shape != q.shape or q.shape[:2] != v.shape[:2]:
        raise InputError(
            f"q {tuple(q.shape)} and k {tuple(k.shape)} must agree, and share B and L with v {tuple(v.shape)}"
        )
    if dt.shape != v.shape[:3] or A.shape != (num_heads,) or skip.shape != (num_heads,):
        raise InputError(
            f"dt {tuple(dt.shape)}, A {tuple(A.shape)} and skip {tuple(skip.shape)} must have one entry per head of "
            f"v {tuple(v.shape)}: ({batch}, {length}, {num_heads}), ({num_heads},) and ({num_heads},)"
        )
    if num_heads % groups:
        raise InputError(f"{num_heads} heads do not divide into the {groups} groups of q and k; give a divisor")
    per_group = num_heads // groups
    if not 0 <= num_reverse <= num_heads or num_reverse % per_group:
        raise InputError(
            f"num_reverse {num_reverse} is not whole groups of {per_group} heads between 0 and {num_heads}; "
            "give the two directions groups of their own"
        )
