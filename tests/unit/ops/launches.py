"""What the operators launch, without a GPU: their host code runs on tensors without memory, their kernels are noted."""

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel
from triton.runtime.jit import JITFunction

from mixlab.data import triton_crops
from mixlab.data.packed import pack_images
from mixlab.ops.add_norm import op as add_norm_op
from mixlab.ops.attention import op as attention_op
from mixlab.ops.depthwise import op as depthwise_op
from mixlab.ops.gated_scans import op as gated_scans_op
from mixlab.ops.linear_attention import op as linear_attention_op
from mixlab.ops.mamba2 import op as mamba2_op
from mixlab.ops.selective_scan import op as selective_op
from mixlab.ops.silu_gate import op as gate_op
from mixlab.ops.ssd import op as ssd_op
from mixlab.ops.ssd.triton_launch import NUM_STAGES
from mixlab.ops.view_entropy import op as entropy_op

POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
DIVISIBLE = [["tt.divisibility", 16]]
SHARED_BYTES = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}  # by architecture


@dataclass(frozen=True)
class Resources:
    registers: int
    stack: int  # bytes that a thread spills
    shared: int  # bytes of a program


@dataclass(frozen=True)
class Launch:
    kernel: JITFunction
    arguments: dict[str, Any]
    options: dict[str, Any]  # num_warps and the like

    @property
    def name(self) -> str:
        return self.kernel.__name__

    @property
    def sizes(self) -> str:
        constants = {p.name: self.arguments[p.name] for p in self.kernel.params if p.is_constexpr}
        dtypes = sorted({str(a.dtype)[6:] for a in self.arguments.values() if isinstance(a, Tensor)})
        return " ".join([*(f"{name}={value}" for name, value in constants.items()), *dtypes])

    def compile(self, architecture: int, *, num_stages: int | None = None) -> CompiledKernel:
        """As Triton would at run time: numbers of one are constants, numbers divisible by 16 are known to be."""
        signature, constants, attributes = {}, {}, {}
        for index, parameter in enumerate(self.kernel.params):
            value, name = self.arguments[parameter.name], parameter.name
            if isinstance(value, Tensor):
                signature[name], attributes[(index,)] = POINTERS[value.dtype], DIVISIBLE
            elif parameter.is_constexpr or value is None or (value == 1 and not parameter.do_not_specialize):
                signature[name], constants[(index,)] = "constexpr", value
            elif isinstance(value, int):
                signature[name] = "i32" if abs(value) < 2**31 else "i64"
                if value % 16 == 0 and not parameter.do_not_specialize:
                    attributes[(index,)] = DIVISIBLE
            else:
                signature[name] = "fp32"
        options = {key: value for key, value in self.options.items() if value is not None}
        if num_stages is not None:
            options["num_stages"] = num_stages
        source = ASTSource(self.kernel, signature, constants, attributes)
        return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)

    def compile_to_fit(self, architecture: int) -> CompiledKernel:
        """With as many pipeline stages as `triton_launch.launch` would find to fit."""
        stages = self.options.get("num_stages", NUM_STAGES)
        while True:
            compiled = self.compile(architecture, num_stages=stages)
            if compiled.metadata.shared <= SHARED_BYTES[architecture] or stages == 1:
                return compiled
            stages -= 1


def resources(compiled: CompiledKernel) -> Resources:
    return resources_of(compiled.asm["cubin"], shared=compiled.metadata.shared)


def resources_of(code: bytes, *, shared: int = 0) -> Resources:
    """Of machine code with one kernel; shared memory that is asked for at launch is not in it."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        told = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", told)
    assert found, told
    return Resources(int(found[1]), int(found[2]), shared)


def scan(dtype: torch.dtype, *, state: int, width: int, length: int, heads: int = 48) -> list[Launch]:
    inputs = (
        *(_empty(8, length, 2, state, dtype=dtype) for _ in range(2)),
        _empty(8, length, heads, width, dtype=dtype),
        _empty(8, length, heads),
        _empty(heads),
        _empty(heads),
    )
    return _launches(lambda: ssd_op._scan(*inputs, heads // 2, True))


def selective_scan(dtype: torch.dtype, *, scans: int, width: int, state: int) -> list[Launch]:
    shape = (8, 197, scans)
    q, k = _empty(*shape, 2 * state, dtype=dtype).split(state, dim=-1)
    inputs = (_empty(*shape, width, dtype=dtype), _empty(*shape, width, dtype=dtype), _empty(scans, width, state))
    skip, bias = _empty(scans, width), _empty(scans, width)
    return _launches(lambda: selective_op._scan(q, k, *inputs, skip, bias, scans // 2))


def gated_scans(dtype: torch.dtype, *, scans: int, width: int) -> list[Launch]:
    y, gate = _empty(8, 197, scans, width, dtype=dtype), _empty(8, 197, 2 * width, dtype=dtype)[..., width:]
    return _launches(lambda: gated_scans_op._gate(y, gate, True))


def mixer(
    dtype: torch.dtype, *, directions: int, length: int, width: int = 64, heads: int = 24, keep_scan: bool = False
) -> list[Launch]:
    inner, state = heads * width, width
    channels = inner + 2 * state
    parameters = [_empty(directions, channels, 4), _empty(directions, channels)]
    parameters += [_empty(directions, heads) for _ in range(3)]
    parameters += [_empty(directions, inner), _empty(inner // 2, inner)]
    projected = _empty(8, length, inner + channels + heads, dtype=dtype)
    return _launches(lambda: mamba2_op._mixer(projected, *parameters, width, 1e-5, keep_scan))


def add_norm(dtype: torch.dtype, *, centred: bool, scaled: bool = False, width: int = 768) -> list[Launch]:
    branch, stream, weight = _empty(2, 198, width, dtype=dtype), _empty(2, 198, width), _empty(width)
    vectors = (weight, weight if centred else None, _empty(2).detach() if scaled else None)
    return _launches(lambda: add_norm_op._add_norm(branch, stream, *vectors, 1e-5)[1])


def silu_gate(dtype: torch.dtype) -> list[Launch]:
    gate, y, bias = _empty(2, 144, 768, dtype=dtype).chunk(2, -1)[0], _empty(2, 144, 384, dtype=dtype), _empty(384)
    return _launches(lambda: gate_op._gate(y, gate, bias))


def view_entropy(dtype: torch.dtype) -> list[Launch]:
    student, targets = _empty(10, 64, 65_536, dtype=dtype), _empty(2, 64, 65_536).detach()
    with patch.object(entropy_op, "runs_kernels", lambda *_: True):
        return _launches(lambda: entropy_op.view_entropy(student, targets, temperature=0.1))


def depthwise(
    dtype: torch.dtype, *, grid: tuple[int, int], window: tuple[int, int] = (7, 7), width: int = 384
) -> list[Launch]:
    tokens, kernel = _empty(8, grid[0] * grid[1], 2 * width, dtype=dtype)[..., width:], _empty(width, *window)
    return _launches(lambda: depthwise_op._conv(tokens, kernel, *grid))


def linear_attention(dtype: torch.dtype, *, batch: int, length: int, width: int = 64) -> list[Launch]:
    qkv = _empty(batch, length, 3 * 768, dtype=dtype)
    return _launches(lambda: linear_attention_op._attention(qkv, width))


def attention(dtype: torch.dtype, *, length: int, causal: bool = False, width: int = 64) -> list[Launch]:
    qkv = _empty(64, length, 3 * 768, dtype=dtype)
    return _launches(lambda: attention_op._attention(qkv, width, causal))


def crops() -> list[Launch]:
    images = pack_images(torch.empty(4, 3, 375, 500, dtype=torch.uint8, device="meta"))
    chosen, order, factors, vector = _numbers(6), _numbers(6, 4), _empty(6, 4), _empty(3)
    box = torch.tensor([[0, 0, 200, 200]] * 6)

    def run() -> Tensor:
        none = torch.zeros(6, dtype=torch.bool)
        resize = SimpleNamespace(image=torch.zeros(6, dtype=torch.int64), flip=none, bilinear=none)
        x = triton_crops.resize_boxes(images, resize, box, 224)
        triton_crops.jitter_and_grey_(x, chosen, order, factors, chosen)
        triton_crops.blur_(x, torch.ones(6))
        return triton_crops.solarise_and_normalise_(x, chosen, vector, vector)

    with _noting() as noted:
        run()
    return _distinct(noted)


def _launches(run: Callable[[], Tensor]) -> list[Launch]:
    """Of a run forward and backward, each kernel and size once."""
    with _noting() as noted:
        result = run()
        result.backward(torch.empty_like(result))
    return _distinct(noted)


def _distinct(noted: list[Launch]) -> list[Launch]:
    return list({(each.name, each.sizes): each for each in noted}.values())


@contextmanager
def _noting() -> Iterator[list[Launch]]:
    noted: list[Launch] = []

    def note(kernel: JITFunction, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(*args: Any, **given: Any) -> None:
            arguments = dict(zip(kernel.arg_names, args, strict=False))
            options = {}
            for name, value in given.items():
                (arguments if name in kernel.arg_names else options)[name] = value
            noted.append(Launch(kernel, arguments, options))

        return run

    original = JITFunction.__getitem__
    JITFunction.__getitem__ = note
    try:
        yield noted
    finally:
        JITFunction.__getitem__ = original


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)


def _numbers(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int32, device="meta")
