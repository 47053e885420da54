"""Short programs in CUDA C++, emulated on the CPU, and compiled: gradients of short convolutions and of steps, and
products of many tensors with factors of their own.

tests/gpu runs them on a GPU; `interpreted_kernels.py` runs them here inside of a whole mixer.
"""

import mmap
import sys

import pytest
import torch
from torch import Tensor

from mixlab.ops.short_conv.reference import short_conv
from mixlab.ops.ssd.tiling import BLOCK, Tiling
from tests.tolerances import TOLERANCES, relative_error

pytest.importorskip("triton")

from mixlab.ops.cuda.program import CompileError, aligned, as_numbers
from mixlab.ops.scale_each import op as scale_each
from mixlab.ops.short_conv import cuda_short_conv
from mixlab.ops.short_conv.cuda_short_conv import compile_march, march_backward, march_takes
from mixlab.ops.ssd import cuda_steps
from mixlab.ops.ssd.cuda_steps import compile_steps, shared_bytes, triangle_steps_backward, triangle_steps_take
from mixlab.ops.ssd.triton_steps import Flows
from tests.unit.ops.emulated_cuda import (
    COMPILER,
    EmulatedProgram,
    Order,
    emulation,
    fenced,
    fenced_tensors,
    steps_program,
)
from tests.unit.ops.launches import SHARED_BYTES, resources_of

emulated = pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="needs g++ or clang++ on Linux")


@pytest.fixture(autouse=True)
def plain_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over images by torch: Triton's interpreter is for `interpreted_kernels.py`."""
    for module in (cuda_short_conv, cuda_steps):
        monkeypatch.setattr(module, "add_up", lambda parts, dim=0: parts.sum(dim))


def march(length: int, directions: int, values: int, keys: int) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of x, weight and bias, and what they should be."""
    maps: list[mmap.mmap] = []
    generator = torch.Generator().manual_seed(length)
    channels = values + 2 * keys

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    packed = draw(2, length, channels + 6).bfloat16()
    x = fenced(packed, maps).copy_(packed)[..., 6:]  # the last row ends where memory ends
    weight, bias = draw(directions, channels, 4) / 2, draw(directions, channels) / 10
    douts = [draw(2, length, directions, width).bfloat16() for width in (values, keys, keys)]
    dvalues, dkeys, dqueries = (fenced(dout, maps).copy_(dout) for dout in douts)
    exact = [t.double().requires_grad_() for t in (x, weight, bias)]
    ways = [short_conv(exact[0], exact[1][r], exact[2][r], reverse=r == 1) for r in range(directions)]
    expected = torch.autograd.grad(torch.stack(ways, dim=2), exact, torch.cat(douts, dim=3).double())
    with emulation(), fenced_tensors():
        dx = torch.empty(packed.shape, dtype=torch.bfloat16)[..., 6:]
        dtaps = march_backward(dvalues, torch.stack([dqueries, dkeys]), x, weight, bias, dx)
    return [dx, *dtaps], list(expected)


@emulated
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 17, 38, 65])
def test_a_march_over_the_tokens_gives_every_gradient(length: int, directions: int) -> None:
    found, expected = march(length, directions, 64, 64)
    for name, one, other in zip(("x", "weight", "bias"), found, expected, strict=True):
        assert one.shape == other.shape
        error = relative_error(one, other)
        assert error < TOLERANCES[torch.bfloat16], f"{name} is off by {error:.1e}"


@emulated
def test_a_march_takes_channels_without_keys() -> None:
    found, expected = march(9, 2, 128, 0)
    assert all(relative_error(*pair) < TOLERANCES[torch.bfloat16] for pair in zip(found, expected, strict=True))


@emulated
def test_parts_of_other_tensors_are_copied_where_rows_would_not_be_aligned() -> None:
    assert aligned(torch.zeros(9)[1:]).data_ptr() % 16 == 0 and as_numbers(torch.zeros(9).bfloat16()[1:]).shape == (8,)
    whole = torch.arange(16.0)
    assert aligned(whole) is whole and torch.equal(as_numbers(whole[3:]), whole[3:])


def test_other_rows_than_a_march_reads_are_left_to_triton() -> None:
    rows = torch.zeros(2, 38, 400, dtype=torch.bfloat16)
    x, dx = rows[..., 8:264], torch.empty_like(rows)[..., 8:264]
    with emulation():
        assert march_takes(x, dx, directions=2, state=64)
        assert not march_takes(x, dx.contiguous(), directions=2, state=64)
        assert not march_takes(rows[..., 7:263], dx, directions=2, state=64)
        assert not march_takes(x.float(), dx.float(), directions=2, state=64)
        assert not march_takes(x, dx, directions=2, state=32)
        assert not march_takes(x[:0], dx[:0], directions=2, state=64)
        long = torch.zeros(1, 257, 256, dtype=torch.bfloat16)
        assert not march_takes(long, torch.empty_like(long), directions=2, state=64)
    assert not march_takes(x, dx, directions=2, state=64)  # on a CPU


@emulated
@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize(("length", "directions", "heads"), [(33, 2, 3), (38, 1, 10), (198, 2, 2)])
def test_flows_become_the_gradients_of_raw_steps(
    length: int, directions: int, heads: int, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps: list[mmap.mmap] = []
    padded, generator = -(-length // BLOCK) * BLOCK, torch.Generator().manual_seed(length)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    raw, A_log, bias = draw(2, length, heads).bfloat16(), draw(directions, heads), draw(directions, heads) - 2
    A_log[0, 0] = 9.0  # so strong that its decays are held at a bound, and have no gradient
    # What a token reads of another, times its gradient, in scan order: any lower triangle will do.
    flows = draw(2, directions, heads, length, length).tril().double()
    exact = [t.double().requires_grad_() for t in (raw, A_log, bias)]
    steps = torch.nn.functional.softplus(exact[0].mT[:, None] + exact[2][..., None])  # (B, R, heads, L)
    steps = torch.stack([way.flip(2) if r else way for r, way in enumerate(steps.unbind(1))], dim=1)
    decays = (-exact[1].exp()[..., None] * steps).clamp_min(-40)
    between = decays.cumsum(3)[..., :, None] - decays.cumsum(3)[..., None, :]
    (flows * (between + steps.log()[..., None, :])).sum().backward()  # each weight's logarithm times what flows by it
    held = torch.full((2, directions * heads, padded), 2.0**-64)
    held[..., :length] = steps.detach().flatten(1, 2).float()
    sent = torch.zeros(2, directions * heads, padded, 4)
    sent[..., :length, 0] = flows.sum(3).flatten(1, 2).float()
    sent[..., :length, 1] = draw(2, directions * heads, length)
    read = torch.zeros(1, 2, directions * heads, padded)
    read[0, ..., :length] = flows.sum(4).flatten(1, 2).float()
    planes = fenced(held.expand(3, *held.shape), maps).copy_(held.expand(3, *held.shape))
    flowing = Flows(fenced(sent, maps).copy_(sent), fenced(read, maps).copy_(read), sent.new_empty(0))
    monkeypatch.setattr(EmulatedProgram, "order", order)
    with emulation(), fenced_tensors():
        draw_of_raw = torch.empty(2, length, heads + 3, dtype=torch.bfloat16)[..., 3:]
        sums = triangle_steps_backward(planes, flowing, raw, draw_of_raw, A_log, bias)
    same = sent[..., 1].sum((0, 2)).view(directions, heads)
    expected = (exact[0].grad, exact[1].grad, same.double(), exact[2].grad)
    for name, one, other in zip(("dt", "A_log", "skip", "bias"), (draw_of_raw, *sums), expected, strict=True):
        assert other is not None
        error = relative_error(one, other)
        assert error < TOLERANCES[torch.bfloat16], f"{name} is off by {error:.1e}"


def test_steps_behind_tiles_are_left_to_triton() -> None:
    dt = torch.zeros(2, 38, 6)
    with emulation():
        assert triangle_steps_take(dt[..., :3], Tiling(BLOCK, 3, 0), directions=2)
        assert not triangle_steps_take(dt[..., ::2], Tiling(BLOCK, 3, 0), directions=2)
        assert not triangle_steps_take(dt[..., :3], Tiling(64, 0, 64), directions=2)


@emulated
def test_the_sizes_that_python_knows_are_those_of_the_program() -> None:
    for size in ((33, 1, 1), (38, 2, 24), (198, 2, 3)):
        program = steps_program(None, *size)
        assert (program.threads, program.shared_bytes) == (32 * cuda_steps.WARPS, shared_bytes(*size))


@emulated
@pytest.mark.parametrize("count", [1, 128, 131])
def test_every_tensor_is_scaled_by_its_own_factor(count: int) -> None:
    maps: list[mmap.mmap] = []
    generator = torch.Generator().manual_seed(count)
    sizes = [0, 1, 3, 4096, 4097, 10_000, 5][: max(1, count)]
    tensors = [torch.randn(sizes[n % len(sizes)], generator=generator) for n in range(count)]
    whole = torch.randn(9, generator=generator)
    tensors[-1] = whole[1:]  # a slice, which does not begin where 16 bytes do
    factors = torch.rand(count, generator=generator)
    factors[count // 2] = 1.0
    factors[0] = torch.nan if tensors[0].numel() else 0.5
    expected = [tensor * factor for tensor, factor in zip(tensors, factors, strict=True)]
    given = [fenced(t, maps).copy_(t) for t in tensors[:-1]] + tensors[-1:]
    before = whole[0].item()
    with emulation():
        scale_each._launch(given, factors, [True] * count)
    for found, wanted in zip(given, expected, strict=True):
        assert torch.equal(found.nan_to_num(7.0), wanted.nan_to_num(7.0))
    assert whole[0] == before


@emulated
def test_what_is_not_dense_is_scaled_apart_and_once() -> None:
    tensors = [torch.ones(3), torch.ones(2, 5).mT, torch.ones(4)]
    with emulation():
        scale_each._launch(tensors, torch.tensor([2.0, 3.0, 0.5]), [t.is_contiguous() for t in tensors])
    assert [t.flatten().tolist() for t in tensors] == [[2.0] * 3, [1.0] * 10, [0.5] * 4]


def test_products_with_factors_on_a_cpu_are_those_of_torch() -> None:
    tensors, factors = [torch.ones(3), torch.ones(2, 2).mT, torch.ones(4).bfloat16()], torch.tensor([2.0, 3.0, 0.5])
    scale_each.scale_each_(tensors, factors)
    assert [float(t.flatten()[-1]) for t in tensors] == [2.0, 3.0, 0.5]


@emulated
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_programs_are_checked_in_float32_whatever_torch_s_default_is(dtype: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with emulation():
            assert cuda_short_conv.worst_error(1, 64, 0, 136, torch.device("cpu")) < TOLERANCES[torch.bfloat16]
            assert scale_each.worst_error(torch.device("cpu")) < TOLERANCES[torch.float32]
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("architecture", SHARED_BYTES)
def test_they_compile_without_spilling(architecture: int) -> None:
    capability = divmod(architecture, 10)
    try:
        codes = [compile_march(directions, 1536, 64, 6448, capability=capability) for directions in (1, 2)]
    except CompileError as missing:
        pytest.skip(str(missing))
    codes += [compile_steps(length, 2, 24, capability=capability) for length in (38, 198)]
    codes.append(scale_each.compile_scaling(capability=capability))
    for code in codes:
        used = resources_of(code)
        assert used.stack == 0 and used.registers <= 128, used
