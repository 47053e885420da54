"""`mixlab bench`: speed, side by side with peers in one run."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
import tyro

from mixlab.commands.output import console, emit, table
from mixlab.ops.backend import backend_name
from mixlab.run import provenance


def bench(
    what: Annotated[Literal["backbone", "auc"], tyro.conf.Positional], *, quick: bool = False, json: str | None = None
) -> dict[str, Any]:
    """Measure speed beside peers; read the ratios.

    Args:
        what: backbone (forward pass and growth with tokens), auc (Binary-AUC against loops of others).
        quick: fewer repeats and smaller sizes.
        json: also write the tables as JSON to this file, or to stdout for "-".
    """
    console.print(f"Operations run on {backend_name()}, {torch.get_num_threads()} threads.")
    result = BENCHMARKS[what](quick)
    return emit({"benchmark": what, **result, "provenance": provenance()}, json)


def _backbone(quick: bool) -> dict[str, Any]:
    from mixlab.bench.backbone import run_cpu

    result = run_cpu(repeats=2, batch=2, width="tiny") if quick else run_cpu()
    show("Forward at 224 px", result["forward"])
    show("Growth with the number of tokens, one image", result["growth"])
    return result


def _auc(quick: bool) -> dict[str, Any]:
    from mixlab.bench.auc import measure

    rows = measure(num_images=200) if quick else measure()
    show("Binary-AUC, one call against loops over the images", rows)
    return {"rows": rows}


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Rows of one table, columns from the keys."""
    table(title, [key.replace("_", " ") for key in rows[0]], [list(row.values()) for row in rows])


BENCHMARKS: dict[str, Callable[[bool], dict[str, Any]]] = {"backbone": _backbone, "auc": _auc}
