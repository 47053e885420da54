"""The scan of 33 to 208 tokens as one lower triangle per head: programs in CUDA C++, in `triangle*.cu*` beside this.

A warp shares its sums with nobody and keeps the gradient of the scores in its registers over all heads, which Triton
cannot say. Derivation and costs: README.md.
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mixlab.ops.cuda.program import Program, as_numbers, compile_program
from mixlab.ops.cuda.trusted import Trusted, drawing, largest_error
from mixlab.ops.short_conv.reference import short_conv
from mixlab.ops.ssd.chunked import ssd_chunked
from mixlab.ops.ssd.tiling import BLOCK, TRIANGLE_SIZE, Tiling
from mixlab.ops.ssd.triton_steps import Flows, make_steps, steps_backward

HERE = Path(__file__).parent
FORWARD, CONVOLVED, BACKWARD = "triangle_forward", "triangle_convolved", "triangle_backward"  # programs by their names
FILES = {
    FORWARD: ("triangle_rows.cuh", "triangle_forward.cu"),
    CONVOLVED: ("triangle_rows.cuh", "../short_conv/short_conv.cuh", "triangle_convolved.cu"),
    BACKWARD: ("triangle_backward.cu",),
}
ROW_BYTES = 144  # as in triangle.cuh, from row to row in shared memory
TAPS_BYTES = 64 * 5 * 4  # as in triangle_convolved.cu
MULTIPROCESSORS = 132  # to divide heads among programs: a constant, so that results do not depend on the GPU
MULTIPROCESSOR_BYTES = 233_472  # of its shared memory, likewise; 1,024 of each program are not its own
OVERHEAD_HEADS = 1.5  # what a program does before and after its heads, in heads
SUMMING = 1.2  # by how much it takes longer to add up the results of several programs, too


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

    def shared_bytes(self, program: str) -> int:
        tokens = self.blocks * BLOCK
        rows, decays, room = tokens * ROW_BYTES, 2 * (16 * tokens + 16), self.warps * 8 * ROW_BYTES
        if program != BACKWARD:
            return 2 * rows + decays + room + (TAPS_BYTES if program == CONVOLVED else 0)
        scores = self.blocks * (self.blocks + 1) // 2
        reads = self.blocks * self.warps - self.warps * (self.warps - 1) // 2
        return 4 * rows + decays + room + 512 * (scores + reads)

    def at_once(self, program: str) -> int:
        """How many run on a multiprocessor at the same time: as many warps as get the registers that each needs."""
        warps = 16 if program != BACKWARD else 12 if self.warps < 4 else 8
        return min(warps // self.warps, MULTIPROCESSOR_BYTES // (self.shared_bytes(program) + 1024))


def triangle_forward(
    q: Tensor, k: Tensor, v: Tensor, steps: Tensor, skip: Tensor, tiles: Tiling, *, num_reverse: int
) -> Tensor:
    """y (B, L, H, P), dense; arguments as in `triton_forward.scan_forward`."""
    q, k, v = (_aligned(t) for t in (q, k, v))
    skip = as_numbers(skip)
    y = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    shape, grid = _shape(v, q.shape[2], num_reverse, Size(tiles.num_full), FORWARD)
    _loaded(FORWARD, v.device.index, tiles.num_full).launch(
        grid, q, k, v, steps, skip, y, shape, steps.stride(0), *(_strides(t) for t in (q, k, v, y))
    )
    return y


def triangle_convolves(xkq: Tensor, tiles: Tiling) -> bool:
    """Whether `triangle_convolved` takes these raw rows, which it reads 16 bytes at a time."""
    aligned = xkq.stride(1) % 8 == xkq.stride(0) % 8 == xkq.data_ptr() % 16 == 0
    return tiles.is_triangle and aligned and convolved_triangles_run(xkq.device, tiles.num_full)


def triangle_convolved(
    xkq: Tensor, conv_weight: Tensor, conv_bias: Tensor, steps: Tensor, skip: Tensor, tiles: Tiling, *, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The scan of a mixer's raw rows xkq (B, L, E + 2N), with the short convolution in front of it, for all directions.

    q, k (B, L, R, N) and v (B, L, H, P), empty unless they are to be kept, and y (B, L, H, P), dense.
    """
    (batch, length, _), directions, num_heads = xkq.shape, len(conv_weight), len(skip)
    kept = directions if keep else 0
    q, k, v, y = (
        torch.empty(batch, length, heads, TRIANGLE_SIZE, dtype=xkq.dtype, device=xkq.device)
        for heads in (kept, kept, num_heads if keep else 0, num_heads)
    )
    num_reverse = num_heads // directions * (directions - 1)
    shape, grid = _shape(y, directions, num_reverse, Size(tiles.num_full), CONVOLVED)
    kept_at = (q, k, v) if keep else (0, 0, 0)
    parameters = (as_numbers(conv_weight), as_numbers(conv_bias), steps, as_numbers(skip))
    strides = (_Strides(xkq.stride(0), xkq.stride(1), TRIANGLE_SIZE), _strides(q), _strides(y))
    _loaded(CONVOLVED, xkq.device.index, tiles.num_full).launch(
        grid, xkq, *parameters, y, *kept_at, shape, steps.stride(0), *strides
    )
    return q, k, v, y


def triangle_backward(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, steps: Tensor, skip: Tensor, tiles: Tiling, *, num_reverse: int
) -> tuple[Tensor, Tensor, Flows]:
    """Gradients of q and k (2, shares, B, L, G, N) and of v, dense; and the flows, of all tokens as one tile."""
    dy, q, k, v = (_aligned(t) for t in (dy, q, k, v))
    skip = as_numbers(skip)
    batch, _, num_heads, _ = v.shape
    shape, grid = _shape(v, q.shape[2], num_reverse, Size(tiles.num_full), BACKWARD)
    dqk = torch.empty(2, shape.group_heads // shape.heads, *q.shape, dtype=q.dtype, device=q.device)
    dv = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    sent = torch.empty(batch, num_heads, tiles.padded, 4, dtype=torch.float32, device=v.device)
    read = torch.empty(1, batch, num_heads, tiles.padded, dtype=torch.float32, device=v.device)
    dense = dy if dy.is_contiguous() else dy.contiguous()  # dv is stored by its strides
    strides = (*(_strides(t) for t in (q, k, v, dense)), _Strides(*dqk.stride()[2:5]))
    _loaded(BACKWARD, v.device.index, tiles.num_full).launch(
        grid, q, k, v, dense, steps, skip, *dqk, dv, sent, read, shape, steps.stride(0), *strides, dqk.stride(1)
    )
    return dqk, dv, Flows(sent, read, crossing=sent.new_empty(0, 0, 0, BLOCK))


def _shape(v: Tensor, groups: int, num_reverse: int, size: Size, program: str) -> tuple[_Shape, tuple[int, int]]:
    batch, length, num_heads, _ = v.shape
    group_heads = num_heads // groups
    at_once, summed = MULTIPROCESSORS * size.at_once(program), program == BACKWARD
    heads = share_of_heads(group_heads, programs=batch * groups, at_once=at_once, summed=summed)
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


@cache
def _loaded(name: str, device: int, blocks: int) -> Program:
    """On the current device."""
    size = Size(blocks)
    code = compile_triangle(name, blocks, capability=torch.cuda.get_device_capability(device))
    return Program(name, code, threads=32 * size.warps, shared_bytes=size.shared_bytes(name))


def compile_triangle(name: str, blocks: int, *, capability: tuple[int, int]) -> bytes:
    sources = [HERE / file for file in ("triangle.cuh", *FILES[name])]
    return compile_program(name, sources, capability=capability, BLOCKS=blocks, AT_ONCE=Size(blocks).at_once(name))


def worst_error(blocks: int, device: torch.device) -> float:
    """The largest relative error of y and of all gradients, on a small random scan in two directions."""
    draw = drawing(blocks, device)
    length, groups, num_heads, width = blocks * BLOCK - 3, 2, 8, TRIANGLE_SIZE
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
    return largest_error((y, *dqk.sum(1), dv, ddt, *sums), (expected, *gradients))


def worst_convolved_error(blocks: int, device: torch.device) -> float:
    """The largest relative error of y, and of what is kept, of small random rows."""
    draw = drawing(blocks, device)
    length, directions, heads, tiles = blocks * BLOCK - 3, 2, 3, Tiling(BLOCK, blocks, 0)
    raw = draw(2, length, (heads + 2) * TRIANGLE_SIZE).bfloat16()
    weight, bias = draw(directions, raw.shape[2], 4) / 2, draw(directions, raw.shape[2]) / 10
    num_heads = directions * heads
    dt, A, skip = draw(2, length, num_heads).abs() / 8, -draw(num_heads).exp(), draw(num_heads)
    exact_raw, taps, shifts, *exact = (t.cpu().double() for t in (raw, weight, bias, dt, A, skip))
    ways = [short_conv(exact_raw, taps[r], shifts[r], reverse=r == 1) for r in range(directions)]
    *values, k, q = torch.stack(ways, dim=2).split(TRIANGLE_SIZE, dim=3)  # (B, L, R, 64) each
    v = torch.stack(values, dim=3).flatten(2, 3)
    expected = ssd_chunked(q, k, v, *exact, num_reverse=heads)
    steps = make_steps(dt, A, tiles, num_reverse=heads)
    found = [triangle_convolved(raw, weight, bias, steps, skip, tiles, keep=keep) for keep in (False, True)]
    return largest_error((found[0][3], *found[1]), (expected, q, k, v, expected))


def _most_shared_bytes(blocks: int) -> int:
    return max(Size(blocks).shared_bytes(program) for program in FILES)


triangles_run = Trusted("scans of {} blocks of 16 tokens", worst_error, shared_bytes=_most_shared_bytes)
convolved_triangles_run = Trusted(
    "scans of {} blocks of 16 raw tokens", worst_convolved_error, shared_bytes=_most_shared_bytes
)
