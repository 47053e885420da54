"""Several scans under a gate on the GPU, against the reference in float64: values, gradients, types, equal bits."""

import pytest
import torch
from torch import Tensor

from mixlab.ops.gated_scans import reference
from mixlab.ops.gated_scans.op import gated_scans, runs_kernels
from tests.tolerances import TOLERANCES, relative_error


def gate_inputs(length: int, scans: int, width: int, dtype: torch.dtype, device: str = "cuda") -> tuple[Tensor, ...]:
    """Scan by scan, as orders restore them; the gate is half of a projection."""
    torch.manual_seed(length)
    y = torch.randn(3, scans, length, width, device=device).to(dtype).transpose(1, 2)
    return y, torch.randn(3, length, 2 * width, device=device).to(dtype)[..., width:]


def outputs_and_gradients(gate_scans, inputs: tuple[Tensor, ...], mean: bool) -> dict[str, Tensor]:
    leaves = [t.detach().requires_grad_() for t in inputs]
    out = gate_scans(*leaves, mean=mean)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).to(out)
    return dict(zip(("out", "y", "gate"), (out, *torch.autograd.grad(out, leaves, direction)), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("length", "scans", "width", "mean"), [(1, 1, 5, True), (197, 2, 768, True), (63, 4, 300, False), (65, 8, 33, True)]
)
def test_scans_under_a_gate(length: int, scans: int, width: int, mean: bool, dtype, poisoned: None) -> None:
    inputs = gate_inputs(length, scans, width, dtype)
    assert runs_kernels(*inputs)
    results, again = (outputs_and_gradients(gated_scans, inputs, mean) for _ in range(2))
    expected = outputs_and_gradients(reference.gated_scans, tuple(t.double() for t in inputs), mean)
    for name, result in results.items():
        assert torch.equal(result, again[name]), name
        error = relative_error(result, expected[name])
        assert result.dtype == dtype and error < TOLERANCES[dtype], f"{name} is off by {error:.1e}"


def test_it_is_compiled_as_one() -> None:
    inputs = gate_inputs(40, 2, 96, torch.float32)
    eager = outputs_and_gradients(gated_scans, inputs, True)
    compiled = outputs_and_gradients(torch.compile(gated_scans, fullgraph=True), inputs, True)
    assert all(torch.equal(compiled[name], eager[name]) for name in eager)
