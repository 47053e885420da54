"""Operations alone. The two-way scan: on a GPU beside mamba_ssm and SDPA, on a CPU by the length of its chunks.
Attention, linear with its softmaxes and softmax over few tokens: the fused kernels beside plain torch and SDPA.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from mixlab.bench.timing import (
    PEER_SECONDS,
    Row,
    call_seconds,
    copy_bandwidth,
    kernel_ms,
    matrix_rate,
    measured,
    time_limit,
    wall_ms,
)
from mixlab.console import console
from mixlab.ops.attention import op as softmax_op
from mixlab.ops.attention import reference as softmax_reference
from mixlab.ops.linear_attention import op as linear_op
from mixlab.ops.linear_attention import reference as linear_reference
from mixlab.ops.ssd.chunked import chunk_length, ssd_chunked
from mixlab.ops.ssd.op import ssd

HEADS, WIDTH, STATE = 24, 64, 64  # per direction: DinoVim-B
ATTENTION_HEADS = 12  # of the same width: ViT-B and LinearViT-B
CASES = ((64, 198), (256, 38), (8, 4098))  # batch x tokens: 224 px, 96 px, and a long sequence
FEW_TOKENS = ((1536, 10, 6), (512, 65, 6), (1536, 17, 3), (512, 65, 3), (512, 37, 12))  # and heads: DINO's views
PEER_CHUNKS = (64, 128, 256)  # mamba_ssm is measured at each and shown at its best
System = tuple[Callable[[], Tensor], tuple[Tensor, ...]]  # what to call, and the tensors that get gradients


def scan_on_gpu(*, quick: bool = False) -> list[Row]:
    """Forward, and forward with backward, of both directions; ratios are over mamba_ssm where it is installed."""
    bandwidth, rate = copy_bandwidth(), matrix_rate()
    return [row for case in CASES[: 2 if quick else None] for row in _scan_case(*case, bandwidth, rate)]


def linear_attention_on_gpu(*, quick: bool = False) -> list[Row]:
    """Forward, and forward with backward, in bf16; ratios are over plain torch."""
    bandwidth = copy_bandwidth()
    cases = CASES[:1] if quick else (*CASES, (1, 16386))
    return [row for case in cases for row in _linear_attention_case(*case, bandwidth)]


def softmax_attention_on_gpu(*, quick: bool = False) -> list[Row]:
    """The same of softmax attention over few tokens, from one projection; ratios are over SDPA."""
    bandwidth = copy_bandwidth()
    return [row for case in FEW_TOKENS[: 2 if quick else None] for row in _softmax_attention_case(*case, bandwidth)]


def scan_on_cpu(lengths: tuple[int, ...] = (38, 198, 1024, 4096), *, repeats: int = 5) -> list[Row]:
    """Milliseconds of the plain scan for several chunks; the length itself is the matrix form."""
    rows = []
    for length in lengths:
        inputs = scan_inputs(1, length, dtype=torch.float32, device="cpu")
        for chunk in sorted({32, 64, 128, chunk_length(length), min(length, 1024)}):
            with torch.no_grad():
                scan = partial(ssd_chunked, *inputs, num_reverse=HEADS, chunk=chunk)
                ms = min(call_seconds(scan, repeats=repeats)) * 1e3
            taken = chunk == chunk_length(length)
            rows.append(measured({"tokens": length, "chunk": chunk, "ms": ms, "taken": "yes" if taken else ""}))
    return rows


def scan_inputs(batch: int, length: int, *, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    """q, k, v, dt, A, skip of a two-way scan as DinoVim-B makes them."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, generator=generator)

    q, k = (normal(batch, length, 2, STATE).to(dtype) for _ in range(2))
    v = normal(batch, length, 2 * HEADS, WIDTH).to(dtype)
    dt = F.softplus(normal(batch, length, 2 * HEADS) - 3)
    return q, k, v, dt, -normal(2 * HEADS).exp(), normal(2 * HEADS)


def _scan_case(batch: int, length: int, bandwidth: float, rate: float) -> list[Row]:
    inputs = scan_inputs(batch, length, dtype=torch.bfloat16, device="cuda")
    _require_exact(inputs)
    leaves = tuple(t.detach().requires_grad_() for t in inputs)
    systems: dict[str, System] = {
        "mixlab": (lambda: ssd(*leaves, num_reverse=HEADS), leaves),
        **_mamba_ssm(leaves),
        **_fla(leaves),
        "SDPA, 12 heads of 64": _sdpa(batch, length),
    }
    rows = []
    for name, (call, over) in systems.items():
        try:
            with nullcontext() if name == "mixlab" else time_limit(PEER_SECONDS):
                times = _times(call, over)
            rows.append(measured({"batch": batch, "tokens": length, "system": name, **times}))
        except (RuntimeError, TypeError, AttributeError, AssertionError, TimeoutError) as error:
            if name == "mixlab":
                raise
            console.print(f"{name} is left out: it failed with {error!r}"[:200])
    peers = [row for row in rows if row["system"].startswith("mamba_ssm")]
    best = min(peers, key=lambda row: row["fwd_ms"] + row["fwd_bwd_ms"], default=None)
    rows = [row for row in rows if row not in peers or row is best]
    floor_ms = _floor_ms(batch, length, bandwidth, rate)
    for row in rows:
        row["x_fwd"] = best["fwd_ms"] / row["fwd_ms"] if best else None
        row["x_fwd_bwd"] = best["fwd_bwd_ms"] / row["fwd_bwd_ms"] if best else None
        row["share_of_floor"] = floor_ms / row["fwd_ms"] if row["system"] == "mixlab" else None
    return rows


def _times(call: Callable[[], Tensor], over: tuple[Tensor, ...]) -> Row:
    direction = torch.randn_like(call())

    def both() -> object:
        return torch.autograd.grad(call(), over, direction)

    def forward() -> Tensor:
        with torch.no_grad():
            return call()

    return {
        "fwd_ms": kernel_ms(forward),
        "fwd_bwd_ms": kernel_ms(both),
        "fwd_wall_ms": wall_ms(forward),
        "fwd_bwd_wall_ms": wall_ms(both),
    }


def _mamba_ssm(leaves: tuple[Tensor, ...]) -> dict[str, System]:
    """mamba_ssm's Triton scan, once per direction, as visual Mamba models call it (their flips are left out)."""
    try:
        from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined
    except ImportError:
        return {}
    q, k, v, dt, A, skip = leaves

    def scan(chunk: int) -> Tensor:
        halves = []
        for g in range(2):
            heads = slice(g * HEADS, (g + 1) * HEADS)
            halves.append(
                mamba_chunk_scan_combined(
                    v[:, :, heads],
                    dt[..., heads],
                    A[heads],
                    k[:, :, g : g + 1],
                    q[:, :, g : g + 1],
                    chunk_size=chunk,
                    D=skip[heads],
                )
            )
        return torch.stack(halves)

    return {f"mamba_ssm twice, chunk {c}": (lambda c=c: scan(c), leaves) for c in PEER_CHUNKS}  # type: ignore[misc]


def _fla(leaves: tuple[Tensor, ...]) -> dict[str, System]:
    """flash-linear-attention's scan with one decay per head and token, once per direction: q and k for every head."""
    try:
        from fla.ops.simple_gla import chunk_simple_gla
    except ImportError:
        return {}
    q, k, v, dt, A, skip = leaves

    def scan() -> Tensor:
        halves = []
        for g in range(2):
            heads = slice(g * HEADS, (g + 1) * HEADS)
            fed = v[:, :, heads] * dt[..., heads, None].to(v.dtype)
            reading, written = (t[:, :, g : g + 1].expand(-1, -1, HEADS, -1).contiguous() for t in (q, k))
            y, _ = chunk_simple_gla(reading, written, fed, g=dt[..., heads] * A[heads], scale=1.0)
            halves.append(y + v[:, :, heads] * skip[heads, None].to(v.dtype))
        return torch.stack(halves)

    return {"fla simple_gla twice": (scan, leaves)}


def _sdpa(batch: int, length: int) -> System:
    shape = (batch, ATTENTION_HEADS, length, WIDTH)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    return lambda: F.scaled_dot_product_attention(q, k, v), (q, k, v)


def _linear_attention_case(batch: int, length: int, bandwidth: float) -> list[Row]:
    qkv = _random_qkv(batch, length, ATTENTION_HEADS)
    ours = partial(linear_op.softmax_linear_attention, qkv, head_dim=WIDTH)
    systems: dict[str, System] = {
        "mixlab, fused" if linear_op.runs_kernels(qkv, head_dim=WIDTH) else "mixlab": (ours, (qkv,)),
        "plain torch": (partial(linear_reference.softmax_linear_attention, qkv, head_dim=WIDTH), (qkv,)),
        "SDPA (softmax attention)": _sdpa(batch, length),
    }
    return _beside_second({"batch": batch, "tokens": length}, systems, qkv, bandwidth)


def _softmax_attention_case(batch: int, length: int, heads: int, bandwidth: float) -> list[Row]:
    qkv = _random_qkv(batch, length, heads)
    systems: dict[str, System] = {
        "mixlab, fused": (partial(softmax_op.softmax_attention, qkv, head_dim=WIDTH), (qkv,)),
        "SDPA": (partial(softmax_reference.softmax_attention, qkv, head_dim=WIDTH, causal=False), (qkv,)),
    }
    return _beside_second({"batch": batch, "tokens": length, "heads": heads}, systems, qkv, bandwidth)


def _random_qkv(batch: int, length: int, heads: int) -> Tensor:
    return torch.randn(batch, length, 3 * heads * WIDTH, device="cuda").bfloat16().requires_grad_()


def _beside_second(case: Row, systems: dict[str, System], qkv: Tensor, bandwidth: float) -> list[Row]:
    """A row for each system; ratios are over the second."""
    rows = [measured({**case, "system": name, **_times(*each)}) for name, each in systems.items()]
    floor_ms = 4 * qkv.numel() // 3 * 2 / bandwidth * 1e3  # q, k and v read, the output written
    for row in rows:
        row["x_fwd"], row["x_fwd_bwd"] = (rows[1][key] / row[key] for key in ("fwd_ms", "fwd_bwd_ms"))
        row["share_of_floor"] = floor_ms / row["fwd_ms"] if row is rows[0] else None
    return rows


def _floor_ms(batch: int, length: int, bandwidth: float, rate: float) -> float:
    """The larger of two times: v in and y out, q, k and dt in, once each; and the products of tiles of 64."""
    tokens = batch * length
    num_bytes = tokens * (2 * 2 * 2 * HEADS * WIDTH + 2 * 2 * 2 * STATE + 4 * 2 * HEADS)
    flops = tokens * 2 * HEADS * 2 * (64 * STATE + 64 * WIDTH + 2 * STATE * WIDTH)
    return max(num_bytes / bandwidth, flops / rate) * 1e3


def _require_exact(inputs: tuple[Tensor, ...]) -> None:
    """Speed counts only where the result is right: two images against the plain scan in float64."""
    q, k, v, dt, A, skip = inputs
    few = (q[:2], k[:2], v[:2], dt[:2], A, skip)
    exact = ssd_chunked(*(t.double() for t in few), num_reverse=HEADS)
    error = ((ssd(*few, num_reverse=HEADS).double() - exact).norm() / exact.norm()).item()
    if not error < 1e-2:
        raise RuntimeError(f"the scan is off by {error:.2g} against float64; nothing is timed")
