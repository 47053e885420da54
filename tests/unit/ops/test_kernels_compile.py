"""Kernels compile for a GPU where there is none: what the interpreter forgives, the compiler does not."""

from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("triton")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from mixlab.data import triton_crops
from mixlab.ops.add_norm import triton_add_norm
from mixlab.ops.linear_attention import triton_linear_attention

HOPPER = GPUTarget("cuda", 90, 32)
WHOLE = {"L", "D", "span", "num_rows", "num_pixels", "side", "size", "taps", "reach"}  # numbers among the arguments
KINDS = {"eps": "fp32", "images": "*u8", **dict.fromkeys(("where", "jitter", "order", "grey", "solarise"), "*i32")}
MIXED = ("branch_ptr", "normed_ptr", "dnormed_ptr", "dbranch_ptr", "qkv_ptr", "out_ptr", "dout_ptr", "dqkv_ptr")
FLOAT32 = {"_add_norm_forward_kernel": ("out_ptr",), "_add_norm_backward_kernel": ("dout_ptr",)}  # the stream's

CASES: list[tuple[ModuleType, str, dict[str, Any]]] = [
    *(
        (triton_add_norm, name, {"CENTRED": centred, "BLOCK": 256})
        for name in ("_add_norm_forward_kernel", "_add_norm_backward_kernel")
        for centred in (False, True)
    ),
    *(
        (triton_linear_attention, name, {"P": 32, "T": 32, "PRECISION": "tf32"})
        for name in vars(triton_linear_attention)
        if name.endswith("_kernel")
    ),
    (triton_crops, "_jitter_and_grey", {"BLOCK": 1024}),
    (triton_crops, "_solarise_and_normalise", {"BLOCK": 1024}),
    (triton_crops, "_resize_rows", {"BLOCK": 128}),
    (triton_crops, "_resize_columns", {"BLOCK": 64}),
    (triton_crops, "_blur", {"DOWN": True, "BLOCK": 64}),
    (triton_crops, "_blur", {"DOWN": False, "BLOCK": 64}),
]


@pytest.mark.parametrize(("module", "name", "constants"), CASES, ids=[f"{name} {sizes}" for _, name, sizes in CASES])
def test_a_kernel_compiles_for_hopper(module: ModuleType, name: str, constants: dict[str, Any]) -> None:
    kernel = getattr(module, name)

    def kind(argument: str) -> str:
        if argument in constants:
            return "constexpr"
        if argument in WHOLE:
            return "i32"
        if argument in MIXED and argument not in FLOAT32.get(name, ()):
            return "*bf16"
        return KINDS.get(argument, "*fp32")

    names = kernel.arg_names
    source = ASTSource(
        fn=kernel,
        signature={argument: kind(argument) for argument in names},
        constexprs={(names.index(key),): value for key, value in constants.items()},
    )
    assert triton.compile(source, target=HOPPER).asm["cubin"]
