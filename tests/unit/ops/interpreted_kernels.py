"""Run the operators under Triton's interpreter, on the CPU, and print how far they are from float64, as JSON.

Run by test_triton_interpreted.py, as a program of its own.
"""

import os

os.environ |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}

import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter

sys.path.insert(0, str(Path(__file__).parents[3]))
from mixlab.ops import triton_sums
from mixlab.ops.add_norm import op as add_norm_op
from mixlab.ops.add_norm import reference as add_norm_reference
from mixlab.ops.attention import op as attention_op
from mixlab.ops.attention import reference as attention_reference
from mixlab.ops.depthwise import op as depthwise_op
from mixlab.ops.depthwise import reference as depthwise_reference
from mixlab.ops.depthwise import triton_depthwise
from mixlab.ops.gated_scans import op as gated_scans_op
from mixlab.ops.gated_scans import reference as gated_scans_reference
from mixlab.ops.linear_attention import op as linear_attention_op
from mixlab.ops.linear_attention import reference as linear_attention_reference
from mixlab.ops.linear_attention import triton_linear_attention
from mixlab.ops.mamba2 import op as mamba2_op
from mixlab.ops.mamba2 import reference as mamba2_reference
from mixlab.ops.mamba2 import triton_mamba2
from mixlab.ops.selective_scan import op as selective_op
from mixlab.ops.selective_scan import triton_selective
from mixlab.ops.selective_scan.reference import selective_scan_recurrence
from mixlab.ops.short_conv import cuda_short_conv, triton_short_conv
from mixlab.ops.short_conv import op as short_conv_op
from mixlab.ops.silu_gate import op as gate_op
from mixlab.ops.silu_gate import reference as gate_reference
from mixlab.ops.ssd import cuda_steps, cuda_triangle
from mixlab.ops.ssd import op as ssd_op
from mixlab.ops.ssd.reference import ssd_recurrence
from mixlab.ops.ssd.tiling import BLOCK, Tiling
from mixlab.ops.view_entropy import op as entropy_op
from mixlab.ops.view_entropy import triton_view_entropy
from tests.tolerances import TOLERANCES, relative_error
from tests.unit.ops.emulated_cuda import COMPILER, emulation
from tests.unit.ops.interpreted_crops import crop_errors

Run = Callable[..., Any]
Errors = dict[str, float]

# name: length, groups, heads, reverse heads, N, P
SCANS = {
    "scan of one token": (1, 1, 2, 0, 16, 16),
    "scan of two tokens": (2, 2, 2, 1, 16, 32),
    "scan of one tile, not full": (31, 2, 4, 2, 32, 16),
    "scan of one full tile": (32, 1, 2, 0, 16, 16),
    "scan of a tile and a token": (33, 2, 4, 2, 16, 16),
    "scan of 63 tokens": (63, 1, 1, 1, 16, 16),
    "scan of two full tiles": (64, 2, 2, 1, 64, 64),
    "scan of a tile and a longer tail": (49, 2, 4, 2, 16, 16),
    "scan of 65 tokens": (65, 2, 2, 1, 16, 16),
    "scan of 130 tokens": (130, 2, 2, 1, 32, 16),
    "scan with a group per head": (5, 3, 3, 0, 16, 16),
    "scan with heads of 128": (34, 1, 1, 0, 16, 128),
    "scan of nine heads": (3, 1, 9, 0, 16, 16),
    "scan of eleven reverse heads": (3, 1, 11, 11, 16, 16),
    "scan of thirteen heads": (3, 1, 13, 0, 16, 16),
    "scan of nine heads, one reverse, over three tiles": (65, 1, 9, 1, 16, 16),
}
# name: batch, length, scans, reverse scans, channels, N, whether steps are given raw
SELECTIVE = {
    "selective scan of one token": (2, 1, 1, 1, 5, 16, False),
    "selective scan of pairs of steps, one not full": (2, 5, 2, 1, 40, 16, True),
    "selective scan with one state": (1, 3, 4, 2, 33, 1, True),
    "selective scan of 65 steps": (1, 65, 1, 1, 3, 2, True),
    "selective scan with three states, an image at a time": (3, 3, 1, 0, 35, 3, False),
}
# name: directions, length, heads, N, P, tokens of a segment of the convolution, whether the scan is kept
MIXERS = {
    "mixer both ways, short": (2, 5, 2, 16, 16, 128),
    "mixer both ways, a tile and a token": (2, 33, 1, 16, 16, 128),
    "mixer both ways, three tiles": (2, 65, 1, 16, 16, 128),
    "mixer with a convolution in three segments": (2, 9, 1, 16, 16, 4),
    "mixer that keeps its scan, one tile": (2, 5, 2, 16, 16, 128, True),
    "mixer that keeps its scan, three tiles": (2, 65, 1, 16, 16, 128, True),
    "mixer of three heads, whose rows are cut in thirds": (2, 4, 6, 16, 16, 128),
}
# name: length, groups, heads, reverse heads
TRIANGLES = {
    "triangle of three blocks": (38, 2, 6, 3),
    "triangle of five blocks": (70, 1, 3, 0),
}
# name: length, heads, whether the scan is kept
TRIANGLE_MIXERS = {
    "mixer with a triangle": (35, 2, False),
    "mixer with a triangle that keeps its scan": (35, 2, True),
}
# name: length, heads, P, and if the tokens are cut: the number of spans and the tokens of one
LINEAR_ATTENTIONS = {
    "linear attention of one token": (1, 2, 16, None),
    "linear attention of a tile and a token": (33, 2, 32, None),
    "linear attention of 70 tokens": (70, 1, 64, None),
    "linear attention in three spans": (70, 2, 16, (3, 32)),
    "linear attention in two spans, one short": (129, 1, 16, (2, 96)),
}
# name: images, grid, channels, window, and if not as usual: the most programs
DEPTHWISE = {
    "7 x 7 windows on one token": (1, (1, 1), 24, (7, 7)),
    "7 x 7 windows on 3 x 5": (3, (3, 5), 40, (7, 7)),
    "7 x 7 windows on 4 x 4, several maps to a program": (5, (4, 4), 24, (7, 7), 2),
    "7 x 7 windows on 8 x 8": (2, (8, 8), 40, (7, 7)),
    "7 x 7 windows on 10 x 10": (1, (10, 10), 24, (7, 7)),
    "7 x 7 windows on 9 x 5, several maps to a program": (5, (9, 5), 100, (7, 7), 4),
    "3 x 3 windows on 10 x 10": (2, (10, 10), 24, (3, 3)),
    "windows along 9 tokens": (2, (1, 9), 24, (1, 7)),
}
# name: images, length, heads, P, causal
ATTENTIONS = {
    "attention of one token": (3, 1, 1, 16, False),
    "attention of seven images, six to a program": (7, 10, 2, 16, False),
    "attention of four images, three to a program": (4, 17, 1, 32, True),
    "attention of 64 tokens": (2, 64, 1, 16, False),
    "attention of 65 tokens": (2, 65, 1, 16, False),
    "attention of 128 tokens": (1, 128, 1, 16, True),
}


# Sizes between others, and dear ones: with MIXLAB_COMPILE_ALL=1 alone, and on a GPU always.
LONG = {
    "scan of two tokens",
    "scan of one full tile",
    "scan of 63 tokens",
    "scan of two full tiles",
    "scan of 130 tokens",
    "scan of thirteen heads",
    "scan of nine heads, one reverse, over three tiles",
    "selective scan of 65 steps",
    "mixer both ways, a tile and a token",
    "mixer both ways, three tiles",
    "mixer that keeps its scan, three tiles",
    "mixer of three heads, whose rows are cut in thirds",
    "linear attention of a tile and a token",
    "7 x 7 windows on 8 x 8",
    "3 x 3 windows on 10 x 10",
}


def compare(run: Run, reference: Run, inputs: Sequence[Tensor], *, smallest: float = 0.0) -> Errors:
    """Relative errors of all results and gradients; those whose reference is below `smallest` must be as small."""
    leaves = [t.detach().requires_grad_() for t in inputs]
    exact = [t.detach().double().requires_grad_() for t in inputs]
    expected = results_of(reference(*exact))
    directions = [torch.randn(t.shape) for t in expected]
    found = results_of(run(*leaves))
    gradients = torch.autograd.grad(found, leaves, directions)
    expected_gradients = torch.autograd.grad(expected, exact, [t.double() for t in directions])
    errors = {}
    for number, (one, other) in enumerate(zip((*found, *gradients), (*expected, *expected_gradients), strict=True)):
        name = f"result {number}" if number < len(found) else f"gradient {number - len(found)}"
        negligible = other.norm() < smallest and one.norm() < smallest
        errors[name] = 0.0 if negligible else relative_error(one, other)
    return errors


def results_of(output: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return output if isinstance(output, tuple) else (output,)


def scan_inputs(length: int, groups: int, num_heads: int, state: int, width: int) -> list[Tensor]:
    q, k = torch.randn(2, 2, length, groups, state)
    dt, A, skip = F.softplus(torch.randn(2, length, num_heads) - 1), -2 * torch.rand(num_heads), torch.randn(num_heads)
    return [q, k, torch.randn(2, length, num_heads, width), dt, A, skip]


def scan_errors(length: int, groups: int, num_heads: int, num_reverse: int, state: int, width: int) -> Errors:
    return compare(
        lambda *inputs: ssd_op._scan(*inputs, num_reverse, True),
        lambda *inputs: ssd_recurrence(*inputs, num_reverse=num_reverse),
        scan_inputs(length, groups, num_heads, state, width),
        smallest=1e-12,  # a lone token has no past: the gradient of A is zero
    )


def triangle_errors(length: int, groups: int, num_heads: int, num_reverse: int) -> Errors:
    """Decays and their gradients are interpreted, the programs between them emulated."""
    q, k, v, *others = scan_inputs(length, groups, num_heads, 64, 64)
    with emulation(), patch.object(ssd_op, "tiling", lambda tokens, **_: Tiling(BLOCK, -(-length // BLOCK), 0)):
        return in_bfloat16(
            lambda *inputs: ssd_op._scan(*inputs, num_reverse, True),
            lambda *inputs: ssd_recurrence(*inputs, num_reverse=num_reverse),
            [(q / 4).bfloat16(), (k / 4).bfloat16(), v.bfloat16(), *others],
        )


def self_check_errors() -> Errors:
    """As before the first scan on a GPU."""
    cpu, scale = torch.device("cpu"), TOLERANCES[torch.float32] / 0.01
    with emulation():
        return {
            "triangle": scale * cuda_triangle.worst_error(3, cpu),
            "convolved triangle": scale * cuda_triangle.worst_convolved_error(3, cpu),
            "short convolution": scale * cuda_short_conv.worst_error(2, 64, 64, 400, cpu),
            "steps": scale * cuda_steps.worst_error(38, 2, 3, cpu),
        }


def in_bfloat16(run: Run, reference: Run, inputs: Sequence[Tensor], *, slack: float = 1.0) -> Errors:
    """Errors as shares of the tolerance, which is reported as that of float32."""
    scale = TOLERANCES[torch.float32] / TOLERANCES[torch.bfloat16] / slack
    return {name: scale * error for name, error in compare(run, reference, inputs).items()}


def far_scan_errors() -> Errors:
    """Tokens 2²⁶ numbers apart: offsets outgrow 32 bits. The file behind them has a page for each token, and holes."""
    length, far = 33, 2**26
    with tempfile.NamedTemporaryFile() as file:
        storage = torch.UntypedStorage.from_file(file.name, True, 4 * length * far)
        packed = torch.empty(0).set_(storage).view(1, length, far)
        spread = packed[:, :, :49]
        spread.copy_(torch.randn(1, length, 49))
        spread[..., 48] = F.softplus(spread[..., 48] - 1)
        q, k, v, dt = spread.split([16, 16, 16, 1], dim=2)
        return compare(
            lambda *inputs: ssd_op._scan(*inputs, 1, True),
            lambda *inputs: ssd_recurrence(*inputs, num_reverse=1),
            [*(t.unsqueeze(2) for t in (q, k, v)), dt, -torch.ones(1), torch.ones(1)],
        )


def selective_inputs(batch: int, length: int, scans: int, width: int, state: int) -> list[Tensor]:
    q, k = torch.randn(2, batch, length, scans, state)
    v, dt = torch.randn(2, batch, length, scans, width)
    A, skip, bias = -4 * torch.rand(scans, width, state), torch.randn(scans, width), torch.randn(scans, width) - 2
    return [q, k, v, dt, A, skip, bias]


def selective_errors(
    batch: int, length: int, scans: int, num_reverse: int, width: int, state: int, raw: bool
) -> Errors:
    q, k, v, dt, *parameters, bias = selective_inputs(batch, length, scans, width, state)

    def exact(q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, skip: Tensor, *bias: Tensor) -> Tensor:
        steps = F.softplus(dt + bias[0]) if raw else dt
        return selective_scan_recurrence(q, k, v, steps, A, skip, num_reverse=num_reverse)

    with patch.object(triton_selective, "NOTED_BYTES", 1 if batch == 3 else triton_selective.NOTED_BYTES):
        return compare(
            lambda *inputs: selective_op._scan(*inputs, *(() if raw else (None,)), num_reverse),
            exact,
            [q, k, v, dt, *parameters, bias] if raw else [q, k, v, F.softplus(dt), *parameters],
            smallest=1e-12,
        )


def short_conv_errors(directions: int) -> Errors:
    x = torch.randn(2, 9, 64)[..., :32]  # rows that lie apart
    inputs = [x, torch.randn(directions, 32, 4), torch.randn(directions, 32)]
    return compare(short_conv_op._conv, short_conv_op.two_way_short_conv, inputs)


def gated_scans_errors(scans: int, mean: bool) -> Errors:
    y = torch.randn(2, scans, 5, 40).transpose(1, 2)  # scan by scan, as orders restore them
    return compare(
        lambda *inputs: gated_scans_op._gate(*inputs, mean),
        lambda *inputs: gated_scans_reference.gated_scans(*inputs, mean=mean),
        [y, torch.randn(2, 5, 80)[..., 40:]],
    )


def mixer_inputs(directions: int, length: int, num_heads: int, state: int, width: int) -> list[Tensor]:
    inner = num_heads * width
    channels = inner + 2 * state
    return [
        torch.randn(1, length, inner + channels + num_heads + -num_heads % 8),  # as wide as `linear_in_rows` makes it
        torch.randn(directions, channels, 4) / 2,
        torch.randn(directions, channels) / 10,
        torch.randn(directions, num_heads) - 1,
        2 * torch.rand(directions, num_heads) - 1,
        torch.randn(directions, num_heads),
        torch.randn(directions, inner),
        torch.randn(24, inner),
    ]


def mixer_errors(
    directions: int, length: int, num_heads: int, state: int, width: int, segment: int, keep_scan: bool = False
) -> Errors:
    with patch.object(triton_short_conv, "SEGMENT", segment):
        return compare(
            lambda *inputs: mamba2_op._mixer(*inputs, width, 1e-5, keep_scan),
            lambda *inputs: mamba2_reference.mamba2(*inputs, head_dim=width, eps=1e-5),
            mixer_inputs(directions, length, num_heads, state, width),
        )


def triangle_mixer_errors(length: int, num_heads: int, keep_scan: bool) -> Errors:
    projected, *parameters = mixer_inputs(2, length, num_heads, 64, 64)
    with emulation(), patch.object(triton_mamba2, "tiling", lambda *_, **__: Tiling(BLOCK, -(-length // BLOCK), 0)):
        return in_bfloat16(
            lambda *inputs: mamba2_op._mixer(*inputs, 64, 1e-5, keep_scan),
            lambda *inputs: mamba2_reference.mamba2(*inputs, head_dim=64, eps=1e-5),
            [projected.bfloat16(), *parameters],
            slack=4,  # norms over two heads are chance, and an error in y scales all gradients
        )


def autocast_errors() -> Errors:
    """float32 inputs stay float32, forward and backward, whatever autocast would make of the products inside."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return mixer_errors(1, 7, 2, 16, 16, 128)


def add_norm_inputs(centred: bool) -> list[Tensor]:
    return [*torch.randn(2, 2, 3, 41), *torch.randn(1 + centred, 41)]


def add_norm_errors(centred: bool, scaled: bool = False) -> Errors:
    no_bias, factors = () if centred else (None,), torch.tensor([0.0, 1.25]) if scaled else None
    return compare(
        lambda *inputs: add_norm_op._add_norm(*inputs, *no_bias, factors, 1e-5),
        lambda *inputs: add_norm_reference.add_norm(*inputs, *no_bias, factors, eps=1e-5),
        add_norm_inputs(centred),
        smallest=1e-6,
    )


def silu_gate_errors() -> Errors:
    gate, y = torch.randn(2, 3, 82).chunk(2, -1)[0], torch.randn(2, 41, 3).mT  # both lie apart
    return compare(gate_op._gate, gate_reference.silu_gate, [y, gate, torch.randn(41)])


def sums_errors(*shape: int, dim: int = 0) -> Errors:
    """More parts than a program loads at a time."""
    parts = torch.randn(shape)
    return {"sum": relative_error(triton_sums.add_up(parts, dim=dim), parts.double().sum(dim))}


def entropy_errors(num_views: int, num_targets: int, num_images: int, num_outputs: int) -> Errors:
    """The reference is the sum over pairs, as it is written; each program has 16 outputs."""
    targets = torch.randn(num_targets, num_images, num_outputs).softmax(-1)

    def over_pairs(student: Tensor) -> Tensor:
        log_shares = (student / 0.1).log_softmax(-1)
        pairs = [(v, t) for v in range(num_views) for t in range(num_targets) if v != t]
        return -sum((targets[t].double() * log_shares[v]).sum(-1).mean() for v, t in pairs) / len(pairs)

    with patch.object(entropy_op, "runs_kernels", lambda *_: True), patch.object(triton_view_entropy, "OUTPUTS", 16):
        run = partial(entropy_op.view_entropy, targets=targets, temperature=0.1)
        return compare(run, over_pairs, [torch.randn(num_views, num_images, num_outputs)])


def depthwise_errors(
    batch: int, grid: tuple[int, int], channels: int, window: tuple[int, int], programs: int = 1056
) -> Errors:
    tokens = torch.randn(batch, grid[0] * grid[1], 2 * channels)[..., channels:]  # half of a projection
    with patch.object(triton_depthwise, "PROGRAMS", programs):
        return compare(
            lambda *inputs: depthwise_op._conv(*inputs, *grid),
            lambda *inputs: depthwise_reference.depthwise_conv(*inputs, grid),
            [tokens, torch.randn(channels, *window)],
        )


def linear_attention_errors(length: int, num_heads: int, width: int, spans: tuple[int, int] | None) -> Errors:
    choose = triton_linear_attention._spans
    with patch.object(triton_linear_attention, "_spans", lambda *sizes: spans or choose(*sizes)):
        return compare(
            lambda qkv: linear_attention_op._attention(qkv, width),
            lambda qkv: linear_attention_reference.softmax_linear_attention(qkv, head_dim=width),
            [3 * torch.randn(2, length, 3 * num_heads * width)],
        )


def attention_errors(batch: int, length: int, num_heads: int, width: int, causal: bool) -> Errors:
    return compare(
        lambda qkv: attention_op._attention(qkv, width, causal),
        lambda qkv: attention_reference.softmax_attention(qkv, head_dim=width, causal=causal),
        [3 * torch.randn(batch, length, 3 * num_heads * width)],
    )


def registered_errors() -> Errors:
    """The registered operators, which torch.compile runs: torch's own checks, and the gradients of the largest."""
    scan = [t.requires_grad_() for t in scan_inputs(3, 1, 2, 16, 16)]
    mixer = [t.requires_grad_() for t in mixer_inputs(2, 2, 1, 16, 16)]
    norm = [t.requires_grad_() for t in add_norm_inputs(centred=False)]
    selective = [t.requires_grad_() for t in selective_inputs(1, 2, 2, 3, 2)]
    torch.library.opcheck(ssd_op._scan.registered, (*scan, 0, True))
    torch.library.opcheck(selective_op._scan.registered, (*selective, 1), test_utils=("test_schema", "test_faketensor"))
    torch.library.opcheck(
        mamba2_op._mixer.registered, (*mixer, 16, 1e-5, True), test_utils=("test_schema", "test_faketensor")
    )
    torch.library.opcheck(add_norm_op._add_norm.registered, (*norm, None, None, 1e-5))
    torch.library.opcheck(add_norm_op._add_norm.registered, (*norm, None, torch.rand(2), 1e-5))
    views, targets = torch.randn(3, 1, 7, requires_grad=True), torch.rand(2, 1, 7)
    torch.library.opcheck(entropy_op._in_kernels.registered, (views, targets, 0.1))
    gated = [torch.randn(*shape, requires_grad=True) for shape in ((1, 2, 5), (1, 2, 5), (5,))]
    torch.library.opcheck(gate_op._gate.registered, tuple(gated))
    scans, gate = torch.randn(1, 2, 2, 5, requires_grad=True), torch.randn(1, 2, 5, requires_grad=True)
    torch.library.opcheck(gated_scans_op._gate.registered, (scans, gate, True))
    tokens, windows = torch.randn(1, 6, 10, requires_grad=True), torch.randn(10, 3, 3, requires_grad=True)
    torch.library.opcheck(depthwise_op._conv.registered, (tokens, windows, 2, 3))
    torch.library.opcheck(linear_attention_op._attention.registered, (torch.randn(1, 3, 48, requires_grad=True), 16))
    torch.library.opcheck(attention_op._attention.registered, (torch.randn(2, 3, 48, requires_grad=True), 16, False))
    return compare(
        lambda *inputs: mamba2_op._mixer.registered(*inputs, 16, 1e-5, False)[0],
        lambda *inputs: mamba2_reference.mamba2(*inputs, head_dim=16, eps=1e-5),
        mixer_inputs(2, 5, 2, 16, 16),
    )


def poison_new_buffers() -> None:
    """New buffers come filled with NaN: what a kernel forgets to write cannot pass."""
    empty = torch.empty

    def poisoned(*args: Any, **options: Any) -> Tensor:
        tensor = empty(*args, **options)
        return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

    torch.empty = poisoned


def patch_language_once() -> None:
    """The interpreter looks through all of Triton's language whenever a kernel calls a function, though the kernel has
    replaced it already: a quarter of its time."""
    patch_language = interpreter._patch_lang

    def patch_where_needed(fn: Any) -> Any:
        known = [value for value in fn.__globals__.values() if value is tl or value is tl.core]
        replaced = not any(tl.core.is_builtin(part) for lang in known for part in (lang.load, lang.tensor.__add__))
        return None if replaced else patch_language(fn)

    interpreter._patch_lang = patch_where_needed


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    poison_new_buffers()
    patch_language_once()
    cases: dict[str, tuple[Callable[..., Errors], tuple[Any, ...]]] = {
        **{name: (scan_errors, sizes) for name, sizes in SCANS.items()},
        **{name: (selective_errors, sizes) for name, sizes in SELECTIVE.items()},
        **{name: (mixer_errors, sizes) for name, sizes in MIXERS.items()},
        **{name: (linear_attention_errors, sizes) for name, sizes in LINEAR_ATTENTIONS.items()},
        **{name: (attention_errors, sizes) for name, sizes in ATTENTIONS.items()},
        **{name: (depthwise_errors, sizes) for name, sizes in DEPTHWISE.items()},
        **{name: (triangle_errors, sizes) for name, sizes in TRIANGLES.items() if COMPILER},
        **{name: (triangle_mixer_errors, sizes) for name, sizes in TRIANGLE_MIXERS.items() if COMPILER},
        **({"self-check of a triangle": (self_check_errors, ())} if COMPILER else {}),
        "short convolution one way": (short_conv_errors, (1,)),
        "short convolution both ways": (short_conv_errors, (2,)),
        "mean of two scans under a gate": (gated_scans_errors, (2, True)),
        "sum of four scans under a gate": (gated_scans_errors, (4, False)),
        "scan of tokens that lie far apart": (far_scan_errors, ()),
        "mixer one way, in float32 under autocast": (autocast_errors, ()),
        "add and RMSNorm": (add_norm_errors, (False,)),
        "add and LayerNorm": (add_norm_errors, (True,)),
        "add in one of two images and RMSNorm": (add_norm_errors, (False, True)),
        "add in one of two images and LayerNorm": (add_norm_errors, (True, True)),
        "bias, SiLU and gate": (silu_gate_errors, ()),
        "sums of 257 rows": (partial(sums_errors, dim=1), (3, 257, 50)),
        "sums of 129 long rows": (sums_errors, (129, 4100)),
        "cross-entropy of two views": (entropy_errors, (2, 2, 1, 16)),
        "cross-entropy of five views, two of them global": (entropy_errors, (5, 2, 3, 41)),
        "cross-entropy of three views with one target": (entropy_errors, (3, 1, 2, 7)),
        "registered operators": (registered_errors, ()),
    }
    report: dict[str, Errors | str] = {}
    if not os.environ.get("MIXLAB_COMPILE_ALL"):
        cases = {name: case for name, case in cases.items() if name not in LONG}
    for name, (measure, sizes) in cases.items():
        try:
            report[name] = measure(*sizes)
        except Exception:
            report[name] = traceback.format_exc()
    print(json.dumps({"tolerance": TOLERANCES[torch.float32], "cases": report, "crops": crop_errors()}))


if __name__ == "__main__":
    main()
