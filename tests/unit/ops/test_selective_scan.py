"""The fast selective scan against the recurrence that defines it: values, gradients, long sequences, extreme decays."""

import resource

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mixlab.ops.selective_scan.chunked import chunk_length, selective_scan_chunked
from mixlab.ops.selective_scan.op import selective_scan
from mixlab.ops.selective_scan.reference import selective_scan_matrix, selective_scan_recurrence

Inputs = tuple[torch.Tensor, ...]
NAMES = ("q", "k", "v", "dt", "A", "skip")


def scan_inputs(
    length: int, *, batch: int = 2, scans: int = 3, width: int = 4, state: int = 3, seed: int = 0
) -> Inputs:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    q, k = normal(batch, length, scans, state), normal(batch, length, scans, state)
    v, dt = normal(batch, length, scans, width), normal(batch, length, scans, width).exp()
    return q, k, v, dt, -normal(scans, width, state).exp(), normal(scans, width)


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return ((actual - expected).norm() / expected.norm().clamp_min(1e-30)).item()


def test_two_tokens_by_hand() -> None:
    """y_1 = q_1 (e^(dt_1 A) dt_0 v_0 k_0 + dt_1 v_1 k_1) + skip v_1, for each of two states."""
    q = torch.tensor([[1.0, 2.0], [3.0, 5.0]]).view(1, 2, 1, 2)
    k = torch.tensor([[7.0, 11.0], [13.0, 17.0]]).view(1, 2, 1, 2)
    v, dt = torch.tensor([2.0, 3.0]).view(1, 2, 1, 1), torch.tensor([0.5, 0.25]).view(1, 2, 1, 1)
    A, skip = torch.tensor([-1.0, -2.0]).view(1, 1, 2), torch.tensor([[10.0]])
    first = (7 + 2 * 11) * 0.5 * 2 + 10 * 2
    decay = torch.tensor([-0.25, -0.5]).exp()
    second = 3 * (decay[0] * 7 + 0.75 * 13) + 5 * (decay[1] * 11 + 0.75 * 17) + 10 * 3
    torch.testing.assert_close(
        selective_scan(q, k, v, dt, A, skip).flatten(), torch.stack([torch.tensor(first), second])
    )


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(1, 120),
    batch=st.integers(1, 3),
    scans=st.integers(1, 4),
    width=st.integers(1, 5),
    state=st.integers(1, 5),
    share=st.integers(0, 4),
    chunk=st.one_of(st.none(), st.integers(1, 130)),
    seed=st.integers(0, 1000),
)
def test_chunks_of_any_length_give_the_recurrence(
    length: int, batch: int, scans: int, width: int, state: int, share: int, chunk: int | None, seed: int
) -> None:
    inputs = scan_inputs(length, batch=batch, scans=scans, width=width, state=state, seed=seed)
    num_reverse = min(share, scans)
    expected = selective_scan_recurrence(*inputs, num_reverse=num_reverse)
    assert relative_error(selective_scan_chunked(*inputs, num_reverse=num_reverse, chunk=chunk), expected) < 1e-10


@pytest.mark.parametrize("length", [1, 2, 63, 65, 198])
@pytest.mark.parametrize("num_reverse", [0, 1, 3])
def test_chunks_give_the_gradients_of_the_recurrence(length: int, num_reverse: int) -> None:
    inputs = tuple(t.requires_grad_() for t in scan_inputs(length))
    outputs = [
        selective_scan_recurrence(*inputs, num_reverse=num_reverse),
        selective_scan_chunked(*inputs, num_reverse=num_reverse, chunk=16),
    ]
    direction = torch.randn_like(outputs[0])
    truth, found = (torch.autograd.grad((y * direction).sum(), inputs) for y in outputs)
    for name, actual, expected in zip(NAMES, found, truth, strict=True):
        assert (actual - expected).norm().item() / max(expected.norm().item(), 1.0) < 1e-9, name


def test_the_matrix_of_each_channel_gives_the_recurrence_and_its_gradients() -> None:
    inputs = tuple(t.requires_grad_() for t in scan_inputs(33, scans=1))
    q, k, v, dt, A, skip = inputs
    shared = (t.expand(-1, -1, v.shape[3], -1) for t in (q, k))
    matrix = selective_scan_matrix(*shared, dt[:, :, 0], A[0], skip[0])
    looked, expected = torch.einsum("beij,bjse->bise", matrix, v), selective_scan_recurrence(*inputs)
    torch.testing.assert_close(looked, expected)
    direction = torch.randn_like(expected)
    found, truth = (torch.autograd.grad((y * direction).sum(), inputs) for y in (looked, expected))
    torch.testing.assert_close(found, truth)


@pytest.mark.parametrize(("step", "rate"), [(1e-8, 1e-4), (1e-6, 64.0), (50.0, 1e-4), (1e4, 1e4), (1.0, 20.0)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str)
def test_extreme_steps_and_decays_stay_exact_in_values_and_gradients(
    step: float, rate: float, dtype: torch.dtype, tolerance: float
) -> None:
    lengths = (300, 4097) if step == 1.0 and dtype == torch.float32 else (300,)
    for length in lengths:
        q, k, v, dt, A, skip = scan_inputs(length, batch=1, scans=2)
        inputs = tuple(t.to(dtype).requires_grad_() for t in (q, k, v, dt * step, A.sign() * rate, skip))
        exact = tuple(t.detach().double().requires_grad_() for t in inputs)
        y, expected = selective_scan(*inputs, num_reverse=1), selective_scan_recurrence(*exact, num_reverse=1)
        assert relative_error(y.double(), expected) < tolerance
        direction = torch.randn(expected.shape, dtype=torch.float64).to(dtype)
        found = torch.autograd.grad((y * direction).sum(), inputs)
        truth = torch.autograd.grad((expected * direction.double()).sum(), exact)
        for name, actual, other in zip(NAMES, found, truth, strict=True):
            assert (actual.double() - other).norm().item() / max(other.norm().item(), 1e-6) < tolerance, name


def test_no_state_of_every_token_is_ever_kept() -> None:
    inputs = tuple(t.float() for t in scan_inputs(16_384, batch=1, scans=1, width=16, state=64))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    selective_scan_chunked(*inputs)
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown_mib < 32  # the states of all tokens are 64 MiB in float32


def test_chunks_fill_the_cache_and_no_more() -> None:
    assert chunk_length(1) == 1
    assert chunk_length(197) == 15  # 14 chunks
    assert chunk_length(197, states=2**30) == 197  # one chunk: a batch is parallel enough
    assert chunk_length(3136, states=1) == 56


def test_bfloat16_values_are_scanned_in_float32() -> None:
    inputs = scan_inputs(100)
    rounded = [t.bfloat16() for t in inputs[:3]] + [t.float() for t in inputs[3:]]
    y = selective_scan(*rounded, num_reverse=1)
    exact = selective_scan_recurrence(*(t.double() for t in rounded), num_reverse=1)
    assert y.dtype == torch.bfloat16
    assert relative_error(y.double(), exact) < 4e-3  # the rounding of the result alone


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": (2, 9, 3)}, r"must be \(B, L, S, N\)"),
        ({"k": (2, 9, 3, 4)}, "must agree"),
        ({"dt": (2, 9, 3)}, r"must be \(2, 9, 3, 4\), \(3, 4, 3\) and \(3, 4\)"),
        ({"A": (3, 4)}, r"A \(3, 4\)"),
    ],
    ids=lambda value: next(iter(value), "") if isinstance(value, dict) else "",
)
def test_shapes_that_do_not_fit_are_refused(change: dict[str, tuple[int, ...]], message: str) -> None:
    inputs = dict(zip(NAMES, scan_inputs(9), strict=True)) | {key: torch.zeros(shape) for key, shape in change.items()}
    with pytest.raises(ValueError, match=message):
        selective_scan(**inputs)
    with pytest.raises(ValueError, match="num_reverse 4 is not between 0 and the 3 scans"):
        selective_scan(*scan_inputs(9), num_reverse=4)
