"""The selective scan on the GPU against the float64 recurrence: lengths, states, types, extremes, equal bits."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mixlab.ops.selective_scan import triton_selective
from mixlab.ops.selective_scan.chunked import selective_scan_chunked
from mixlab.ops.selective_scan.op import runs_kernels, selective_scan
from mixlab.ops.selective_scan.reference import selective_scan_recurrence
from tests.tolerances import TOLERANCES, relative_error

NAMES = ("q", "k", "v", "dt", "A", "skip")
DTYPES = (torch.float32, torch.bfloat16)


def scan_inputs(length: int, dtype: torch.dtype, *, batch=2, scans=2, width=96, state=16) -> list[Tensor]:
    torch.manual_seed(length)
    projected = torch.randn(batch, length, scans, 5 + 2 * state, device="cuda").to(dtype)
    _, q, k = projected.split([5, state, state], dim=-1)  # as a projection leaves them: strided
    v, dt = torch.randn(2, batch, length, scans, width, device="cuda")
    A = -torch.arange(1, state + 1, device="cuda").float().expand(scans, width, state).contiguous()
    return [q, k, v.to(dtype), F.softplus(dt - 2), A, torch.randn(scans, width, device="cuda")]


def outputs_and_gradients(scan, inputs: list[Tensor], dy: Tensor, num_reverse: int) -> dict[str, Tensor]:
    leaves = [t.detach().requires_grad_() for t in inputs]
    y = scan(*leaves, num_reverse=num_reverse)
    return dict(zip(("y", *NAMES), (y, *torch.autograd.grad(y, leaves, dy)), strict=True))


def check(inputs: list[Tensor], num_reverse: int, *, oracle=selective_scan_recurrence) -> None:
    dtype = inputs[2].dtype
    assert runs_kernels(inputs[0], inputs[2])
    dy = torch.randn(inputs[2].shape, device="cuda").to(dtype)
    results = outputs_and_gradients(selective_scan, inputs, dy, num_reverse)
    expected = outputs_and_gradients(oracle, [t.double() for t in inputs], dy.double(), num_reverse)
    for name, result in results.items():
        assert result.dtype == (inputs[NAMES.index(name)].dtype if name != "y" else dtype), name
        if expected[name].abs().max() == 0:
            assert result.abs().max() == 0, name
        else:
            error = relative_error(result, expected[name])
            assert error < TOLERANCES[dtype], f"{name} is off by {error:.1e}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 63, 64, 65, 197])
def test_the_kernels_give_the_recurrence_and_every_gradient(length: int, dtype: torch.dtype, poisoned: None) -> None:
    check(scan_inputs(length, dtype), 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("state", "width", "scans"), [(1, 96, 4), (2, 33, 1), (8, 130, 3), (24, 64, 2), (64, 40, 2)])
def test_every_number_of_states_and_channels(state: int, width: int, scans: int, dtype, poisoned: None) -> None:
    check(scan_inputs(37, dtype, state=state, width=width, scans=scans), scans // 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_steps_are_made_of_raw_numbers_and_a_bias(dtype: torch.dtype) -> None:
    inputs = scan_inputs(65, dtype)
    inputs[3] = (3 * torch.randn_like(inputs[3]) - 3).to(dtype)
    inputs.append(torch.randn(2, 96, device="cuda"))
    dy = torch.randn(inputs[2].shape, device="cuda").to(dtype)

    def run(scan, tensors: list[Tensor], dy: Tensor) -> list[Tensor]:
        leaves = [t.detach().requires_grad_() for t in tensors]
        y = scan(*leaves[:6], dt_bias=leaves[6], num_reverse=1)
        return [y, *torch.autograd.grad(y, leaves, dy)]

    expected = run(selective_scan, [t.double() for t in inputs], dy.double())  # float64 runs in plain torch
    for name, one, other in zip(("y", *NAMES, "bias"), run(selective_scan, inputs, dy), expected, strict=True):
        assert relative_error(one, other) < TOLERANCES[dtype], name


def test_long_sequences_agree_with_the_plain_scan_in_float64() -> None:
    check(scan_inputs(4098, torch.float32, batch=1, width=32), 1, oracle=selective_scan_chunked)


def test_a_batch_that_goes_backward_in_parts_has_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = scan_inputs(21, torch.float32, batch=5)
    dy = torch.randn(inputs[2].shape, device="cuda")
    whole = outputs_and_gradients(selective_scan, inputs, dy, 1)
    monkeypatch.setattr(triton_selective, "NOTED_BYTES", 1)
    parts = outputs_and_gradients(selective_scan, inputs, dy, 1)
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_decays_too_strong_for_a_float_give_zero_and_no_nan(poisoned: None) -> None:
    inputs = scan_inputs(33, torch.float32)
    inputs[3] = inputs[3] * 1e4
    check(inputs, 1)


def test_equal_inputs_give_equal_bits() -> None:
    inputs = scan_inputs(197, torch.bfloat16, batch=16, width=192)
    dy = torch.randn_like(inputs[2])
    first = outputs_and_gradients(selective_scan, inputs, dy, 1)
    for _ in range(10):
        again = outputs_and_gradients(selective_scan, inputs, dy, 1)
        assert all(torch.equal(first[name], again[name]) for name in first)


def test_it_is_captured_in_a_graph_and_compiled_as_one() -> None:
    inputs = scan_inputs(40, torch.float32)
    expected = selective_scan(*inputs, num_reverse=1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = selective_scan(*inputs, num_reverse=1)
    graph.replay()
    assert torch.equal(captured, expected)
    compiled = torch.compile(lambda *tensors: selective_scan(*tensors, num_reverse=1), fullgraph=True)
    assert torch.equal(compiled(*inputs), expected)
