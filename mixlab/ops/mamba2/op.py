"""A Mamba-2 mixer, whole or behind its input projection: fused kernels for CUDA tensors, plain torch for the rest."""

from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mixlab.ops.linear import linear_in_rows
from mixlab.ops.mamba2 import reference
from mixlab.ops.mamba2.in_place import mamba2_in_place, takes_mixer
from mixlab.ops.operator import Operator
from mixlab.ops.ssd.tiling import kernels_take, tiling

# Numbers of an input whose steps autograd may keep: 240 MiB a layer; below, running twice costs more time.
MAX_RECORDED = 3 * 2**20
CONV_WIDTH = 4  # of the convolution kernels
MAX_INNER = 8192  # E: a row must fit into the registers of one program of the norm


def mamba2_mixer(
    x: Tensor, in_weight: Tensor, *parameters: Tensor, head_dim: int, eps: float, keep_scan: bool = False
) -> Tensor:
    """The whole mixer, from tokens (B, L, D) to tokens, with the parameters of `mamba2`."""
    if takes_mixer(x, in_weight, *parameters):
        return mamba2_in_place(x, in_weight, *parameters, head_dim=head_dim, eps=eps)
    return mamba2(linear_in_rows(x, in_weight), *parameters, head_dim=head_dim, eps=eps, keep_scan=keep_scan)


def mamba2(
    projected: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor,
    dt_bias: Tensor,
    A_log: Tensor,
    skip: Tensor,
    norm_weight: Tensor,
    out_weight: Tensor,
    *,
    head_dim: int,
    eps: float,
    keep_scan: bool = False,
) -> Tensor:
    """From the input projection (B, L, 2E + 2N + heads or more) to the mixer's output (B, L, D).

    On kernels, `keep_scan` keeps what the scan reads and makes for the backward pass, which otherwise makes it again:
    faster, for memory (ssd/README.md).
    """
    parameters = (conv_weight, conv_bias, dt_bias, A_log, skip, norm_weight, out_weight)
    if not runs_kernels(projected, conv_weight, norm_weight, head_dim=head_dim):
        plain = partial(reference.mamba2, head_dim=head_dim, eps=eps)
        if _keeps_too_much(projected):
            return checkpoint(plain, projected, *parameters, use_reentrant=False, preserve_rng_state=False)
        return plain(projected, *parameters)
    return _mixer(projected, *parameters, head_dim, eps, keep_scan)


def _keeps_too_much(projected: Tensor) -> bool:
    """Whether autograd would keep so much of plain torch (20 times its input) that running it twice is better."""
    recorded = torch.is_grad_enabled() and not torch.compiler.is_compiling() and type(projected) is Tensor
    return recorded and projected.numel() > MAX_RECORDED


def runs_kernels(projected: Tensor, conv_weight: Tensor, norm_weight: Tensor, *, head_dim: int) -> bool:
    """The one dispatch: whether this mixer runs on the kernels."""
    _, channels, width = conv_weight.shape
    inner = norm_weight.shape[1]
    fits = width == CONV_WIDTH and inner <= MAX_INNER
    return fits and kernels_take(projected, head_dim=head_dim, state=(channels - inner) // 2)


def _forward(
    projected: Tensor, conv_weight: Tensor, conv_bias: Tensor, dt_bias: Tensor, A_log: Tensor, skip: Tensor,
    norm_weight: Tensor, out_weight: Tensor, head_dim: int, eps: float, keep_scan: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The mixer's output; then its scan, or five empty tensors."""
    from mixlab.ops.mamba2.triton_mamba2 import mamba2_forward  # here: a machine without a GPU may have no Triton

    tensors = (projected, conv_weight, conv_bias, dt_bias, A_log, skip, norm_weight, out_weight)
    out, scan = mamba2_forward(*tensors, head_dim=head_dim, eps=eps, keep_scan=keep_scan)
    return out, *scan


def _fake(
    projected: Tensor, conv_weight: Tensor, conv_bias: Tensor, dt_bias: Tensor, A_log: Tensor, skip: Tensor,
    norm_weight: Tensor, out_weight: Tensor, head_dim: int, eps: float, keep_scan: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    batch, length, _ = projected.shape
    keys: tuple[int, ...] = (0,)
    values, planes, precise = keys, keys, projected.dtype
    if keep_scan:
        num_heads, state = A_log.numel(), (conv_weight.shape[1] - norm_weight.shape[1]) // 2
        tiles = tiling(projected, head_dim=head_dim, state=state)
        keys, values = (batch, length, A_log.shape[0], state), (batch, length, num_heads, head_dim)
        planes, precise = (tiles.num_planes, batch, num_heads, tiles.padded), torch.float32
    q, k, v, y = (projected.new_empty(shape) for shape in (keys, keys, values, values))
    steps = projected.new_empty(planes, dtype=precise)
    return projected.new_empty(batch, length, out_weight.shape[0]), q, k, v, steps, y


def _backward(
    dout: Tensor, projected: Tensor, conv_weight: Tensor, conv_bias: Tensor, dt_bias: Tensor, A_log: Tensor,
    skip: Tensor, norm_weight: Tensor, out_weight: Tensor, q: Tensor, k: Tensor, v: Tensor, steps: Tensor, y: Tensor,
    head_dim: int, eps: float,
) -> list[Tensor]:  # fmt: skip
    from mixlab.ops.mamba2.triton_mamba2 import Scan, mamba2_backward

    tensors = (projected, conv_weight, conv_bias, dt_bias, A_log, skip, norm_weight, out_weight)
    kept = Scan(q, k, v, steps, y) if y.numel() else None
    return mamba2_backward(dout, *tensors, kept, head_dim=head_dim, eps=eps)


_mixer = Operator(
    "mamba2",
    forward=_forward,
    fake=_fake,
    backward=_backward,
    fake_backward=lambda dout, *inputs: [t.new_empty(t.shape) for t in inputs[:8]],
    keep=lambda *inputs_and_outputs: (
        (*inputs_and_outputs[:8], *inputs_and_outputs[12:]),  # the last are the scan
        inputs_and_outputs[8:10],
    ),
)
