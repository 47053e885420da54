"""A Mamba-2 mixer on the GPU: convolution, scan, gate and norm, each one pass for both directions, then the output.

For the backward pass the input is kept, and if wanted what the scan reads and makes of it; the rest runs again there.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mixlab.ops.gated_norm.triton_gated_norm import gated_norm_backward, gated_norm_forward
from mixlab.ops.mamba2.reference import split_projected
from mixlab.ops.short_conv.triton_short_conv import short_conv_backward, short_conv_forward
from mixlab.ops.ssd.cuda_steps import triangle_steps_backward, triangle_steps_take
from mixlab.ops.ssd.cuda_triangle import triangle_convolved, triangle_convolves
from mixlab.ops.ssd.tiling import Tiling, tiling
from mixlab.ops.ssd.triton_backward import scan_backward
from mixlab.ops.ssd.triton_forward import scan_forward, scan_states
from mixlab.ops.ssd.triton_steps import Flows, make_steps, steps_backward


class Scan(NamedTuple):
    """What a scan reads, and the y that it makes."""

    q: Tensor  # (B, L, R, N)
    k: Tensor
    v: Tensor  # (B, L, H, P), as y
    steps: Tensor
    y: Tensor


def mamba2_forward(
    projected: Tensor, conv_weight: Tensor, conv_bias: Tensor, dt_bias: Tensor, A_log: Tensor, skip: Tensor,
    norm_weight: Tensor, out_weight: Tensor, *, head_dim: int, eps: float, keep_scan: bool,
) -> tuple[Tensor, Scan]:  # fmt: skip
    """From the input projection (B, L, 2E + 2N + heads or more) to the output (B, L, D), and its scan if it is kept."""
    projected = projected.contiguous()
    gate, xkq, dt = split_projected(projected, conv_weight, dt_bias, norm_weight)
    tiles = tiling(projected, head_dim=head_dim, state=_state(xkq, A_log, head_dim))
    parameters = (conv_weight, conv_bias, dt_bias, A_log, skip)
    scan, _ = _scan(xkq, dt, *parameters, tiles, head_dim=head_dim, keep=keep_scan, keep_states=False)
    inner = gated_norm_forward(scan.y, gate, norm_weight, eps=eps)
    if not keep_scan:
        scan = Scan(*(projected.new_empty(0) for _ in Scan._fields))
    with _types_as_given(projected):
        return F.linear(inner, out_weight.to(projected.dtype)), scan


def mamba2_backward(
    dout: Tensor, projected: Tensor, conv_weight: Tensor, conv_bias: Tensor, dt_bias: Tensor, A_log: Tensor,
    skip: Tensor, norm_weight: Tensor, out_weight: Tensor, kept: Scan | None, *, head_dim: int, eps: float,
) -> list[Tensor]:  # fmt: skip
    """Gradients of the projection and of all parameters, in their order and dtypes; what was not kept is made again."""
    projected = projected.contiguous()
    dprojected = torch.empty(projected.shape, dtype=projected.dtype, device=projected.device)
    gate, xkq, dt = split_projected(projected, conv_weight, dt_bias, norm_weight)
    dgate, dxkq, ddt = split_projected(dprojected, conv_weight, dt_bias, norm_weight)
    dprojected[..., dgate.shape[2] + dxkq.shape[2] + ddt.shape[2] :] = 0  # nothing where there is no padding
    tiles = tiling(projected, head_dim=head_dim, state=_state(xkq, A_log, head_dim))
    num_reverse = A_log[1:].numel()
    skips = skip.flatten()
    if kept is None:
        parameters = (conv_weight, conv_bias, dt_bias, A_log, skip)
        scan, states = _scan(xkq, dt, *parameters, tiles, head_dim=head_dim, keep=True, keep_states=True)
        q, k, v, steps, y = scan
        del scan
    else:
        q, k, v, steps, y = kept
        states = scan_states(q, k, v, steps, skips, tiles, num_reverse=num_reverse)
    with _types_as_given(projected):
        dinner = dout @ out_weight.to(dout.dtype)
        inner, dy, dnorm_weight = gated_norm_backward(dinner, y, gate, norm_weight, dgate, eps=eps)
        dout_weight = _weight_gradient(dout, inner, out_weight.dtype)
    del y, inner, dinner
    dqk, dv, flows = scan_backward(dy, q, k, v, steps, skips, states, tiles, num_reverse=num_reverse)
    del dy, q, k, v, states
    dA_log, dskip, ddt_bias = _steps_backward(steps, flows, dt, ddt, A_log, dt_bias, tiles)
    dconv = short_conv_backward(dv, dqk, xkq, conv_weight, conv_bias, dxkq)
    gradients = (*dconv, ddt_bias, dA_log, dskip, dnorm_weight, dout_weight)
    owners = (conv_weight, conv_bias, dt_bias, A_log, skip, norm_weight, out_weight)
    return [dprojected, *(g.to(owner.dtype) for g, owner in zip(gradients, owners, strict=True))]


def _steps_backward(
    steps: Tensor, flows: Flows, dt: Tensor, ddt: Tensor, A_log: Tensor, dt_bias: Tensor, tiles: Tiling
) -> Tensor:
    """Gradients of A_log, skip and bias (3, R, heads); that of the raw steps, which directions share, goes into ddt."""
    if triangle_steps_take(dt, tiles, directions=len(A_log)):
        return triangle_steps_backward(steps, flows, dt, ddt, A_log, dt_bias)
    num_reverse = A_log[1:].numel()
    ddt_heads, sums = steps_backward(
        steps, flows, dt, A_log.flatten(), tiles, num_reverse=num_reverse, bias=dt_bias.flatten()
    )
    ddt_ways = ddt_heads.unflatten(2, A_log.shape).unbind(2)
    if len(ddt_ways) == 2:
        torch.add(*ddt_ways, out=ddt)  # one kernel, rounded once
    else:
        ddt.copy_(*ddt_ways)
    return sums.unflatten(1, A_log.shape)


def _weight_gradient(dout: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Of a linear layer, in the dtype of its weight; GPUs round a product of bfloat16 to float32 as soon."""
    dout, x = dout.flatten(0, 1), x.flatten(0, 1)
    if dout.is_cuda and dtype == torch.float32 and dout.dtype == torch.bfloat16:
        return torch.mm(dout.mT, x, out_dtype=dtype)
    return dout.mT @ x


def _types_as_given(projected: Tensor) -> AbstractContextManager[object]:
    """Autocast would multiply in a dtype of its own; entering a context takes 5 µs, so only where it would."""
    kind = projected.device.type
    available = torch.amp.is_autocast_available(kind)  # not for tensors on the meta device
    if available and torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) != projected.dtype:
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def _state(xkq: Tensor, A_log: Tensor, head_dim: int) -> int:
    return (xkq.shape[2] - A_log.shape[1] * head_dim) // 2


def _scan(
    xkq: Tensor, dt: Tensor, conv_weight: Tensor, conv_bias: Tensor, dt_bias: Tensor, A_log: Tensor, skip: Tensor,
    tiles: Tiling, *, head_dim: int, keep: bool, keep_states: bool,
) -> tuple[Scan, Tensor]:  # fmt: skip
    """The scans of all directions from the raw projections; and their states, for the backward pass.

    Without `keep` only y is sure to be there.
    """
    directions, num_reverse = A_log.shape[0], A_log[1:].numel()
    if triangle_convolves(xkq, tiles):
        steps = make_steps(dt, A_log.flatten(), tiles, num_reverse=num_reverse, bias=dt_bias.flatten())
        q, k, v, y = triangle_convolved(xkq, conv_weight, conv_bias, steps, skip.flatten(), tiles, keep=keep)
        return Scan(q, k, v, steps, y), y.new_empty(0)
    v, k, q = short_conv_forward(xkq, conv_weight, conv_bias, _state(xkq, A_log, head_dim))
    q, k, v = q.unflatten(2, (directions, -1)), k.unflatten(2, (directions, -1)), v.unflatten(2, (-1, head_dim))
    steps = make_steps(dt, A_log.flatten(), tiles, num_reverse=num_reverse, bias=dt_bias.flatten())
    y, states = scan_forward(
        q, k, v, steps, skip.flatten(), tiles, num_reverse=num_reverse, keep_states=keep_states
    )  # fmt: skip
    return Scan(q, k, v, steps, y), states
