"""The gradients of a mixer's raw steps behind a triangle, in CUDA C++ (`triangle_steps.cu` beside this).

Triton reads rows of dt by heads and flows by tokens in one layout, and one of the two is scattered.
"""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from mixlab.ops.cuda.program import Program, as_numbers, compile_program
from mixlab.ops.cuda.trusted import Trusted, drawing, largest_error
from mixlab.ops.ssd.tiling import BLOCK, Tiling
from mixlab.ops.ssd.triton_steps import LOG2_E, MIN_LOG2_DECAY, Flows, make_steps
from mixlab.ops.triton_sums import add_up

SOURCE = Path(__file__).with_name("triangle_steps.cu")
NAME = "triangle_steps_backward"
WARPS = 8  # of a program, as there


def shared_bytes(length: int, directions: int, heads: int) -> int:
    return -(-2 * 4 * length * (heads | 1) // 16) * 16


def triangle_steps_take(dt: Tensor, tiles: Tiling, *, directions: int) -> bool:
    """Whether `triangle_steps_backward` takes raw steps (B, L, heads)."""
    return tiles.is_triangle and dt.stride(2) == 1 and steps_run(dt.device, dt.shape[1], directions, dt.shape[2])


def triangle_steps_backward(
    steps: Tensor, flows: Flows, dt: Tensor, ddt: Tensor, A_log: Tensor, bias: Tensor
) -> Tensor:
    """Gradients of A_log, skip and bias (3, R, heads) in float32; that of raw steps dt (B, L, heads) goes into ddt."""
    (batch, length, _), (directions, heads) = dt.shape, A_log.shape
    sums = torch.empty(3, batch, directions, heads, dtype=torch.float32, device=dt.device)
    parameters = (as_numbers(t) for t in (bias, A_log))
    strides = (*dt.stride()[:2], *ddt.stride()[:2])
    _loaded(dt.device.index, length, directions, heads).launch(
        (1, batch), steps[2], flows.sent, flows.read, dt, ddt, *parameters, sums, *strides
    )
    return add_up(sums, dim=1)


@cache
def _loaded(device: int, length: int, directions: int, heads: int) -> Program:
    """On the current device."""
    code = compile_steps(length, directions, heads, capability=torch.cuda.get_device_capability(device))
    return Program(NAME, code, threads=32 * WARPS, shared_bytes=shared_bytes(length, directions, heads))


def compile_steps(length: int, directions: int, heads: int, *, capability: tuple[int, int]) -> bytes:
    sizes = {"LENGTH": length, "DIRECTIONS": directions, "HEADS_OF_ONE": heads}
    return compile_program(NAME, [SOURCE], capability=capability, **sizes)


def worst_error(length: int, directions: int, heads: int, device: torch.device) -> float:
    """The largest relative error for two images of random flows."""
    draw, num_heads, padded = drawing(length, device), directions * heads, -(-length // BLOCK) * BLOCK
    dt, A_log, bias = draw(2, length, heads).bfloat16(), draw(directions, heads), draw(directions, heads) - 2
    sent, read = draw(2, num_heads, padded, 4), draw(1, 2, num_heads, padded)
    steps = make_steps(
        dt, A_log.flatten(), Tiling(BLOCK, padded // BLOCK, 0), num_reverse=num_heads - heads, bias=bias.flatten()
    )
    ddt = torch.full_like(dt, torch.nan)
    sums = triangle_steps_backward(steps, Flows(sent, read, sent.new_empty(0)), dt, ddt, A_log, bias)
    step, A_of, flow, same = (t.cpu().double() for t in (steps[2], -A_log.exp(), read[0] - sent[..., 0], sent[..., 1]))
    A_of = A_of.flatten()[:, None]
    dlog = flow.flip(2).cumsum(2).flip(2) * (step * A_of * LOG2_E.value > MIN_LOG2_DECAY.value)
    dsteps = (sent[..., 0].cpu().double() / step + dlog * A_of).unflatten(1, (directions, heads))[..., :length]
    dsteps = torch.stack([way.flip(2) if r else way for r, way in enumerate(dsteps.unbind(1))], dim=1)
    slopes = torch.sigmoid(dt.cpu().double().mT[:, None] + bias.cpu().double()[..., None])
    draws = dsteps * slopes  # (B, R, heads, L)
    kept = (..., slice(length))
    expected = [
        draws.sum(1).mT,
        ((dlog * step * A_of)[kept].sum((0, 2))).view(A_log.shape),
        same[kept].sum((0, 2)).view(A_log.shape),
        draws.sum((0, 3)),
    ]
    return largest_error((ddt, *sums), expected)


steps_run = Trusted("gradients of the steps of {} tokens", worst_error, shared_bytes=shared_bytes)
