"""Layers and mixers in the forms that a GPU runs, under autocast, against torch's own in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from mixlab.mixers.gated_conv import GatedConv, GatedConvConfig
from mixlab.mixers.mamba1 import Mamba1, Mamba1Config
from mixlab.mixers.mamba2 import Mamba2, Mamba2Config
from mixlab.ops.linear import Linear, PatchConv
from tests.tolerances import relative_error

SCANS = ("scans under a gate", "a projection of 902 columns")
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], tuple[object, ...]]] = {
    "linear": (lambda: Linear(192, 768), (4, 197, 192), ()),
    "patches": (lambda: PatchConv(3, 192, kernel_size=8, stride=8), (4, 3, 64, 72), ()),
    "gated conv": (lambda: GatedConv(GatedConvConfig(), 64, 4), (4, 96, 64), ((8, 12),)),
    "scans under a gate": (lambda: Mamba1(Mamba1Config(), 64, 4), (4, 70, 64), ((7, 10),)),
    "a projection of 902 columns": (lambda: Mamba2(Mamba2Config(), 192, 4), (4, 70, 192), ((7, 10),)),
}
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 3e-2}
# Scans read a projection that was rounded to bfloat16, which float64 does not: in float32 alone.
CASES = [(name, dtype) for name in LAYERS for dtype in TOLERANCE if dtype == torch.float32 or name not in SCANS]


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_a_layer_and_its_gradients(name: str, dtype: torch.dtype) -> None:
    make, shape, arguments = LAYERS[name]
    torch.manual_seed(0)
    layer, x = make(), torch.randn(shape)
    parameters = dict(layer.named_parameters())
    expected = outputs(layer.double(), x.double(), arguments)
    layer = layer.float().cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        results, again = (outputs(layer, x.cuda(), arguments) for _ in range(2))
    for part, result in results.items():
        assert torch.equal(result, again[part]), part
        error = relative_error(result.cpu(), expected[part])
        assert error < TOLERANCE[dtype], f"{part} is off by {error:.1e}"
    assert results.keys() == {"y", "x", *parameters}


def outputs(layer: nn.Module, x: Tensor, arguments: tuple[object, ...]) -> dict[str, Tensor]:
    """The output, and the gradients of its sum with fixed weights."""
    x = x.requires_grad_()
    y = layer(x, *arguments)
    generator = torch.Generator().manual_seed(1)
    dy = torch.randn(y.shape, generator=generator).to(y)
    parameters = dict(layer.named_parameters())
    gradients = torch.autograd.grad(y, [x, *parameters.values()], dy)
    return {"y": y.detach(), **dict(zip(("x", *parameters), gradients, strict=True))}
