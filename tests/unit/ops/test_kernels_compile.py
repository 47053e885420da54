"""Every kernel compiles for a GPU where there is none: what the interpreter forgives, the compiler does not.

In full, for every architecture and the widest heads, with MIXLAB_COMPILE_ALL=1: minutes. Otherwise for Hopper.
"""

import os
import re
from functools import cache

import pytest
import torch

pytest.importorskip("triton")

from triton.runtime.errors import OutOfResources

from mixlab.ops.ssd import triton_launch
from mixlab.ops.ssd.tiling import shared_bytes
from tests.unit.ops import launches
from tests.unit.ops.launches import SHARED_BYTES, Launch, resources

EVERYTHING = bool(os.environ.get("MIXLAB_COMPILE_ALL"))
ARCHITECTURES = tuple(SHARED_BYTES) if EVERYTHING else (90,)
HALF = torch.bfloat16


@cache
def kernels() -> dict[str, Launch]:
    """All kernels in the sizes of DinoVim-B, ViT-B and LinearViT-B, and of DINO's crops."""
    found = [
        *launches.mixer(HALF, directions=2, length=198),
        *launches.mixer(HALF, directions=2, length=38),
        *launches.mixer(HALF, directions=1, length=38),
        *launches.add_norm(HALF, centred=True),
        *launches.add_norm(HALF, centred=False),
        *launches.attention(HALF, batch=64, length=198),
        *launches.attention(HALF, batch=1, length=4097),
        *launches.crops(),
    ]
    return {f"{launch.name} {launch.sizes}": launch for launch in found}


# Bytes that a thread may spill on Ampere and its like, Hopper and Blackwell: an eighth more than with Triton 3.9.
SPILLS = {
    "_many_tiles_kernel": (568, 176, 88),
    "_values_kernel": (592, 128, 328),
    "_gated_norm_backward_kernel": (184, 144, 216),
    "_backward_kernel": (112, 136, 0),
    "_write_gradients_span_kernel": (88, 128, 0),
}
GENERATIONS = {90: 1, 100: 2}  # places in that table; the rest is first


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", kernels())
def test_every_kernel_compiles_within_its_resources(name: str, architecture: int) -> None:
    launch = kernels()[name]
    compiled = launch.compile_to_fit(architecture)
    used = resources(compiled)
    assert used.shared <= SHARED_BYTES[architecture], f"{name}: {used}"
    assert used.registers <= (launch.options.get("maxnreg") or 255), f"{name}: {used}"
    spills = SPILLS.get(launch.name, (0, 0, 0))[GENERATIONS.get(architecture, 0)]
    assert used.stack <= spills, f"{name}: {used}"
    if architecture == 90:
        # A product transposed in registers and multiplied again: wrong on Hopper with Triton 3.4 to 3.7.0.
        transposed = re.findall(r"tt\.trans .*: tensor<\S+ #mma\d*> ->", compiled.asm["ttgir"])
        assert not transposed, f"{name}: {transposed}"
    if launch.name == "_jitter_and_grey":  # reads pixels again that other threads may have written
        assert "bar.sync" in compiled.asm["ptx"]


@pytest.mark.skipif(not EVERYTHING, reason="takes minutes: set MIXLAB_COMPILE_ALL=1")
@pytest.mark.parametrize("architecture", SHARED_BYTES)
@pytest.mark.parametrize(
    ("dtype", "state", "width"), [(HALF, 128, 128), (torch.float32, 64, 128), (torch.float32, 128, 64)]
)
def test_the_widest_heads_fit_into_the_shared_memory_of_every_gpu(
    dtype: torch.dtype, state: int, width: int, architecture: int
) -> None:
    for launch in launches.scan(dtype, state=state, width=width, length=127):
        shared = launch.compile_to_fit(architecture).metadata.shared
        assert shared <= SHARED_BYTES[architecture], f"{launch.name} {launch.sizes}: {shared:,}"


@pytest.mark.skipif(not EVERYTHING, reason="takes minutes: set MIXLAB_COMPILE_ALL=1")
@pytest.mark.parametrize("architecture", [80, 90, 100])
def test_float32_states_of_128_by_128_need_no_more_than_the_dispatch_thinks(architecture: int) -> None:
    for launch in launches.scan(torch.float32, state=128, width=128, length=127):
        shared = launch.compile(architecture, num_stages=1).metadata.shared
        assert shared <= shared_bytes(128, 128, torch.float32), f"{launch.name} {launch.sizes}: {shared:,}"


def test_kernels_are_launched_with_as_many_stages_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]):
            def run(*args: object, num_stages: int, **options: object) -> None:
                tried.append(num_stages)
                if num_stages > limit:
                    raise OutOfResources(300_000, 232_448, "shared memory")

            return run

    monkeypatch.setattr(triton_launch, "_stages", {})
    kernel, tensor, limit = Kernel(), torch.zeros(1), 1
    triton_launch.launch(kernel, (1,), tensor, N=64)
    triton_launch.launch(kernel, (1,), tensor, N=64)
    triton_launch.launch(kernel, (1,), tensor.double(), N=64)
    assert tried == [3, 2, 1, 1, 3, 2, 1]
    limit = 0
    with pytest.raises(OutOfResources):
        triton_launch.launch(kernel, (1,), tensor, N=64)
