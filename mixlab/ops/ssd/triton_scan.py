"""The kernels of the scan behind one pair of functions."""

from torch import Tensor

from mixlab.ops.ssd.tiling import tiling
from mixlab.ops.ssd.triton_backward import scan_backward
from mixlab.ops.ssd.triton_forward import scan_forward
from mixlab.ops.ssd.triton_steps import make_steps, steps_backward


def ssd_forward(
    q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, skip: Tensor, *, num_reverse: int, keep_states: bool
) -> tuple[Tensor, Tensor]:
    """The scan of `reference.py`: y (B, L, H, P) in the dtype of q, k and v; dt, A and skip in float32.

    Also the states between tiles that `ssd_backward` starts from, if they are to be kept.
    """
    tiles = tiling(v.shape[1], v.dtype)
    steps = make_steps(dt, A, tiles, num_reverse=num_reverse)
    return scan_forward(q, k, v, steps, skip, tiles, num_reverse=num_reverse, keep_states=keep_states)


def ssd_backward(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, skip: Tensor, states: Tensor, *,
    num_reverse: int,
) -> list[Tensor]:  # fmt: skip
    """From the gradient of y those of q, k, v, dt, A and skip."""
    tiles = tiling(v.shape[1], v.dtype)
    steps = make_steps(dt, A, tiles, num_reverse=num_reverse)
    dqk, dv, flows = scan_backward(dy, q, k, v, steps, skip, states, tiles, num_reverse=num_reverse)
    ddt, sums = steps_backward(steps, flows, dt, A, tiles, num_reverse=num_reverse)
    return [*dqk, dv, ddt, *sums]
