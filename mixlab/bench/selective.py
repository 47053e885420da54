"""The selective scan of Mamba-1 beside mamba_ssm's; and whole models of it beside others of their size."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import mixlab
from mixlab.bench.timing import Row, graph_ms, kernel_ms, measured, training_pass, wall_ms
from mixlab.ops.selective_scan.op import selective_scan
from mixlab.ops.selective_scan.reference import selective_scan_recurrence

# name: batch, tokens, scans, channels, states
CASES = {
    "Vim-S, 224 px": (128, 197, 2, 768, 16),
    "VMamba-T, stage 1": (128, 3136, 4, 96, 1),
    "VMamba-T, stage 3": (128, 196, 4, 384, 1),
    "long": (8, 4096, 2, 768, 16),
}
# The first of each group is the measure of the rest.
MODELS = (
    ("dinovim_small", "vim_small"),
    ("timm/convnext_tiny", "timm/swin_tiny_patch4_window7_224", "vmamba_tiny_s1l8", "vmamba_tiny"),
)


def scans(*, quick: bool = False) -> list[Row]:
    """Forward, and forward with backward, of all scans of a layer, bf16."""
    rows: list[Row] = []
    for name, sizes in list(CASES.items())[: 1 if quick else None]:
        inputs = scan_inputs(*sizes)
        leaves = tuple(t.detach().requires_grad_() for t in inputs)
        num_reverse = sizes[2] // 2
        systems: dict[str, Callable[[], Tensor]] = {
            "mixlab": lambda leaves=leaves, n=num_reverse: selective_scan(*leaves, num_reverse=n),  # type: ignore[misc]
            **_mamba_ssm(leaves),
        }
        if name == "Vim-S, 224 px":
            systems["token by token, plain torch"] = lambda leaves=leaves, n=num_reverse: selective_scan_recurrence(  # type: ignore[misc]
                *leaves, num_reverse=n
            )
        mine = [measured({"case": name, "system": system, **_times(call, leaves)}) for system, call in systems.items()]
        for row in mine:
            row["x_fwd_bwd"] = row["fwd_bwd_ms"] / mine[0]["fwd_bwd_ms"]
        rows += mine
    return rows


def models(*, batch: int = 128) -> list[Row]:
    """Forward with backward at 224 px, bf16; `share` is the speed over that of the first of its group."""
    images = torch.randn(batch, 3, 224, 224, device="cuda")
    rows: list[Row] = []
    for group in MODELS:
        first: float | None = None
        for name in group:
            step = training_pass(mixlab.create_model(name).cuda().train(), images)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            speed = batch / wall_ms(step, repeats=10) * 1e3
            gib = torch.cuda.max_memory_allocated() / 2**30
            first = first or speed
            captured = batch / graph_ms(step) * 1e3
            row = {"model": name, "images_per_s": speed, "share": speed / first, "images_per_s_graph": captured}
            rows.append(measured({**row, "peak_GiB": gib}))
            del step
    return rows


def scan_inputs(batch: int, length: int, num_scans: int, width: int, state: int) -> tuple[Tensor, ...]:
    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", generator=generator)

    q, k = (normal(batch, length, num_scans, state).bfloat16() for _ in range(2))
    v = normal(batch, length, num_scans, width).bfloat16()
    dt = F.softplus(normal(batch, length, num_scans, width) - 3)
    A = -torch.arange(1, state + 1, device="cuda").float().expand(num_scans, width, state).contiguous()
    return q, k, v, dt, A, normal(num_scans, width)


def _times(call: Callable[[], Tensor], leaves: tuple[Tensor, ...]) -> Row:
    direction = torch.randn_like(call())

    def forward() -> Tensor:
        with torch.no_grad():
            return call()

    return {
        "fwd_ms": kernel_ms(forward),
        "fwd_bwd_ms": kernel_ms(lambda: torch.autograd.grad(call(), leaves, direction)),
    }


def _mamba_ssm(leaves: tuple[Tensor, ...]) -> dict[str, Callable[[], Tensor]]:
    """Its CUDA kernel, once per scan (flips of the sequence are left out), where it could be built."""
    try:
        from mamba_ssm.ops.selective_scan_interface import selective_scan_fn
    except ImportError:
        return {}
    q, k, v, dt, A, skip = leaves

    def run() -> Tensor:
        by_channel = [t.permute(2, 0, 3, 1).contiguous() for t in (v, dt.to(v.dtype), k, q)]  # (S, B, ·, L)
        scans: list[Any] = [
            selective_scan_fn(v, dt, A, k, q, skip) for v, dt, k, q, A, skip in zip(*by_channel, A, skip, strict=True)
        ]
        return torch.stack(scans)

    return {"mamba_ssm, CUDA": run}
