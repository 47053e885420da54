"""`mixlab bench`: speed, side by side with peers in one run."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
import tyro

from mixlab.commands.output import console, emit, table
from mixlab.ops.backend import backend_name
from mixlab.run import provenance


def bench(
    what: Annotated[Literal["ssd", "backbone", "auc", "crops"], tyro.conf.Positional],
    *,
    quick: bool = False,
    json: str | None = None,
) -> dict[str, Any]:
    """Measure speed beside peers; read the ratios.

    Args:
        what: ssd (the scan alone), backbone (whole passes, growth with tokens), auc (Binary-AUC against loops of
            others), crops (DINO's ten crops against torchvision).
        quick: fewer repeats and smaller sizes.
        json: also write the tables as JSON to this file, or to stdout for "-".
    """
    console.print(f"Operations run on {backend_name()}, {torch.get_num_threads()} threads.")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    result = BENCHMARKS[what](quick)
    return emit({"benchmark": what, **result, "provenance": provenance(device=device)}, json)


def _ssd(quick: bool) -> dict[str, Any]:
    from mixlab.bench import ssd

    if torch.cuda.is_available():
        result = ssd.run_gpu(ssd.CASES[:2] if quick else ssd.CASES)
        show("The two-way scan, bf16: GPU kernel time and wall time; x: times faster than mamba_ssm", result["rows"])
    else:
        result = ssd.run_cpu((38, 198), repeats=2) if quick else ssd.run_cpu()
        show("The two-way scan in plain torch, one image", result["rows"])
    return result


def _backbone(quick: bool) -> dict[str, Any]:
    from mixlab.bench import backbone

    if torch.cuda.is_available():
        result = backbone.run_gpu()
        show("Forward and backward, bf16", result["rows"])
        return result
    result = backbone.run_cpu(repeats=2, batch=2, width="tiny") if quick else backbone.run_cpu()
    show("Forward at 224 px", result["forward"])
    show("Growth with the number of tokens, one image", result["growth"])
    return result


def _auc(quick: bool) -> dict[str, Any]:
    from mixlab.bench.auc import measure

    rows = measure(num_images=200) if quick else measure()
    show("Binary-AUC, one call against loops over the images", rows)
    return {"rows": rows}


def _crops(quick: bool) -> dict[str, Any]:
    from mixlab.bench.crops import measure

    rows = measure(num_images=4, rounds=1) if quick else measure()
    show("DINO's ten crops per image", rows)
    return {"rows": rows}


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Rows of one table, columns from the keys."""
    table(title, [key.replace("_", " ") for key in rows[0]], [list(row.values()) for row in rows])


BENCHMARKS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "ssd": _ssd,
    "backbone": _backbone,
    "auc": _auc,
    "crops": _crops,
}
