"""The fast scan against the recurrence that defines it: values, gradients, long sequences, extreme decays."""

import resource

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mixlab.ops.ssd import in_place
from mixlab.ops.ssd.chunked import chunk_length, ssd_chunked
from mixlab.ops.ssd.in_place import ssd_in_place
from mixlab.ops.ssd.op import ssd
from mixlab.ops.ssd.reference import ssd_matrix, ssd_recurrence

Inputs = tuple[torch.Tensor, ...]


def scan_inputs(
    length: int, *, batch: int = 2, heads: int = 4, groups: int = 2, state: int = 3, width: int = 5, seed: int = 0
) -> Inputs:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    q, k = normal(batch, length, groups, state), normal(batch, length, groups, state)
    return (
        q,
        k,
        normal(batch, length, heads, width),
        normal(batch, length, heads).exp(),
        -normal(heads).exp(),
        normal(heads),
    )


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return ((actual - expected).norm() / expected.norm().clamp_min(1e-30)).item()


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(1, 220),
    batch=st.integers(1, 3),
    per_group=st.integers(1, 3),
    state=st.integers(1, 9),
    width=st.integers(1, 9),
    two_way=st.booleans(),
    chunk=st.one_of(st.none(), st.integers(1, 80)),
    seed=st.integers(0, 1000),
)
def test_chunks_of_any_length_give_the_recurrence(
    length: int, batch: int, per_group: int, state: int, width: int, two_way: bool, chunk: int | None, seed: int
) -> None:
    heads = 2 * per_group
    inputs = scan_inputs(length, batch=batch, heads=heads, state=state, width=width, seed=seed)
    num_reverse = per_group if two_way else 0
    expected = ssd_recurrence(*inputs, num_reverse=num_reverse)
    for scan in (ssd_chunked, ssd_in_place):
        assert relative_error(scan(*inputs, num_reverse=num_reverse, chunk=chunk), expected) < 1e-10


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 197, 198])
@pytest.mark.parametrize("num_reverse", [0, 2, 4])
def test_matrix_and_chunks_give_the_recurrence_and_its_gradients(length: int, num_reverse: int) -> None:
    inputs = tuple(t.requires_grad_() for t in scan_inputs(length))
    q, k, v, dt, A, skip = inputs
    looked = (ssd_matrix(q, k, dt, A, skip, num_reverse=num_reverse) @ v.transpose(1, 2)).transpose(1, 2)
    outputs = [
        ssd_recurrence(*inputs, num_reverse=num_reverse),
        looked,
        ssd_chunked(*inputs, num_reverse=num_reverse, chunk=16),
    ]
    direction = torch.randn_like(outputs[0])
    truth, *others = [torch.autograd.grad((y * direction).sum(), inputs) for y in outputs]
    for output, gradients in zip(outputs[1:], others, strict=True):
        assert relative_error(output, outputs[0]) < 1e-10
        for name, actual, expected in zip(("q", "k", "v", "dt", "A", "skip"), gradients, truth, strict=True):
            scale = max(expected.norm().item(), 1.0)
            assert (actual - expected).norm().item() / scale < 1e-9, name


@pytest.mark.parametrize(("step", "rate"), [(1e-6, -1e-4), (1e-6, -64.0), (50.0, -1e-4), (50.0, -64.0), (1.0, -20.0)])
def test_extreme_steps_and_decays_stay_finite_and_exact(step: float, rate: float) -> None:
    q, k, v, dt, A, skip = scan_inputs(300)
    inputs = tuple(t.float().requires_grad_() for t in (q, k, v, dt * step, A.sign() * -rate, skip))
    y = ssd_chunked(*inputs, num_reverse=2)
    gradients = torch.autograd.grad(y.sum(), inputs)
    assert y.isfinite().all()
    assert all(g.isfinite().all() for g in gradients)
    expected = ssd_recurrence(*(t.detach().double() for t in inputs), num_reverse=2)
    with torch.no_grad():
        for found in (y, ssd_in_place(*inputs, num_reverse=2)):
            assert relative_error(found.double(), expected) < 1e-4


def test_a_mild_decay_after_a_strong_one_keeps_its_precision() -> None:
    """One total forgetting must not drown the small decays that follow it in the same chunk."""
    q, k, v, dt, A, skip = (t.float() for t in scan_inputs(64))
    A = torch.full_like(A, -1.0)
    dt = torch.full_like(dt, 0.01)
    dt[:, 5] = 3000.0
    exact = ssd_recurrence(*(t.double() for t in (q, k, v, dt, A, skip)))
    after = slice(6, None)
    for scan in (ssd_chunked, ssd):
        assert relative_error(scan(q, k, v, dt, A, skip)[:, after].double(), exact[:, after]) < 1e-4


@pytest.mark.parametrize("wide", [0.99, 1.01], ids=["by factors", "by matrices"])
def test_decays_beside_the_widest_that_factors_hold_are_exact_for_large_and_small_numbers(wide: float) -> None:
    q, k, v, dt, A, skip = (t.float() for t in scan_inputs(64))
    dt = torch.full_like(dt, wide * in_place.WIDEST / 64)
    A = torch.full_like(A, -1.0)
    for size in (1e-4, 1.0, 1e4):
        inputs = (q * size, k, v * size, dt, A, skip * size)
        expected = ssd_recurrence(*(t.double() for t in inputs), num_reverse=2)
        found = ssd_in_place(*inputs, num_reverse=2).double()
        for token in (0, 1, 32, 62, 63):
            assert relative_error(found[:, token], expected[:, token]) < 2e-5, (size, token)


def test_no_matrix_over_all_tokens_is_ever_built() -> None:
    length = 16_384
    inputs = tuple(t.float() for t in scan_inputs(length, batch=1, heads=2, groups=1, state=4, width=4))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ssd_chunked(*inputs)
    ssd(*inputs)
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown_mib < 0.25 * length * length * 4 / 2**20  # one L x L float32 matrix is 1 GiB


@pytest.mark.parametrize("widest", [0.0, 600.0], ids=["by matrices", "by factors"])
@pytest.mark.parametrize("block", [1, 2 * 16 * 16, 6 * 2 * 16 * 16, 10**9])
def test_blocks_of_any_size_give_what_is_differentiated(
    block: int, widest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_place, "BLOCK", block)
    monkeypatch.setattr(in_place, "WIDEST", widest)  # of float64: e^300 is far from its end
    inputs = scan_inputs(100, batch=3)
    recorded = ssd_chunked(*(t.requires_grad_() for t in inputs), num_reverse=2, chunk=16)
    with torch.no_grad():
        assert relative_error(ssd_in_place(*inputs, num_reverse=2, chunk=16), recorded) < 1e-12


def test_chunks_pad_as_little_as_they_can() -> None:
    assert chunk_length(38) == 38
    assert chunk_length(198) == 66
    assert chunk_length(1024) == 64
