"""The selective scan, wherever the tensors are: a Triton kernel for CUDA tensors, plain torch for the rest."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from mixlab.errors import InputError
from mixlab.ops.backend import kernels_run
from mixlab.ops.operator import Operator, kept_whole
from mixlab.ops.selective_scan.chunked import selective_scan_chunked

MAX_STATES = 64  # of a channel, which a program holds in registers


def selective_scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dt: Tensor,
    A: Tensor,
    skip: Tensor,
    *,
    dt_bias: Tensor | None = None,
    num_reverse: int = 0,
) -> Tensor:
    """S scans at once; arguments and meaning in `reference.py`. Returns (B, L, S, E) in the dtype of v.

    With `dt_bias` (S, E), `dt` is raw and the steps are `softplus_steps` of both, which kernels never write down.
    """
    _check(q, k, v, dt, A, skip, num_reverse)
    if v.is_meta or kept_whole():  # thousands of steps would say no more
        return _scan.registered(q, k, v, dt, A, skip, dt_bias, num_reverse)
    if not runs_kernels(q, v):
        steps = dt if dt_bias is None else softplus_steps(dt, dt_bias)
        return selective_scan_chunked(q, k, v, steps, A, skip, num_reverse=num_reverse)
    if dt_bias is None:
        dt = dt.float()
    else:
        dt, dt_bias = dt.to(v.dtype), dt_bias.float()
    return _scan(q.to(v.dtype), k.to(v.dtype), v, dt, A.float(), skip.float(), dt_bias, num_reverse)


def softplus_steps(raw: Tensor, bias: Tensor) -> Tensor:
    """Positive steps in the precision of the bias."""
    return F.softplus(raw.to(bias.dtype) + bias)


def runs_kernels(q: Tensor, v: Tensor) -> bool:
    """The one dispatch: whether this scan runs on the kernels."""
    fits = q.shape[3] <= MAX_STATES and v.shape[0] > 0 and 0 < v.shape[1:].numel() < 2**31
    return fits and v.dtype in (torch.bfloat16, torch.float32) and kernels_run(v)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, skip: Tensor, bias: Tensor | None, num_reverse: int
) -> Tensor:
    from mixlab.ops.selective_scan.triton_selective import scan_forward  # a machine without a GPU may have no Triton

    return scan_forward(q, k, v, dt, A, skip, bias, num_reverse)


def _backward(
    dy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dt: Tensor,
    A: Tensor,
    skip: Tensor,
    bias: Tensor | None,
    num_reverse: int,
) -> list[Tensor]:
    from mixlab.ops.selective_scan.triton_selective import scan_backward

    return scan_backward(dy, q, k, v, dt, A, skip, bias, num_reverse)


_scan = Operator(
    "selective_scan",
    forward=_forward,
    fake=lambda q, k, v, *_: v.new_empty(v.shape),
    backward=_backward,
    fake_backward=lambda dy, *kept: [t.new_empty(t.shape) for t in kept[:7] if t is not None],
    keep=lambda q, k, v, dt, A, skip, bias, num_reverse, y: ((q, k, v, dt, A, skip, bias), (num_reverse,)),
)


@register_flop_formula(torch.ops.mixlab.selective_scan)
def _flops(q: torch.Size, k: torch.Size, v: torch.Size, *_: object, **__: object) -> int:
    """As VMamba and those after it count: 9 L E N and the skip, beside multiply-accumulates, which are two FLOPs."""
    return 2 * (9 * q[-1] + 1) * v.numel()


def _check(q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, skip: Tensor, num_reverse: int) -> None:
    if q.dim() != 4 or v.dim() != 4:
        raise InputError(f"q {tuple(q.shape)} and v {tuple(v.shape)} must be (B, L, S, N) and (B, L, S, E)")
    if k.shape != q.shape or q.shape[:3] != v.shape[:3]:
        raise InputError(
            f"q {tuple(q.shape)} and k {tuple(k.shape)} must agree, and share B, L and S with v {tuple(v.shape)}"
        )
    _, _, num_scans, width = v.shape
    rates = (num_scans, width, q.shape[3])
    if dt.shape != v.shape or A.shape != rates or skip.shape != rates[:2]:
        raise InputError(
            f"dt {tuple(dt.shape)}, A {tuple(A.shape)} and skip {tuple(skip.shape)} must be {tuple(v.shape)}, {rates} "
            f"and {rates[:2]} for v {tuple(v.shape)}"
        )
    if not 0 <= num_reverse <= num_scans:
        raise InputError(f"num_reverse {num_reverse} is not between 0 and the {num_scans} scans")
