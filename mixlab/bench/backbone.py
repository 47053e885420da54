"""Backbones side by side: arithmetic reached on one image size, and growth with the number of tokens.

Peers run in the same process and the same minute; time is the best of several passes, and ratios are what to read.
"""

import multiprocessing
import resource
from collections.abc import Callable
from pathlib import Path

import timm
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import mixlab
from mixlab.bench.timing import Row, call_seconds, graph_ms, measured, training_pass, wall_ms

KEPT = "dinovim_base, scans kept"  # as training does where a GPU has room
GROWTH_SIZES = ((512, 512), (512, 1024), (1024, 1024))  # 1,024, 2,048 and 4,096 patches of 16 px


def run_cpu(*, batch: int = 8, repeats: int = 3, width: str = "small") -> tuple[list[Row], list[Row]]:
    """The two CPU tables: FLOP/s beside timm's ViT at 224 px, and growth in time and memory."""
    names = (f"dinovim_{width}", f"vit_{width}")
    growth = [row for name in names for row in growth_rows(name, repeats=repeats)]
    return forward_table(batch=batch, repeats=repeats, width=width), growth


def run_gpu() -> list[Row]:
    """Forward with backward in bf16 at the sizes of DINO's crops; timm's ViT-B is the peer in the same run."""
    rows: list[Row] = []
    for batch, side in ((128, 224), (512, 96)):
        images = torch.randn(batch, 3, side, side, device="cuda")
        for name in ("dinovim_base", KEPT, "vit_base", "linearvit_base", "timm vit_base_patch16_224"):
            model: nn.Module
            if name.startswith("timm"):
                model = timm.create_model(name[5:], num_classes=0, dynamic_img_size=True)
            else:
                model = mixlab.create_model(name.removesuffix(", scans kept"))
                model.set_keep_scans(name == KEPT)
            step = training_pass(model.cuda().train(), images)
            torch.cuda.reset_peak_memory_stats()
            eager = wall_ms(step, repeats=10)
            gib = torch.cuda.max_memory_allocated() / 2**30
            row = {"model": name, "px": side, "batch": batch, "images_per_s": batch / eager * 1e3, "peak_GiB": gib}
            rows.append(measured({**row, "images_per_s_graph": batch / graph_ms(step) * 1e3}))
            del model, step
            torch.cuda.empty_cache()
    vit = {(row["px"], row["model"]): row for row in rows}
    for row in rows:
        for name, key in (("speed_over_vit", "images_per_s"), ("speed_over_vit_graph", "images_per_s_graph"),
                          ("memory_over_vit", "peak_GiB")):  # fmt: skip
            row[name] = row[key] / vit[row["px"], "vit_base"][key]
    return rows


@torch.no_grad()
def forward_table(*, batch: int, repeats: int, width: str) -> list[Row]:
    """Forward passes at 224 px; `share` is the FLOP/s reached over those of timm's ViT of that size."""
    peer = f"vit_{width}_patch16_224"
    models: dict[str, nn.Module] = {
        f"timm {peer}": timm.create_model(peer, num_classes=0),
        **{name: mixlab.create_model(name) for name in (f"vit_{width}", f"linearvit_{width}", f"dinovim_{width}")},
    }
    images = torch.randn(batch, 3, 224, 224)
    rows: list[Row] = []
    for name, model in models.items():
        seconds = best_time(model.eval(), images, repeats)
        flops = count_flops(model, images[:1]) * batch
        rows.append(measured({"model": name, "images_per_s": batch / seconds, "gflops_per_s": flops / seconds / 1e9}))
    reached = rows[0]["gflops_per_s"]
    return [{**row, "share": row["gflops_per_s"] / reached} for row in rows]


def growth_rows(name: str, *, repeats: int) -> list[Row]:
    """Time and extra memory of one image as the tokens double; each size in a process of its own."""
    rows: list[Row] = []
    context = multiprocessing.get_context("spawn")
    for height, width in GROWTH_SIZES:
        with context.Pool(1) as pool:
            seconds, mib = pool.apply(measure_one, (name, height, width, repeats))
        row = {"model": name, "tokens": height * width // 256, "ms": seconds * 1e3, "memory_mib": mib}
        before = rows[-1] if rows else None
        row["time_growth"] = row["ms"] / before["ms"] if before else None
        row["memory_growth"] = row["memory_mib"] / before["memory_mib"] if before else None
        rows.append(measured(row))
    return rows


@torch.no_grad()
def measure_one(name: str, height: int, width: int, repeats: int) -> tuple[float, float]:
    """Best seconds of a forward pass, and what its peak adds to the resident memory in MiB."""
    model = mixlab.create_model(name).eval()
    model(torch.randn(1, 3, 64, 64))  # so that libraries have taken what they keep
    images = torch.randn(1, 3, height, width)
    before = peak_resident_mib()
    model(images)
    mib = peak_resident_mib() - before
    return best_time(model, images, repeats), mib


def peak_resident_mib() -> float:
    """The most memory this process has held. Linux keeps it per program; getrusage also counts what forked it."""
    status = Path("/proc/self/status")
    if status.is_file():
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def best_time(run: Callable[[Tensor], Tensor], images: Tensor, repeats: int) -> float:
    return min(call_seconds(lambda: run(images), repeats=repeats))


def count_flops(model: nn.Module, images: Tensor) -> int:
    model.requires_grad_(False)
    with FlopCounterMode(display=False) as counter:
        model(images)
    return counter.get_total_flops()
