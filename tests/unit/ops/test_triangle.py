"""The scan as one triangle per head, in CUDA C++: emulated on the CPU against the float64 recurrence, and compiled.

tests/gpu runs it on a GPU; `interpreted_kernels.py` runs it here together with the kernels around it.
"""

import mmap
import sys
from itertools import islice, product

import pytest
import torch
from torch import Tensor

from mixlab.ops.short_conv.reference import short_conv
from mixlab.ops.ssd.reference import flip_reverse_heads, ssd_recurrence
from mixlab.ops.ssd.tiling import BLOCK, TRIANGLE_LENGTHS, Tiling
from tests.tolerances import TOLERANCES, relative_error

pytest.importorskip("triton")

from mixlab.ops.cuda.program import CompileError
from mixlab.ops.ssd import cuda_triangle
from mixlab.ops.ssd.cuda_triangle import (
    BACKWARD,
    FILES,
    Size,
    compile_triangle,
    share_of_heads,
    triangle_backward,
    triangle_convolved,
    triangle_convolves,
    triangle_forward,
)
from tests.unit.ops.emulated_cuda import (
    COMPILER,
    EmulatedProgram,
    Order,
    emulation,
    fenced,
    fenced_tensors,
    triangle_program,
)
from tests.unit.ops.launches import SHARED_BYTES, resources_of

BLOCKS = range(TRIANGLE_LENGTHS[0] // BLOCK + 1, TRIANGLE_LENGTHS[-1] // BLOCK + 1)
emulated = pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="needs g++ or clang++ on Linux")


def steps_of(dt: Tensor, A: Tensor, tiles: Tiling, num_reverse: int) -> Tensor:
    """What `make_steps` makes: decays within blocks, in scan order."""
    dt = flip_reverse_heads(dt, num_reverse)
    dt = torch.nn.functional.pad(dt, (0, 0, 0, tiles.padded - dt.shape[1])).clamp_min(2.0**-64)
    decay = (dt * A * 1.4426950408889634).clamp_min(-57.7).unflatten(1, (-1, BLOCK)).cumsum(2)
    source = decay - dt.log2().unflatten(1, (-1, BLOCK))
    sends = (decay[:, :, -1:] - source).exp2()
    planes = (each.flatten(1, 2) for each in (decay, source, decay.exp2(), sends))
    return torch.stack([*islice(planes, 2), dt, *planes]).mT.contiguous()


def check(length: int, *, heads: int, groups: int, num_reverse: int, batch: int = 1, strength: float = 1.0) -> None:
    maps: list[mmap.mmap] = []
    tiles = Tiling(BLOCK, -(-length // BLOCK), 0)
    generator = torch.Generator().manual_seed(length)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    q, k = draw(batch, length, groups, 64) / 2, draw(batch, length, groups, 64) / 2
    v, dy = draw(batch, length, heads, 64), draw(batch, length, heads, 64)
    q, k, v, dy = (fenced(t.bfloat16(), maps).copy_(t) for t in (q, k, v, dy))
    dt = torch.rand(batch, length, heads, generator=generator) * strength
    A, skip = -torch.rand(heads, generator=generator) - 0.1, draw(heads)
    exact = [t.double().requires_grad_() for t in (q, k, v, dt, A, skip)]
    expected = ssd_recurrence(*exact, num_reverse=num_reverse)
    gradients = torch.autograd.grad(expected, exact, dy.double())
    steps = steps_of(dt, A, tiles, num_reverse)
    steps = fenced(steps, maps).copy_(steps)
    with emulation(), fenced_tensors():
        y = triangle_forward(q, k, v, steps, skip, tiles, num_reverse=num_reverse)
        dqk, dv, flows = triangle_backward(dy, q, k, v, steps, skip, tiles, num_reverse=num_reverse)
    sent, same, _, again = flows.sent.unbind(3)
    decays = (flows.read[0] - sent).flip(2).cumsum(2).flip(2)  # gradients of the log decays
    decays = torch.where(steps[2] * A[:, None] * 1.4426950408889634 > -57.7, decays, 0.0)
    ddt = (sent / steps[2] + decays * A[:, None]).mT[:, :length]
    found = {
        "y": (y, expected),
        "q": (dqk[0].float().sum(0), gradients[0]),
        "k": (dqk[1].float().sum(0), gradients[1]),
        "v": (dv, gradients[2]),
        "dt": (flip_reverse_heads(ddt, num_reverse), gradients[3]),
        "A": ((decays * steps[2]).sum((0, 2)), gradients[4]),
        "skip": (same.sum((0, 2)), gradients[5]),
    }
    assert torch.equal(same, again)
    for name, (result, reference) in found.items():
        error = relative_error(result, reference)
        slack = 5 if name == "A" else 1  # one number per head, in which much cancels
        assert error < slack * TOLERANCES[torch.bfloat16], f"{name} is off by {error:.1e}"


@pytest.fixture
def whole_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program takes all heads of a group, one after the other, however few programs there are."""
    monkeypatch.setattr(cuda_triangle, "share_of_heads", lambda group_heads, **_: group_heads)


@emulated
@pytest.mark.parametrize("length", [33, 38, 48, 50, 64, 65, 80, 198, 208])
def test_the_triangle_gives_the_recurrence_and_every_gradient(length: int, whole_groups: None) -> None:
    check(length, heads=6, groups=2, num_reverse=3)


@emulated
@pytest.mark.parametrize(
    ("heads", "groups", "num_reverse", "batch"), [(3, 1, 0, 2), (3, 1, 3, 2), (4, 4, 2, 1), (10, 2, 5, 3)]
)
def test_groups_and_directions_agree(heads: int, groups: int, num_reverse: int, batch: int) -> None:
    check(38, heads=heads, groups=groups, num_reverse=num_reverse, batch=batch)


@emulated
@pytest.mark.parametrize("strength", [1e-15, 1e-3, 30.0, 1000.0])
def test_extreme_steps_agree(strength: float) -> None:
    check(70, heads=2, groups=2, num_reverse=1, strength=strength)


@emulated
@pytest.mark.parametrize("length", [38, 80, 100])
def test_no_result_depends_on_which_threads_run_first(
    length: int, whole_groups: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiles, generator = Tiling(BLOCK, -(-length // BLOCK), 0), torch.Generator().manual_seed(0)
    q, k, v, dy = (torch.randn(1, length, heads, 64, generator=generator).bfloat16() for heads in (1, 1, 3, 3))
    steps = steps_of(torch.rand(1, length, 3, generator=generator), -torch.rand(3), tiles, 0)
    results = []
    for order in Order:
        monkeypatch.setattr(EmulatedProgram, "order", order)
        with emulation():
            y = triangle_forward(q, k, v, steps, torch.ones(3), tiles, num_reverse=0)
            dqk, dv, flows = triangle_backward(dy, q, k, v, steps, torch.ones(3), tiles, num_reverse=0)
        results.append((y, dqk, dv, flows.sent, flows.read))
    for other in results[1:]:
        assert all(torch.equal(one, two) for one, two in zip(results[0], other, strict=True))


@emulated
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("length", [33, 38, 48, 50, 64, 65, 80, 198, 208])
def test_the_convolution_on_the_way_gives_what_the_reference_does(
    length: int, directions: int, whole_groups: None
) -> None:
    maps: list[mmap.mmap] = []
    heads, tiles = 2, Tiling(BLOCK, -(-length // BLOCK), 0)
    generator = torch.Generator().manual_seed(length)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    packed = draw(2, length, 64 * (heads + 2) + 8).bfloat16()
    raw = fenced(packed, maps).copy_(packed)[..., 8:]  # rows apart, the last of which ends where memory ends
    weight, bias = draw(directions, raw.shape[2], 4) / 2, draw(directions, raw.shape[2]) / 10
    num_heads = directions * heads
    dt, A, skip = torch.rand(2, length, num_heads, generator=generator), -torch.rand(num_heads), draw(num_heads)
    ways = [short_conv(raw.double(), weight[r].double(), bias[r].double(), reverse=r == 1) for r in range(directions)]
    *values, k, q = torch.stack(ways, dim=2).split(64, dim=3)
    v = torch.stack(values, dim=3).flatten(2, 3)
    reverse = num_heads - heads
    expected = ssd_recurrence(q, k, v, dt.double(), A.double(), skip.double(), num_reverse=reverse)
    steps = steps_of(dt, A, tiles, reverse)
    steps = fenced(steps, maps).copy_(steps)
    with emulation(), fenced_tensors():
        *nothing, y = triangle_convolved(raw, weight, bias, steps, skip, tiles, keep=False)
        *kept, again = triangle_convolved(raw, weight, bias, steps, skip, tiles, keep=True)
    assert all(t.numel() == 0 for t in nothing) and torch.equal(y, again)
    for name, found, reference in zip("yqkv", (y, *kept), (expected, q, k, v), strict=True):
        error = relative_error(found, reference)
        assert error < TOLERANCES[torch.bfloat16], f"{name} is off by {error:.1e}"


@emulated
@pytest.mark.parametrize("heads_at_once", [1, 2])
def test_programs_that_share_a_direction_make_what_one_makes(
    heads_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiles, generator = Tiling(BLOCK, 3, 0), torch.Generator().manual_seed(0)
    raw = torch.randn(1, 38, 6 * 64, generator=generator).bfloat16()
    taps = torch.randn(2, 6 * 64, 4, generator=generator), torch.randn(2, 6 * 64, generator=generator)
    steps = steps_of(torch.rand(1, 38, 8, generator=generator), -torch.rand(8), tiles, 4)
    results = []
    for order, heads in ((Order.EVENLY, 4), (Order.FIRST_AHEAD, heads_at_once), (Order.LAST_AHEAD, heads_at_once)):
        monkeypatch.setattr(cuda_triangle, "share_of_heads", lambda group_heads, heads=heads, **_: heads)
        monkeypatch.setattr(EmulatedProgram, "order", order)
        with emulation(), fenced_tensors():
            results.append(triangle_convolved(raw, *taps, steps, torch.ones(8), tiles, keep=True))
    for other in results[1:]:
        assert all(torch.equal(one, two) for one, two in zip(results[0], other, strict=True))


def test_raw_rows_that_are_not_aligned_are_convolved_apart() -> None:
    tiles, rows = Tiling(BLOCK, 3, 0), torch.zeros(2, 38, 400, dtype=torch.bfloat16)
    with emulation():
        assert triangle_convolves(rows[..., 8:], tiles) and not triangle_convolves(rows[..., 4:], tiles)
        assert not triangle_convolves(rows[..., :396].contiguous(), tiles)
        assert not triangle_convolves(rows, Tiling(64, 0, 64))


@emulated
def test_strided_rows_are_read_in_place_and_unaligned_ones_are_copied() -> None:
    tiles, generator = Tiling(BLOCK, 3, 0), torch.Generator().manual_seed(0)
    packed = torch.randn(2, 38, 6 * 64 + 4, generator=generator).bfloat16()
    dt, A, skip = torch.rand(2, 38, 2, generator=generator), -torch.rand(2), torch.randn(2)
    steps = steps_of(dt, A, tiles, 1)
    for start in (0, 4):
        q, k, v = (part.unflatten(2, (2, 64)) for part in packed[..., start : start + 384].split(128, dim=2))
        with emulation():
            y = triangle_forward(q, k, v, steps, skip, tiles, num_reverse=1)
            dense = triangle_forward(*(t.contiguous() for t in (q, k, v)), steps, skip, tiles, num_reverse=1)
        assert torch.equal(y, dense)


@emulated
def test_a_network_in_half_precision_gives_its_skip_so() -> None:
    tiles, generator = Tiling(BLOCK, 3, 0), torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 38, 2, 64, generator=generator).bfloat16() for _ in range(3))
    steps = steps_of(torch.rand(1, 38, 2, generator=generator), -torch.rand(2), tiles, 1)
    skip = torch.tensor([0.5, 0.0, -2.0, 0.0])[::2]
    with emulation():
        exact = triangle_forward(q, k, v, steps, skip.contiguous(), tiles, num_reverse=1)
        for given in (skip, skip.bfloat16()):
            assert torch.equal(triangle_forward(q, k, v, steps, given, tiles, num_reverse=1), exact)


@emulated
def test_the_sizes_that_python_knows_are_those_of_the_programs() -> None:
    for blocks in (3, 5, 12, 13):
        for name in FILES:
            program = triangle_program(name, None, blocks)
            assert program.threads == 32 * Size(blocks).warps
            assert program.shared_bytes == Size(blocks).shared_bytes(name)


@pytest.mark.parametrize("architecture", SHARED_BYTES)
def test_every_size_compiles_and_fits_into_registers_and_shared_memory(architecture: int) -> None:
    """Where a program needs more shared memory than a GPU has, the dispatch does without it."""
    try:
        compile_triangle("triangle_forward", 3, capability=divmod(architecture, 10))
    except CompileError as missing:
        pytest.skip(str(missing))
    for blocks, name in product(BLOCKS if architecture == 90 else (3, 13), FILES):
        used = resources_of(compile_triangle(name, blocks, capability=divmod(architecture, 10)))
        size = Size(blocks)
        warps = size.at_once(name) * size.warps
        assert used.registers * 32 * warps <= 2**16, f"{name} of {blocks} blocks: {used}"
        assert used.stack <= (160 if name == BACKWARD else 24), f"{name} of {blocks} blocks: {used}"
        assert size.shared_bytes(name) <= SHARED_BYTES[90]


def test_an_error_of_the_compiler_says_what_is_wrong() -> None:
    try:
        compile_triangle("triangle_forward", 3, capability=(9, 0))
    except CompileError as missing:
        pytest.skip(str(missing))
    with pytest.raises(CompileError, match="gpu-architecture"):
        compile_triangle("triangle_forward", 3, capability=(1, 2))


def test_heads_are_divided_so_that_no_multiprocessor_waits_long() -> None:
    for group_heads in range(1, 49):
        for programs in (1, 2, 16, 128, 256, 1000):
            assert group_heads % share_of_heads(group_heads, programs=programs, at_once=132, summed=True) == 0
    assert share_of_heads(24, programs=256, at_once=132, summed=False) == 24  # two rounds of all heads: 97 % full
    assert share_of_heads(24, programs=4, at_once=132, summed=True) == 1
    assert share_of_heads(24, programs=140, at_once=132, summed=True) < 24  # not one round and a bit of another
    for summed, heads in ((False, 8), (True, 24)):  # 76 heads' time instead of 76.5 is not worth a sum
        assert share_of_heads(24, programs=1024, at_once=396, summed=summed) == heads
