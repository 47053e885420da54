"""Fully visible linear attention with its softmaxes: the fused kernels beside plain torch and torch's SDPA."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mixlab.bench.gpu_time import copy_bandwidth, kernel_ms, wall_ms
from mixlab.ops.linear_attention import op, reference

HEADS, WIDTH = 12, 64  # LinearViT-B
CASES = ((64, 198), (256, 38), (8, 4098), (1, 16386))  # batch x tokens
Row = dict[str, Any]


def run_gpu(cases: tuple[tuple[int, int], ...] = CASES) -> list[Row]:
    """Forward, and forward with backward, in bf16; ratios are over plain torch."""
    bandwidth = copy_bandwidth()
    return [row for case in cases for row in _case(*case, bandwidth)]


def _case(batch: int, length: int, bandwidth: float) -> list[Row]:
    qkv = torch.randn(batch, length, 3 * HEADS * WIDTH, device="cuda").bfloat16().requires_grad_()
    dout = torch.randn(batch, length, HEADS * WIDTH, device="cuda").bfloat16()
    systems = {
        "mixlab, fused" if op.runs_kernels(qkv, head_dim=WIDTH) else "mixlab": op.softmax_linear_attention,
        "plain torch": reference.softmax_linear_attention,
        "SDPA (softmax attention)": _sdpa,
    }
    floor_ms = 4 * dout.numel() * 2 / bandwidth * 1e3  # q, k and v read, the output written
    rows: list[Row] = []
    for name, attention in systems.items():

        def forward(attention: Any = attention) -> Tensor:
            with torch.no_grad():
                return attention(qkv, head_dim=WIDTH)

        def both(attention: Any = attention) -> object:
            return torch.autograd.grad(attention(qkv, head_dim=WIDTH), qkv, dout)

        times = {"fwd_ms": kernel_ms(forward), "fwd_bwd_ms": kernel_ms(both), "fwd_bwd_wall_ms": wall_ms(both)}
        rows.append({"batch": batch, "tokens": length, "system": name, **times})
    plain = rows[1]
    for row in rows:
        row["x_fwd"], row["x_fwd_bwd"] = (plain[key] / row[key] for key in ("fwd_ms", "fwd_bwd_ms"))
        row["share_of_floor"] = floor_ms / row["fwd_ms"] if row is rows[0] else None
    return rows


def _sdpa(qkv: Tensor, *, head_dim: int) -> Tensor:
    q, k, v = qkv.unflatten(-1, (3, -1, head_dim)).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
