"""Every kernel compiles for a GPU where there is none: what the interpreter forgives, the compiler does not.

In full, for every architecture and the widest heads, with MIXLAB_COMPILE_ALL=1: minutes. Otherwise for Hopper.
"""

import os
import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

import triton
from triton.runtime.errors import OutOfResources

import mixlab
from mixlab.ops.ssd import triton_launch
from mixlab.ops.ssd.tiling import shared_bytes
from tests.unit.ops import launches
from tests.unit.ops.launches import SHARED_BYTES, Launch, resources

EVERYTHING = bool(os.environ.get("MIXLAB_COMPILE_ALL"))
HALF = torch.bfloat16
LAUNCHED = re.compile(r"\b(_\w+)(?=\[grid\]|\[\()|(?<=launch\()\s*(_\w+)")  # a kernel with its grid, or given to launch

# Bytes that a thread may spill on Ampere and its like, Hopper and Blackwell: an eighth more than was measured.
MEASURED = triton.__version__.startswith("3.9")
SPILLS = {
    "_many_tiles_kernel": (648, 176, 88),
    "_values_kernel": (760, 344, 376),
    "_pair_values_kernel": (1048, 336, 408),
    "_gated_norm_backward_kernel": (216, 144, 216),
    "_gather_both_span_kernel": (16, 0, 0),
    "_walk_kernel": (24, 0, 40),
    "_walk_back_kernel": (32, 0, 48),
    "_backward_kernel": (168, 136, 0),
    "_write_gradients_span_kernel": (144, 128, 0),
}
GENERATIONS = {90: 1, 100: 2}  # places in that table; the rest is first


def every_kernel() -> list[Launch]:
    """In the sizes of DinoVim-B, ViT-B, LinearViT-B, Vim-T, VMamba-T, the gated CNN-T and DINO's crops, and a scan of
    narrow heads."""
    narrow = launches.scan(HALF, state=64, width=16, length=127)
    found = [
        *(launch for launch in narrow if launch.name == "_many_tiles_kernel"),
        *launches.mixer(HALF, directions=2, length=198),
        *launches.mixer(HALF, directions=2, length=198, keep_scan=True),
        *launches.mixer(HALF, directions=2, length=38),
        *launches.mixer(HALF, directions=2, length=66),
        *launches.mixer(HALF, directions=2, length=18, heads=6),
        *launches.mixer(HALF, directions=1, length=38),
        *launches.selective_scan(HALF, scans=2, width=384, state=16),
        *launches.selective_scan(HALF, scans=4, width=96, state=1),
        *launches.gated_scans(HALF, scans=2, width=384),
        *launches.add_norm(HALF, centred=True),
        *launches.add_norm(HALF, centred=False),
        *launches.add_norm(HALF, centred=True, scaled=True),
        *launches.add_norm(HALF, centred=False, scaled=True),
        *launches.silu_gate(HALF),
        *launches.view_entropy(HALF),
        *launches.depthwise(HALF, grid=(4, 4)),
        *launches.depthwise(HALF, grid=(10, 10)),
        *launches.linear_attention(HALF, batch=64, length=198),
        *launches.linear_attention(HALF, batch=1, length=4097),
        *launches.attention(HALF, length=37),
        *launches.attention(HALF, length=101),
        *launches.attention(HALF, length=101, causal=True),
        *launches.crops(),
    ]
    return list({(launch.name, launch.sizes): launch for launch in found}.values())


def gives_an_address_two_layouts(ptx: str) -> bool:
    """Whether two of Hopper's descriptors (a layout in the upper half, an address below) differ in layout alone."""
    layouts: dict[str, set[int]] = {}
    for address, added in re.findall(r"(?:or\.b64|add\.s64)\s+%rd\d+, (%rd\d+), (-?\d{11,});", ptx):
        layouts.setdefault(address, set()).add(int(added) >> 32)
    return any(len(different) > 1 for different in layouts.values())


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("architecture", SHARED_BYTES if EVERYTHING else [90])
def test_every_kernel_compiles_within_its_resources(architecture: int) -> None:
    found = every_kernel()
    texts = [file.read_text() for file in Path(mixlab.__file__).parent.glob("**/triton_*.py")]
    written = {one or other for text in texts for one, other in LAUNCHED.findall(text)}
    assert {launch.name for launch in found} == written
    faults = []
    for launch in found:
        compiled = launch.compile_to_fit(architecture)
        used = resources(compiled)
        spills = SPILLS.get(launch.name, (0, 0, 0))[GENERATIONS.get(architecture, 0)]
        registers = launch.options.get("maxnreg") or 255
        if used.shared > SHARED_BYTES[architecture] or (MEASURED and used.stack > spills) or used.registers > registers:
            faults.append(f"{launch.name} {launch.sizes}: {used}, where {spills} bytes may spill")
        # A product transposed in registers and multiplied again: wrong on Hopper with Triton 3.4 to 3.7.0.
        if architecture == 90 and re.search(r"tt\.trans .*: tensor<\S+ #mma\d*> ->", compiled.asm["ttgir"]):
            faults.append(f"{launch.name} {launch.sizes} transposes a product")
        # The second layout may get a stale address from ptxas 12.8, that of Triton 3.6.
        if architecture == 90 and gives_an_address_two_layouts(compiled.asm["ptx"]):
            faults.append(f"{launch.name} {launch.sizes} gives an address two layouts")
        # It reads pixels again that other threads may have written.
        if launch.name == "_jitter_and_grey" and not re.search(r"\b(ttg|gpu)\.barrier", compiled.asm["ttgir"]):
            faults.append(f"{launch.name} does not wait")
    assert not faults, "\n".join(faults)


@pytest.mark.timeout(1800)
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


@pytest.mark.timeout(1800)
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
