"""`mixlab bench`: speed, side by side with peers in one run."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from mixlab.commands.output import console, emit, table
from mixlab.errors import WorkError
from mixlab.ops.backend import backend_name
from mixlab.run import provenance

What = Literal["ssd", "attention", "backbone", "crops", "dino", "feed", "probe", "knn", "dense", "auc"]
Tables = dict[str, list[dict[str, Any]]]  # title: rows


def bench(
    what: Annotated[What, tyro.conf.Positional],
    *,
    quick: bool = False,
    peer: Path | None = None,
    figure: Path | None = None,
    json: str | None = None,
) -> dict[str, Any]:
    """Measure speed beside peers; read the ratios.

    Args:
        what: ssd (the scan alone), attention (linear attention alone), backbone (whole passes, growth with tokens),
            crops (DINO's ten crops against torchvision), dino (whole DINO steps), feed (the share of a DINO run spent
            waiting for JPEG files), probe (a grid of linear probes against one), knn (a bank of ImageNet's size),
            dense (speed and memory against input size), auc (Binary-AUC against loops of others).
        quick: fewer repeats and smaller sizes.
        peer: for dino, a clone of facebookresearch/dino, to be measured in the same run.
        figure: for dense, draw speed and memory against input size into this file (.svg or .png).
        json: also write the tables as JSON to this file, or to stdout for "-".
    """
    console.print(f"Operations run on {backend_name()}, {torch.get_num_threads()} threads.")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    tables = _dino(quick, peer) if what == "dino" else BENCHMARKS[what](quick)
    for title, rows in tables.items():
        table(title, [key.replace("_", " ") for key in rows[0]], [list(row.values()) for row in rows])
    if what == "dense" and figure is not None:
        from mixlab.analysis.figures import save_charts
        from mixlab.bench.dense import scaling_charts

        save_charts(scaling_charts(next(iter(tables.values()))), figure)
    return emit({"benchmark": what, "tables": tables, "provenance": provenance(device=device)}, json)


def _ssd(quick: bool) -> Tables:
    from mixlab.bench.operations import scan_on_cpu, scan_on_gpu

    if not torch.cuda.is_available():
        rows = scan_on_cpu((38, 198), repeats=2) if quick else scan_on_cpu()
        return {"The two-way scan in plain torch, one image": rows}
    title = "The two-way scan, bf16: GPU kernel time and wall time; x: times faster than mamba_ssm"
    return {title: scan_on_gpu(quick=quick)}


def _attention(quick: bool) -> Tables:
    from mixlab.bench.operations import attention_on_gpu

    need_gpu("attention")
    title = "Linear attention with its softmaxes, bf16: GPU kernel time; x: times faster than plain torch"
    return {title: attention_on_gpu(quick=quick)}


def _backbone(quick: bool) -> Tables:
    from mixlab.bench import backbone

    if torch.cuda.is_available():
        return {"Forward and backward, bf16": backbone.run_gpu()}
    forward, growth = backbone.run_cpu(repeats=2, batch=2, width="tiny") if quick else backbone.run_cpu()
    return {"Forward at 224 px": forward, "Growth with the number of tokens, one image": growth}


def _crops(quick: bool) -> Tables:
    from mixlab.bench.images import measure_crops

    return {"DINO's ten crops per image": measure_crops(num_images=4, rounds=1) if quick else measure_crops()}


def _dino(quick: bool, peer: Path | None) -> Tables:
    from mixlab.bench import dino

    if not quick:
        need_gpu("dino")
    rows = dino.measure_dino(tiny=quick, steps=1 if quick else 20, peer=peer)
    title = "A DINO step" + (" in miniature" if quick else ", batch 64, 2 x 224 + 8 x 96 px, 65,536 outputs, bf16")
    return {title: rows} if quick else {title: rows, "The same, measured elsewhere": dino.PUBLISHED}


def _feed(quick: bool) -> Tables:
    from mixlab.bench.images import measure_feed

    if not quick:
        need_gpu("feed")
    rows = measure_feed(recipe="dino_dinovim_tiny64", batch=4, steps=3) if quick else measure_feed()
    return {"A DINO run on JPEG files of 500 x 375 px": rows}


def _probe(quick: bool) -> Tables:
    from mixlab.bench.frozen import measure_probe

    if not quick:
        need_gpu("probe")
    rows, cached = measure_probe(quick=quick)
    return {"A step of linear probes, from images": rows, "The whole grid on cached features": cached}


def _knn(quick: bool) -> Tables:
    from mixlab.bench.frozen import measure_knn

    rows = measure_knn(num_bank=20_000, num_queries=500, dim=64) if quick else measure_knn()
    return {"Nearest neighbours of random features, all k at once": rows}


def _dense(quick: bool) -> Tables:
    from mixlab.bench.dense import measure_dense

    if not quick:
        need_gpu("dense")
    return measure_dense(tiny=quick)


def _auc(quick: bool) -> Tables:
    from mixlab.bench.auc import measure_auc

    rows = measure_auc(num_images=200) if quick else measure_auc()
    return {"Binary-AUC, one call against loops over the images": rows}


def need_gpu(what: str) -> None:
    if not torch.cuda.is_available():
        raise WorkError(f"`mixlab bench {what}` needs a GPU; --quick runs a miniature on the CPU where there is one")


BENCHMARKS: dict[str, Callable[[bool], Tables]] = {
    "ssd": _ssd,
    "attention": _attention,
    "backbone": _backbone,
    "crops": _crops,
    "feed": _feed,
    "probe": _probe,
    "knn": _knn,
    "dense": _dense,
    "auc": _auc,
}
