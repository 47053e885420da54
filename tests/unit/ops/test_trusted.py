"""Programs in CUDA C++ that do not compute what they should are not used."""

import pytest
import torch

from mixlab.ops.cuda.program import CompileError
from mixlab.ops.cuda.trusted import Trusted

GPU = torch.device("cuda", 0)


@pytest.fixture
def large_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        major, minor, shared_memory_per_block_optin = 9, 0, 232_448

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())


@pytest.mark.parametrize("error", [0.3, float("inf"), float("nan")])
def test_a_program_that_computes_something_else_is_not_used(error: float, large_gpu: None) -> None:
    assert Trusted("scans", lambda *_: 0.003)(GPU, 13)
    with pytest.warns(UserWarning, match="scans of 13 run on other kernels: their error is"):
        assert not Trusted("scans of {}", lambda *_: error)(GPU, 13)


def test_a_program_that_does_not_compile_is_not_used(large_gpu: None) -> None:
    def fail(*_: object) -> float:
        raise CompileError("unknown option")

    with pytest.warns(UserWarning, match="scans run on other kernels: unknown option"):
        assert not Trusted("scans", fail)(GPU)


def test_a_program_is_tried_once_for_each_size_and_never_where_it_does_not_fit(large_gpu: None) -> None:
    tried: list[int] = []

    def try_it(size: int, device: torch.device) -> float:
        tried.append(size)
        return 0.0

    trusted = Trusted("scans", try_it, shared_bytes=lambda size: 100_000 * size)
    assert [trusted(GPU, size) for size in (1, 2, 1, 3)] == [True, True, True, False]
    assert tried == [1, 2]


def test_a_program_is_never_tried_on_a_gpu_that_has_no_kernels(
    large_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> float:
        raise AssertionError("it was tried")

    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert not Trusted("scans", fail)(GPU)


def test_a_program_is_not_used_for_tensors_of_the_cpu_or_while_a_graph_is_captured(
    large_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = Trusted("scans", lambda *_: 0.0)
    assert not trusted(torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not trusted(GPU)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert trusted(GPU)
