"""The gradients of the short convolution over few tokens, in CUDA C++ (`short_conv*.cu*` beside this).

Triton would shift its window from register to register and compute every address; costs: ../ssd/README.md.
"""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from mixlab.ops.cuda.program import Program, aligned, as_numbers, compile_program
from mixlab.ops.cuda.trusted import Trusted, drawing, largest_error
from mixlab.ops.short_conv.reference import short_conv
from mixlab.ops.triton_sums import add_up

HERE = Path(__file__).parent
NAME = "short_conv_backward"
CHANNELS = 64  # of a program
MAX_LENGTH = 256  # one warp marches over all tokens


def march_takes(x: Tensor, dx: Tensor, *, directions: int, state: int) -> bool:
    """Whether `march_backward` takes x (B, L, C), a slice of dense rows, and writes into dx."""
    _, length, channels = x.shape
    fits = (
        x.dtype == torch.bfloat16
        and x.numel() > 0
        and channels % CHANNELS == state % CHANNELS == 0
        and length <= MAX_LENGTH
    )
    in_pairs = x.stride(1) == dx.stride(1) and x.stride(1) % 2 == 0 and x.data_ptr() % 4 == dx.data_ptr() % 4 == 0
    return fits and in_pairs and marches_run(x.device, *_sizes(x, directions, state))


def _sizes(x: Tensor, directions: int, state: int) -> tuple[int, int, int, int]:
    """What a program knows when it is compiled: directions, channels of values and of keys, bytes of a row."""
    return directions, x.shape[2] - 2 * state, state, 2 * x.stride(1)


def march_backward(
    dvalues: Tensor, dqk: Tensor, x: Tensor, weight: Tensor, bias: Tensor, dx: Tensor
) -> tuple[Tensor, Tensor]:
    """As `triton_short_conv.short_conv_backward`: dqk (2, B, L, R, N)."""
    (batch, length, channels), (directions, _, width) = x.shape, weight.shape
    dqueries, dkeys = dqk
    sums = torch.empty(batch, directions * channels * (width + 1), dtype=torch.float32, device=x.device)
    _loaded(x.device.index, *_sizes(x, directions, dkeys.shape[-1])).launch(
        (channels // CHANNELS, batch), x, as_numbers(weight), as_numbers(bias), aligned(dvalues), aligned(dkeys),
        aligned(dqueries), dx, sums, length, 2 * x.stride(0), 2 * dx.stride(0),
    )  # fmt: skip
    dweight, dbias = add_up(sums).split([weight.numel(), bias.numel()])
    return dweight.view(weight.shape), dbias.view(bias.shape)


@cache
def _loaded(device: int, directions: int, values: int, keys: int, token_bytes: int) -> Program:
    """On the current device."""
    capability = torch.cuda.get_device_capability(device)
    code = compile_march(directions, values, keys, token_bytes, capability=capability)
    return Program(NAME, code, threads=32, shared_bytes=0)


def compile_march(directions: int, values: int, keys: int, token_bytes: int, *, capability: tuple[int, int]) -> bytes:
    sizes = {"DIRECTIONS": directions, "VALUES": values, "KEYS": keys, "X_TOKEN": token_bytes}
    return compile_program(NAME, [HERE / "short_conv.cuh", HERE / f"{NAME}.cu"], capability=capability, **sizes)


def worst_error(directions: int, values: int, keys: int, token_bytes: int, device: torch.device) -> float:
    """The largest relative error of the gradients for two small images."""
    draw, length, channels = drawing(values, device), 38, values + 2 * keys
    x = draw(2, length, token_bytes // 2).bfloat16()[..., :channels]
    weight, bias = draw(directions, channels, 4) / 2, draw(directions, channels) / 10
    douts = [draw(2, length, directions, width).bfloat16() for width in (values, keys, keys)]
    with torch.enable_grad():  # on the CPU, where it is exact in any mode of torch, and waits for no backward pass
        exact = [t.cpu().double().requires_grad_() for t in (x, weight, bias)]
        ways = [short_conv(exact[0], exact[1][r], exact[2][r], reverse=r == 1) for r in range(directions)]
        dout = torch.cat(douts, dim=3).cpu().double()
        expected = torch.autograd.grad(torch.stack(ways, dim=2), exact, dout)
    dx = torch.full((2, length, token_bytes // 2), torch.nan, dtype=x.dtype, device=device)[..., :channels]
    found = (dx, *march_backward(douts[0], torch.stack([douts[2], douts[1]]), x, weight, bias, dx))
    return largest_error(found, expected)


marches_run = Trusted("gradients of short convolutions", worst_error)
