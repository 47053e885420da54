"""Depthwise convolution of tokens on the GPU against float64."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import mixlab
from mixlab.ops.depthwise import op, reference
from tests.tolerances import TOLERANCES, relative_error

Inputs = tuple[Tensor, Tensor, Tensor]


def random_inputs(
    batch: int, grid: tuple[int, int], channels: int, window: tuple[int, int], dtype: torch.dtype
) -> Inputs:
    """Tokens as they lie in a projection, windows in float32, and the gradient of the output."""
    generator = torch.Generator("cuda").manual_seed(grid[0] * 100 + grid[1])
    projected = torch.randn(batch, grid[0] * grid[1], 2 * channels, generator=generator, device="cuda").to(dtype)
    kernel = torch.randn(channels, *window, generator=generator, device="cuda")
    dout = torch.randn(batch, grid[0] * grid[1], channels, generator=generator, device="cuda").to(dtype)
    return projected[..., channels:], kernel, dout


def output_and_gradients(conv, inputs: Inputs, grid: tuple[int, int]) -> list[Tensor]:
    tokens, kernel, dout = inputs
    leaves = [tokens.detach().requires_grad_(), kernel.detach().requires_grad_()]
    out = conv(*leaves, grid)
    return [out.detach(), *torch.autograd.grad(out, leaves, dout)]


def plainly(tokens: Tensor, kernel: Tensor, grid: tuple[int, int]) -> Tensor:
    maps = tokens.mT.unflatten(-1, grid)
    return F.conv2d(maps, kernel.unsqueeze(1), padding="same", groups=len(kernel)).flatten(2).mT


def check(inputs: Inputs, grid: tuple[int, int]) -> None:
    tokens, kernel, dout = inputs
    assert op.runs_kernels(tokens, kernel, grid)
    results = output_and_gradients(op.depthwise_conv, inputs, grid)
    exact = output_and_gradients(plainly, (tokens.double(), kernel.double(), dout.double()), grid)
    assert results[0].is_contiguous()
    for name, one, other in zip(("output", "gradient of tokens", "gradient of windows"), results, exact, strict=True):
        error = relative_error(one, other)
        assert error < TOLERANCES[tokens.dtype], f"the {name} is off by {error:.1e}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("grid", [(1, 1), (3, 5), (4, 4), (7, 7), (8, 8), (10, 10)], ids=str)
def test_the_kernels_give_a_convolution_and_its_gradients(
    grid: tuple[int, int], dtype: torch.dtype, poisoned: None
) -> None:
    check(random_inputs(6, grid, 384, (7, 7), dtype), grid)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("channels", [1, 24, 40, 100])
def test_any_number_of_channels(channels: int, dtype: torch.dtype, poisoned: None) -> None:
    for grid in ((4, 4), (9, 8)):
        check(random_inputs(3, grid, channels, (7, 7), dtype), grid)


@pytest.mark.parametrize("window", [(3, 3), (1, 7), (5, 1)], ids=str)
@pytest.mark.parametrize("grid", [(1, 9), (4, 4), (10, 6)], ids=str)
def test_other_windows(grid: tuple[int, int], window: tuple[int, int], poisoned: None) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        check(random_inputs(3, grid, 48, window, dtype), grid)


@pytest.mark.parametrize(("batch", "grid"), [(1, (8, 8)), (1536, (4, 4)), (512, (8, 8))])
def test_one_image_and_many(batch: int, grid: tuple[int, int], poisoned: None) -> None:
    check(random_inputs(batch, grid, 384, (7, 7), torch.bfloat16), grid)


@settings(max_examples=8, deadline=None)
@given(height=st.integers(1, 10), width=st.integers(1, 10), batch=st.integers(1, 9))
def test_random_maps_agree(height: int, width: int, batch: int) -> None:
    check(random_inputs(batch, (height, width), 32, (5, 3), torch.float32), (height, width))


@pytest.mark.parametrize("grid", [(4, 4), (10, 10)], ids=str)
def test_equal_inputs_give_equal_bits(grid: tuple[int, int]) -> None:
    inputs = random_inputs(64, grid, 384, (7, 7), torch.bfloat16)
    first = output_and_gradients(op.depthwise_conv, inputs, grid)
    for _ in range(20):
        again = output_and_gradients(op.depthwise_conv, inputs, grid)
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_what_the_kernels_do_not_take_runs_on_plain_torch() -> None:
    tokens, kernel, dout = random_inputs(2, (6, 6), 16, (9, 9), torch.float32)
    assert not op.runs_kernels(tokens, kernel, (6, 6))  # too many taps
    assert not op.runs_kernels(tokens, kernel[:, :7, :7], (3, 12))  # too long a row
    assert not op.runs_kernels(tokens.mT.contiguous().mT, kernel[:, :7, :7], (6, 6))  # tokens side by side
    results = output_and_gradients(op.depthwise_conv, (tokens, kernel, dout), (6, 6))
    expected = output_and_gradients(reference.depthwise_conv, (tokens, kernel, dout), (6, 6))
    assert all(torch.equal(one, other) for one, other in zip(results, expected, strict=True))


def test_the_operators_pass_torchs_own_check() -> None:
    tokens, kernel, _ = random_inputs(2, (3, 4), 24, (3, 3), torch.float32)
    torch.library.opcheck(op._conv.registered, (tokens.requires_grad_(), kernel.requires_grad_(), 3, 4))


def test_a_model_compiles_without_a_graph_break_and_agrees() -> None:
    torch.manual_seed(0)
    model = mixlab.create_model("gatedconv_tiny", dim=64, depth=2, patch=8, image=32).cuda()
    images = torch.randn(16, 3, 32, 32, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        eager = model(images)
        compiled = torch.compile(model, fullgraph=True, dynamic=False)(images)
    assert relative_error(compiled, eager.double()) < TOLERANCES[torch.bfloat16]
