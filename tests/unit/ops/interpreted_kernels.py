"""Run the Triton kernels under Triton's interpreter, on the CPU, and print how far they are from float64, as JSON.

Run by test_triton_interpreted.py, as a program of its own.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"

import json
import sys
import traceback
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[3]))
from mixlab.ops.add_norm.reference import add_norm
from mixlab.ops.add_norm.triton_add_norm import add_norm_backward, add_norm_forward
from mixlab.ops.linear_attention import triton_linear_attention
from mixlab.ops.linear_attention.reference import softmax_linear_attention
from mixlab.ops.mamba2 import op as mamba2_op
from mixlab.ops.mamba2.reference import mamba2
from mixlab.ops.mamba2.triton_mamba2 import mamba2_backward, mamba2_forward
from mixlab.ops.ssd.reference import ssd_recurrence
from mixlab.ops.ssd.triton_scan import ssd_backward, ssd_forward
from tests.tolerances import TOLERANCES, relative_error

# name: length, groups, heads, reverse heads, N, P
SCANS = {
    "scan of one token": (1, 1, 2, 0, 16, 16),
    "scan of two tokens": (2, 2, 2, 1, 16, 32),
    "scan of one tile, not full": (31, 2, 4, 2, 32, 16),
    "scan of one full tile": (32, 1, 2, 0, 16, 16),
    "scan of a tile and a token": (33, 2, 4, 2, 16, 16),
    "scan of 63 tokens": (63, 1, 1, 1, 16, 16),
    "scan of two full tiles": (64, 2, 2, 1, 64, 64),
    "scan of 65 tokens": (65, 2, 6, 3, 16, 16),
    "scan of 130 tokens": (130, 2, 2, 1, 32, 16),
    "scan with a group per head": (40, 3, 3, 0, 16, 16),
    "scan with heads of 128": (34, 1, 1, 0, 16, 128),
    "scan of nine heads": (3, 1, 9, 0, 16, 16),
    "scan of eleven reverse heads": (3, 1, 11, 11, 16, 16),
    "scan of thirteen heads over two tiles": (33, 1, 13, 0, 16, 16),
    "scan of two groups of nine heads": (33, 2, 18, 9, 16, 16),
}
# name: directions, length, heads, N, P
MIXERS = {
    "mixer both ways, short": (2, 5, 2, 16, 16),
    "mixer one way": (1, 33, 2, 16, 16),
    "mixer both ways, many tiles": (2, 70, 3, 32, 16),
    "mixer with a convolution in two segments": (2, 130, 1, 16, 16),
}
# name: length, heads, P
ATTENTIONS = {
    "linear attention of one token": (1, 2, 16),
    "linear attention of a tile and a token": (33, 2, 32),
    "linear attention of 70 tokens": (70, 1, 64),
    "linear attention in three spans": (70, 2, 16, 3),
    "linear attention in two spans, one short": (129, 1, 16, 2),
}


def errors(names: str, results: list[Tensor], references: list[Tensor]) -> dict[str, float]:
    pairs = zip(names.split(), results, references, strict=True)
    return {name: relative_error(result, reference) for name, result, reference in pairs}


def scan_errors(length: int, groups: int, num_heads: int, num_reverse: int, state: int, width: int) -> dict[str, float]:
    q, k = torch.randn(2, 2, length, groups, state)
    v, dy = torch.randn(2, 2, length, num_heads, width)
    dt, A, skip = F.softplus(torch.randn(2, length, num_heads) - 1), -2 * torch.rand(num_heads), torch.randn(num_heads)
    inputs = (q, k, v, dt, A, skip)
    exact = [t.double().requires_grad_() for t in inputs]
    reference = ssd_recurrence(*exact, num_reverse=num_reverse)
    gradients = torch.autograd.grad(reference, exact, dy.double())
    y, states = ssd_forward(*inputs, num_reverse=num_reverse, keep_states=True)
    dqk, dv, ddt, sums = ssd_backward(dy, *inputs, states, num_reverse=num_reverse)
    results = [y, *dqk, dv, ddt, *sums]
    if length == 1:  # a lone token has no past: the gradient of A is zero, and a relative error means nothing
        assert sums[0].abs().max() == 0
        return errors("y q k v dt skip", [*results[:5], results[6]], [reference, *gradients[:4], gradients[5]])
    return errors("y q k v dt A skip", results, [reference, *gradients])


NAMES = "projected conv_weight conv_bias dt_bias A_log skip norm_weight out_weight"


def mixer_inputs(directions: int, length: int, num_heads: int, state: int, width: int) -> tuple[Tensor, ...]:
    inner = num_heads * width
    channels = inner + 2 * state
    return (
        torch.randn(2, length, inner + channels + num_heads),
        torch.randn(directions, channels, 4) / 2,
        torch.randn(directions, channels) / 10,
        torch.randn(directions, num_heads) - 1,
        2 * torch.rand(directions, num_heads) - 1,
        torch.randn(directions, num_heads),
        torch.randn(directions, inner),
        torch.randn(24, inner),
    )


def mixer_errors(directions: int, length: int, num_heads: int, state: int, width: int) -> dict[str, float]:
    inputs = mixer_inputs(directions, length, num_heads, state, width)
    exact = [t.double().requires_grad_() for t in inputs]
    reference = mamba2(*exact, head_dim=width, eps=1e-5)
    dout = torch.randn(reference.shape)
    gradients = torch.autograd.grad(reference, exact, dout.double())
    out = mamba2_forward(*inputs, head_dim=width, eps=1e-5)
    dprojected, dconv, sums, dnorm, dout_weight = mamba2_backward(dout, *inputs, head_dim=width, eps=1e-5)
    dA_log, dskip, ddt_bias = sums
    results = [out, dprojected, dconv[..., :4], dconv[..., 4], ddt_bias, dA_log, dskip, dnorm, dout_weight]
    return errors("out " + NAMES, results, [reference, *gradients])


def operator_errors() -> dict[str, float]:
    """The custom operators of the mixer with a CPU kernel: torch's own check, and gradients through autograd."""
    mamba2_op._mixer.register_kernel("cpu", mamba2_op._forward)
    mamba2_op._mixer_backward.register_kernel("cpu", mamba2_op._backward)
    inputs = [t.requires_grad_() for t in mixer_inputs(2, 5, 2, 16, 16)]
    torch.library.opcheck(mamba2_op._mixer, (*inputs, 16, 1e-5))
    exact = [t.detach().double().requires_grad_() for t in inputs]
    reference = mamba2(*exact, head_dim=16, eps=1e-5)
    dout = torch.randn(reference.shape)
    gradients = torch.autograd.grad(reference, exact, dout.double())
    found: dict[str, float] = {}
    for name, run in (("operator", mamba2_op._mixer), ("eager", mamba2_op._Eager.apply)):
        out = run(*inputs, 16, 1e-5)
        results = torch.autograd.grad(out, inputs, dout)
        found |= {f"{name}_{key}": value for key, value in errors(
            "out " + NAMES, [out, *results], [reference, *gradients]).items()}  # fmt: skip
    return found


def add_norm_errors(centred: bool) -> dict[str, float]:
    branch, stream, dout, dnormed = torch.randn(4, 2, 3, 41)
    weight, bias = torch.randn(2, 41)
    given = (branch, stream, weight, bias)[: 3 + centred]
    exact = [t.double().requires_grad_() for t in given]
    reference = add_norm(*exact[:3], exact[3] if centred else None, eps=1e-5)
    gradients = torch.autograd.grad(reference, exact, [dout.double(), dnormed.double()])
    out, normed = add_norm_forward(branch, stream, weight, bias if centred else None, eps=1e-5)
    dbranch, dstream, dvectors = add_norm_backward(dout, dnormed, out, weight, torch.float32, centred=centred, eps=1e-5)
    results = [out, normed, dbranch, dstream, *dvectors]
    names = "stream normed dbranch dstream dweight" + " dbias" * centred
    return errors(names, results, [*reference, *gradients])


def attention_errors(length: int, num_heads: int, width: int, num_spans: int | None = None) -> dict[str, float]:
    qkv, dout = 3 * torch.randn(2, length, 3 * num_heads * width), torch.randn(2, length, num_heads * width)
    exact = qkv.double().requires_grad_()
    reference = softmax_linear_attention(exact, head_dim=width)
    (gradient,) = torch.autograd.grad(reference, exact, dout.double())
    out, log_sums = triton_linear_attention.forward(qkv, head_dim=width, num_spans=num_spans)
    dqkv = triton_linear_attention.backward(dout, qkv, log_sums, head_dim=width, num_spans=num_spans)
    if length == 1:  # alone, a token is its own average: q and k have no say
        assert dqkv[..., : 2 * num_heads * width].abs().max() < 1e-4
    return errors("out qkv", [out, dqkv], [reference, gradient])


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cases = {
        **{name: (scan_errors, sizes) for name, sizes in SCANS.items()},
        **{name: (mixer_errors, sizes) for name, sizes in MIXERS.items()},
        **{name: (attention_errors, sizes) for name, sizes in ATTENTIONS.items()},
        "operators of the mixer": (operator_errors, ()),
        "add and RMSNorm": (add_norm_errors, (False,)),
        "add and LayerNorm": (add_norm_errors, (True,)),
    }
    report: dict[str, dict[str, float] | str] = {}
    for name, (measure, sizes) in cases.items():
        try:
            report[name] = measure(*sizes)
        except Exception:
            report[name] = traceback.format_exc()
    print(json.dumps({"tolerance": TOLERANCES[torch.float32], "cases": report}))


if __name__ == "__main__":
    main()
