"""What runs on a GPU in place of torch's own linear layers and convolutions: the same values and gradients."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mixlab.mixers import gated_conv
from mixlab.mixers.mamba2 import Mamba2, Mamba2Config
from mixlab.ops.depthwise.op import depthwise_conv
from mixlab.ops.depthwise.reference import FlippedGradient
from mixlab.ops.linear import SummedByProduct, linear_in_rows, patches_as_rows
from mixlab.ops.mamba2.reference import mamba2


def agree(ours: Callable[..., Tensor], theirs: Callable[..., Tensor], *shapes: tuple[int, ...]) -> None:
    """Values and gradients in float64; of what is given, all wants gradients."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True) for shape in shapes]
    outputs = [function(*inputs) for function in (ours, theirs)]
    torch.testing.assert_close(*outputs)
    weights = torch.randn(outputs[0].shape, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(*(torch.autograd.grad((output * weights).sum(), inputs) for output in outputs))


@pytest.mark.parametrize("leading", [(7,), (3, 5), (2, 3, 4)])
def test_a_bias_summed_by_a_product(leading: tuple[int, ...]) -> None:
    agree(SummedByProduct.apply, F.linear, (*leading, 6), (9, 6), (9,))


def test_only_the_gradients_that_are_wanted() -> None:
    x, weight, bias = torch.randn(3, 5, 6), torch.randn(9, 6, requires_grad=True), torch.randn(9)
    SummedByProduct.apply(x, weight, bias).sum().backward()
    assert weight.grad is not None and x.grad is None


def test_the_second_derivative() -> None:
    inputs = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 4), (5, 4), (5,))]
    assert torch.autograd.gradgradcheck(SummedByProduct.apply, inputs)


@pytest.mark.parametrize("size", [(12, 8), (15, 11)])  # the second leaves a rim, which a convolution does not read
def test_patches_projected_by_a_product(size: tuple[int, int]) -> None:
    def ours(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(patches_as_rows(images, 4), weight.flatten(1), bias).permute(0, 3, 1, 2)

    agree(ours, lambda *inputs: F.conv2d(*inputs, stride=4), (2, 3, *size), (5, 3, 4, 4), (5,))


@pytest.mark.parametrize("window", [(3, 3), (1, 7), (7, 7)])
def test_a_depthwise_convolution_and_the_flipped_one(window: tuple[int, int]) -> None:
    def theirs(maps: Tensor, kernel: Tensor) -> Tensor:
        return F.conv2d(maps, kernel.unsqueeze(1), padding="same", groups=len(kernel))

    agree(FlippedGradient.apply, theirs, (2, 5, 6, 9), (5, *window))


def test_windows_read_tokens_where_they_lie_in_the_projection(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []

    def noted(tokens: Tensor, kernel: Tensor, grid: tuple[int, int]) -> Tensor:
        seen.extend((tokens, kernel))
        return depthwise_conv(tokens, kernel, grid)

    monkeypatch.setattr(gated_conv, "depthwise_conv", noted)
    mixer = gated_conv.GatedConv(gated_conv.GatedConvConfig(), dim=16, depth=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixer(torch.randn(2, 12, 16), (3, 4))
    tokens, kernel = seen
    assert (tokens.shape, tokens.stride()) == ((2, 12, 32), (12 * 64, 64, 1))
    assert kernel.data_ptr() == mixer.conv_weight.data_ptr()  # nor is the window copied


def test_a_projection_may_be_wider_than_it_is_read() -> None:
    torch.manual_seed(0)
    mixer = Mamba2(Mamba2Config(head_dim=16, state=16), dim=48, depth=1).double()
    tokens = torch.randn(2, 9, 48, dtype=torch.float64)
    projected = linear_in_rows(tokens, mixer.in_proj.weight)
    assert projected.shape[-1] == len(mixer.in_proj.weight)  # on a CPU nothing is added
    parameters = (
        mixer.conv_weight, mixer.conv_bias, mixer.dt_bias, mixer.A_log, mixer.skip, mixer.norm_weight,
        mixer.out_proj.weight,
    )  # fmt: skip
    wider = F.pad(projected, (0, 3), value=torch.nan)
    given = [mamba2(each, *parameters, head_dim=16, eps=1e-5) for each in (projected, wider)]
    torch.testing.assert_close(*given, rtol=0, atol=0)
