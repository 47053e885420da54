"""The scan of 33 to 208 tokens as one lower triangle per head: programs in CUDA C++, in `triangle*.cu*` beside this.

A warp shares its sums with nobody and keeps the gradient of the scores in its registers over all heads, which Triton
cannot say. Derivation and costs: README.md.
"""

import ctypes
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mixlab.ops.cuda.program import CompileError, Program, compile_program
from mixlab.ops.ssd.chunked import ssd_chunked
from mixlab.ops.ssd.tiling import BLOCK, Tiling
from mixlab.ops.ssd.triton_steps import Flows, make_steps, steps_backward

SOURCES = Path(__file__).parent
ROW_BYTES = 144  # as in triangle.cuh, from row to row in shared memory
MULTIPROCESSORS = 132  # to divide heads among programs: a constant, so that results do not depend on the GPU
MULTIPROCESSOR_BYTES = 233_472  # of its shared memory, likewise; 1,024 of each program are not its own
OVERHEAD_HEADS = 1.5  # what a program does before and after its heads, in heads
SUMMING = 1.2  # by how much it takes longer to add up the results of several programs, too
MAX_ERROR = 0.05  # of a program that is not broken: 3e-3 is usual, more where sums cancel


class _Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("length", "num_heads", "group_heads", "first_reverse", "heads")]


class _Strides(ctypes.Structure):
    _fields_ = [(name, ctypes.c_longlong) for name in ("batch", "token", "head")]


class Size(NamedTuple):
    """What a program of so many blocks takes of a multiprocessor, as in triangle.cuh."""

    blocks: int

    @property
    def warps(self) -> int:
        return (self.blocks + 1) // 2

    def shared_bytes(self, *, backward: bool) -> int:
        tokens = self.blocks * BLOCK
        rows, decays, room = tokens * ROW_BYTES, 2 * (16 * tokens + 16), self.warps * 8 * ROW_BYTES
        if not backward:
            return 2 * rows + decays + room
        scores = self.blocks * (self.blocks + 1) // 2
        reads = self.blocks * self.warps - self.warps * (self.warps - 1) // 2
        return 4 * rows + decays + room + 512 * (scores + reads)

    def at_once(self, *, backward: bool) -> int:
        """How many run on a multiprocessor at the same time: as many warps as get the registers that each needs."""
        warps = 16 if not backward else 12 if self.warps < 4 else 8
        return min(warps // self.warps, MULTIPROCESSOR_BYTES // (self.shared_bytes(backward=backward) + 1024))


def triangle_forward(
    q: Tensor, k: Tensor, v: Tensor, steps: Tensor, skip: Tensor, tiles: Tiling, *, num_reverse: int
) -> Tensor:
    """y (B, L, H, P), dense; arguments as in `triton_forward.scan_forward`."""
    q, k, v = (_aligned(t) for t in (q, k, v))
    skip = _numbers(skip)
    y = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    shape, grid = _shape(q, v, num_reverse, Size(tiles.num_full), backward=False)
    _loaded(v.device.index, tiles.num_full)[0].launch(
        grid, q, k, v, steps, skip, y, shape, steps.stride(0), *(_strides(t) for t in (q, k, v, y))
    )
    return y


def triangle_backward(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, steps: Tensor, skip: Tensor, tiles: Tiling, *, num_reverse: int
) -> tuple[Tensor, Tensor, Flows]:
    """Gradients of q and k (2, shares, B, L, G, N) and of v, dense; and the flows, of all tokens as one tile."""
    dy, q, k, v = (_aligned(t) for t in (dy, q, k, v))
    skip = _numbers(skip)
    batch, _, num_heads, _ = v.shape
    shape, grid = _shape(q, v, num_reverse, Size(tiles.num_full), backward=True)
    dqk = torch.empty(2, shape.group_heads // shape.heads, *q.shape, dtype=q.dtype, device=q.device)
    dv = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    sent = torch.empty(batch, num_heads, tiles.padded, 4, dtype=torch.float32, device=v.device)
    read = torch.empty(1, batch, num_heads, tiles.padded, dtype=torch.float32, device=v.device)
    dense = dy if dy.is_contiguous() else dy.contiguous()  # dv is stored by its strides
    strides = (*(_strides(t) for t in (q, k, v, dense)), _Strides(*dqk.stride()[2:5]))
    _loaded(v.device.index, tiles.num_full)[1].launch(
        grid, q, k, v, dense, steps, skip, *dqk, dv, sent, read, shape, steps.stride(0), *strides, dqk.stride(1)
    )
    return dqk, dv, Flows(sent, read, crossing=sent.new_empty(0, 0, 0, BLOCK))


def _shape(q: Tensor, v: Tensor, num_reverse: int, size: Size, *, backward: bool) -> tuple[_Shape, tuple[int, int]]:
    batch, length, num_heads, _ = v.shape
    group_heads = num_heads // q.shape[2]
    at_once = MULTIPROCESSORS * size.at_once(backward=backward)
    heads = share_of_heads(group_heads, programs=batch * q.shape[2], at_once=at_once, summed=backward)
    return _Shape(length, num_heads, group_heads, num_heads - num_reverse, heads), (num_heads // heads, batch)


def share_of_heads(group_heads: int, *, programs: int, at_once: int, summed: bool) -> int:
    """How many heads of a group one program takes, so that all are done soonest; `programs` if it takes them all.

    `summed` says that the results of programs with one group must be added up.
    """

    def time(heads: int) -> float:
        waves = -(-programs * (group_heads // heads) // at_once)
        return waves * (heads + OVERHEAD_HEADS) * (SUMMING if summed and heads < group_heads else 1)

    divisors = (heads for heads in range(group_heads, 0, -1) if group_heads % heads == 0)
    return min(divisors, key=time)


def _strides(tensor: Tensor) -> _Strides:
    return _Strides(*tensor.stride()[:3])


def _aligned(tensor: Tensor) -> Tensor:
    """(B, L, H, P) as it is, or a copy: rows are read 16 bytes at a time."""
    *others, last = tensor.stride()
    if last == 1 and all(stride % 8 == 0 for stride in others) and tensor.data_ptr() % 16 == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _numbers(skip: Tensor) -> Tensor:
    """One after the other in float32: a network as a whole may be in bfloat16."""
    return skip.float().contiguous()


@cache
def _loaded(device: int, blocks: int) -> tuple[Program, Program]:
    """Forward and backward, on the current device."""
    size, has = Size(blocks), torch.cuda.get_device_properties(device)
    programs = []
    for name in ("triangle_forward", "triangle_backward"):
        code = compile_triangle(name, blocks, capability=(has.major, has.minor))
        shared_bytes = size.shared_bytes(backward=name == "triangle_backward")
        programs.append(Program(name, code, threads=32 * size.warps, shared_bytes=shared_bytes))
    return programs[0], programs[1]


def compile_triangle(name: str, blocks: int, *, capability: tuple[int, int]) -> bytes:
    sources = (SOURCES / "triangle.cuh", SOURCES / f"{name}.cu")
    at_once = Size(blocks).at_once(backward=name == "triangle_backward")
    return compile_program(name, sources, capability=capability, BLOCKS=blocks, AT_ONCE=at_once)


_verdicts: dict[tuple[int, int], bool] = {}


def triangles_run(device: int, blocks: int) -> bool:
    """Whether triangles of so many blocks run on a GPU, and compute there what they should; warns, once, if not."""
    if not torch.cuda.is_available():  # a fake tensor: nothing will run
        return False
    if (device, blocks) not in _verdicts:
        if torch.cuda.is_current_stream_capturing():
            return False  # nothing can be compiled or checked now
        with ThreadPoolExecutor(1) as fresh:  # a thread without autocast, tracing and modes of torch
            _verdicts[device, blocks] = fresh.submit(_found_right, device, blocks).result()
    return _verdicts[device, blocks]


def _found_right(device: int, blocks: int) -> bool:
    """Compilers have got kernels wrong before (README.md), so each program is held against plain torch once."""
    available = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    if available < Size(blocks).shared_bytes(backward=True):
        return False
    try:
        with torch.cuda.device(device):
            error = worst_error(blocks, torch.device("cuda", device))
        why = None if error < MAX_ERROR else f"their error is {error:.2g}"
    except CompileError as failure:
        why = str(failure)
    if why is not None:
        warnings.warn(f"scans of {blocks * BLOCK} tokens run on other kernels: {why}", stacklevel=2)
    return why is None


def worst_error(blocks: int, device: torch.device) -> float:
    """The largest relative error of y and of all gradients, on a small random scan in two directions."""
    generator = torch.Generator().manual_seed(blocks)
    length, groups, num_heads, width = blocks * BLOCK - 3, 2, 8, 64

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device)

    q, k = draw(2, length, groups, width) / 4, draw(2, length, groups, width) / 4
    v, dy = draw(2, length, num_heads, width), draw(2, length, num_heads, width)
    q, k, v, dy = (t.bfloat16() for t in (q, k, v, dy))
    dt, A, skip = draw(2, length, num_heads).abs() / 8, -draw(num_heads).exp(), draw(num_heads)
    tiles = Tiling(BLOCK, blocks, 0)
    with torch.enable_grad():  # on the CPU, where it is exact in any mode of torch, and waits for no backward pass
        exact = [t.cpu().double().requires_grad_() for t in (q, k, v, dt, A, skip)]
        expected = ssd_chunked(*exact, num_reverse=num_heads // 2)
        gradients = torch.autograd.grad(expected, exact, dy.cpu().double())
    reverse = num_heads // 2
    steps = make_steps(dt, A, tiles, num_reverse=reverse)
    y = triangle_forward(q, k, v, steps, skip, tiles, num_reverse=reverse)
    dqk, dv, flows = triangle_backward(dy, q, k, v, steps, skip, tiles, num_reverse=reverse)
    ddt, sums = steps_backward(steps, flows, dt, A, tiles, num_reverse=reverse)
    found = (y, *dqk.sum(1), dv, ddt, *sums)
    pairs = zip(found, (expected, *gradients), strict=True)
    errors = torch.stack([(one.cpu().double() - other).norm() / other.norm() for one, other in pairs]).detach()
    return float(errors.nan_to_num(torch.inf).max())
