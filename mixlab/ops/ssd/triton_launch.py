"""How the kernels of the scan are launched."""

from typing import Any

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import JITFunction

MIN_PROGRAMS = 768  # of a backward pass: fill a large chip three times over
NUM_STAGES = 3  # of the pipeline of loads, each with buffers in shared memory; measured: README.md

_stages: dict[tuple[Any, ...], int] = {}  # where fewer fit


def launch(kernel: JITFunction, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Launch with three pipeline stages, or with as many as fit into the shared memory of the GPU."""
    key = (kernel, args[0].device, args[0].dtype, *options.values())
    while True:
        stages = _stages.get(key, NUM_STAGES)
        try:
            kernel[grid](*args, num_stages=stages, **options)
            return
        except OutOfResources:
            if stages == 1:
                raise
            _stages[key] = stages - 1


def dot_precision(dtype: torch.dtype) -> str:
    """Three TF32 products keep float32 to about 1e-6; other types need no choice."""
    return "tf32x3" if dtype == torch.float32 else "ieee"


def largest_divisor(number: int, *, limit: int) -> int:
    """The largest divisor of a number that is not above the limit."""
    return max(divisor for divisor in range(1, min(number, limit) + 1) if number % divisor == 0)


def heads_per_program(group_heads: int, tiles: int) -> int:
    """All heads of a group in one program, or fewer where that leaves processors idle; each share costs a sum.

    Always a divisor: programs that take more heads than there are would write behind the buffers.
    """
    wanted = group_heads * tiles // MIN_PROGRAMS
    return largest_divisor(group_heads, limit=wanted if wanted else max(1, group_heads // 4))


def warps_of_tile(tile: int, q: Tensor, v: Tensor) -> int:
    """Warps for a sequence of one tile: one for a short tile of narrow heads, whose products fit its registers."""
    return 1 if tile <= 32 and _are_narrow(q, v) else 4


def warps_of_pair(tile: int, q: Tensor, v: Tensor) -> int:
    """The same for a tile and its tail."""
    return 2 if tile <= 32 and _are_narrow(q, v) else 4


def _are_narrow(q: Tensor, v: Tensor) -> bool:
    return max(q.shape[3], v.shape[3]) <= 64 and v.dtype == torch.bfloat16


def rows_dense(tensor: Tensor) -> Tensor:
    """(B, L, H, P) as it is, or a copy where the last dimension is strided, or tokens or heads lie too far apart.

    Offsets inside a tile and its tail and between heads are 32-bit numbers; everything else is counted in 64 bits.
    """
    _, tokens, heads, last = tensor.stride()
    near = max(128 * tokens, tensor.shape[2] * heads) < 2**31
    return tensor if last == 1 and near else tensor.contiguous()
