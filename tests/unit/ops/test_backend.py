"""The dispatch on GPUs that are not here: what each has is put in torch's mouth."""

import warnings
from types import SimpleNamespace

import pytest
import torch

from mixlab.ops import backend
from mixlab.ops.ssd.tiling import shared_bytes

# name: compute capability, shared memory of a program in bytes
GPUS = {
    "Tesla T4": (7, 5, 65_536),
    "A100": (8, 0, 166_912),
    "RTX 4090": (8, 9, 101_376),
    "H200": (9, 0, 232_448),
    "B200": (10, 0, 232_448),
    "B300": (10, 3, 232_448),
    "RTX 5090": (12, 0, 101_376),
}


@pytest.fixture
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    major, minor, shared = GPUS[request.param]
    has = SimpleNamespace(major=major, minor=minor, shared_memory_per_block_optin=shared)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: has)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: request.param)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    backend._runs_or_warns.cache_clear()
    yield request.param
    backend._runs_or_warns.cache_clear()


@pytest.mark.parametrize("gpu", GPUS, indirect=True)
def test_every_gpu_runs_what_it_can(gpu: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        half = backend._runs(0, torch.bfloat16, shared_bytes(128, 128, torch.bfloat16))
        full = backend._runs(0, torch.float32, shared_bytes(64, 128, torch.float32))
        widest = backend._runs(0, torch.float32, shared_bytes(128, 128, torch.float32))
    assert half == (gpu != "Tesla T4")
    assert full == (gpu not in ("Tesla T4", "B300"))
    assert widest == (gpu in ("A100", "H200", "B200"))


@pytest.mark.parametrize("gpu", ["RTX 4090"], indirect=True)
def test_a_fallback_is_told_once_and_says_why(gpu: str) -> None:
    with pytest.warns(UserWarning) as told:
        for _ in range(3):
            assert not backend._runs(0, torch.float32, 131_072)
    assert [str(each.message) for each in told] == [
        "plain torch instead of kernels for torch.float32 on RTX 4090: "
        "a program needs 131,072 bytes of shared memory and gets 101,376"
    ]


@pytest.mark.parametrize("gpu", ["H200"], indirect=True)
def test_amd_gpus_run_plain_torch(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend.backend_name() == "Triton kernels on H200"
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert "NVIDIA" in str(backend.obstacle(0, torch.bfloat16, 0))
    assert backend.backend_name().startswith("plain torch on H200")


def test_the_dispatch_compiles_without_a_graph_break(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "obstacle", lambda device, dtype, shared: "too old" if shared else None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    backend._runs_or_warns.cache_clear()

    @torch.compile(fullgraph=True, backend="eager")
    def choose(x: torch.Tensor) -> torch.Tensor:
        return (x + 1 if backend._runs(0, x.dtype, 0) else x) + (10 if backend._runs(0, x.dtype, 1) else 0)

    with pytest.warns(UserWarning, match="too old"):
        assert choose(torch.zeros(())).item() == 1
    backend._runs_or_warns.cache_clear()


def test_tensors_on_the_cpu_ask_no_gpu() -> None:
    assert not backend.kernels_run(torch.zeros(2))
