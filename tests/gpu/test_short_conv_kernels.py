"""The short convolution and its gradients on a GPU against float64, by a march in CUDA C++ and by Triton."""

import pytest
import torch
from torch import Tensor

from mixlab.ops.short_conv.op import two_way_short_conv
from mixlab.ops.short_conv.reference import short_conv
from tests.tolerances import TOLERANCES, relative_error


def inputs_of(length: int, channels: int, directions: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator("cuda").manual_seed(length)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device="cuda")

    rows = normal(max(2, 64 // length), length, channels + 8).to(dtype)[..., 8:]
    return [rows, normal(directions, channels, 4) / 2, normal(directions, channels) / 10]


def outputs_and_gradients(inputs: list[Tensor], dout: Tensor, *, exact: bool = False) -> list[Tensor]:
    leaves = [(t.double() if exact else t).detach().requires_grad_() for t in inputs]
    x, weight, bias = leaves
    if exact:
        out = torch.stack([short_conv(x, weight[r], bias[r], reverse=r == 1) for r in range(len(weight))], dim=2)
    else:
        out = two_way_short_conv(x, weight, bias)
    return [out, *torch.autograd.grad(out, leaves, dout.to(out.dtype))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("channels", [48, 64, 192])  # no march takes the first
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 17, 38, 198, 256, 257, 600])
def test_every_length_gives_the_reference_and_every_gradient(
    length: int, channels: int, directions: int, dtype: torch.dtype, poisoned: None
) -> None:
    inputs = inputs_of(length, channels, directions, dtype)
    dout = torch.randn(*inputs[0].shape[:2], directions, channels, device="cuda").to(dtype)
    found, expected = outputs_and_gradients(inputs, dout), outputs_and_gradients(inputs, dout, exact=True)
    for name, one, other in zip(("out", "x", "weight", "bias"), found, expected, strict=True):
        error = relative_error(one, other)
        assert error < TOLERANCES[dtype], f"{name} is off by {error:.1e}"


def test_the_same_input_gives_the_same_bits() -> None:
    inputs = inputs_of(198, 192, 2, torch.bfloat16)
    dout = torch.randn(*inputs[0].shape[:2], 2, 192, device="cuda").bfloat16()
    first, second = (outputs_and_gradients(inputs, dout) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
