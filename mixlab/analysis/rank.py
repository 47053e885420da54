"""From measured blocks to a table: averages with spread over images, what theory allows, and the arrays behind them."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixlab.analysis.blocks import MEASURES
from mixlab.analysis.distance import uniform_profile
from mixlab.analysis.layer_ranks import BLOCK_COLUMNS, LayerRanks
from mixlab.backbones.tokens import TokenLayout
from mixlab.errors import InputError
from mixlab.mixers import Grid

Arrays = dict[str, NDArray[Any]]


def summarise_ranks(measured: Sequence[LayerRanks], layout: TokenLayout) -> tuple[dict[str, Any], Arrays]:
    """A result for JSON, per layer and over all layers, and its arrays: the table of blocks, spectra and profiles.

    Where layers differ in length (stages of a hierarchical model), length and grid of the whole are the first layer's.
    """
    if not measured:
        raise InputError("no layer was measured; give at least one image and one layer")
    table = np.concatenate([layer.blocks for layer in measured])
    layers = sorted({ranks.layer for ranks in measured})
    entries = [
        {"layer": layer}
        | _summarise_place([ranks for ranks in measured if ranks.layer == layer], layout)
        | summarise_blocks(table[block_column(table, "layer") == layer])
        | _summarise_heads([ranks for ranks in measured if ranks.layer == layer])
        for layer in layers
    ]
    result = {
        "mixer": measured[0].mixer,
        "num_images": len({ranks.image for ranks in measured}),
        "overall": summarise_blocks(table) | _summarise_heads(measured),
        "layers": entries,
    }
    return result | _summarise_place(measured, layout), {"blocks": table} | _head_arrays(measured, layers)


def rank_measurements(result: dict[str, Any], about: dict[str, Any], data: str) -> list[dict[str, Any]]:
    """The result as the ledger reads it: one flat record per figure, with the subject's description in each."""
    overall, n = result["overall"], result["num_images"]
    about = about | {"data": data, "n": n, "chunk": result["chunk"], "num_tokens": result["num_tokens"]}
    records = [about | {"metric": "rank_bound_holds", "value": float(overall["bound_holds"])}]
    for kind in ("diagonal", "off_diagonal"):
        for name in MEASURES:
            figure = overall[kind][name]
            if figure["mean"] is None:
                continue
            half = None if figure["std_over_images"] is None else 1.96 * figure["std_over_images"] / n**0.5
            records.append(
                about
                | {
                    "metric": f"{kind}_rank",
                    "definition": name,
                    "value": figure["mean"],
                    "minimum": figure["min"],
                    "bound": overall[kind]["bound"]["max"],
                    "low": None if half is None else figure["mean"] - half,
                    "high": None if half is None else figure["mean"] + half,
                }
            )
    if "scan" in overall:
        records.append(about | {"metric": "mask_rank", "value": overall["scan"]["mask"]["max"]})
    return records


def summarise_blocks(table: NDArray[np.float64]) -> dict[str, Any]:
    """Figures of the full blocks in a table (rows, BLOCK_COLUMNS), on and off the diagonal. Ragged ones are counted,
    and so are those that decay to zero: float64 knows no more of their rank.
    """
    full = table[block_column(table, "ragged") == 0]
    on_diagonal = block_column(full, "on_diagonal") == 1
    summary: dict[str, Any] = {}
    for kind, rows in (("diagonal", full[on_diagonal]), ("off_diagonal", full[~on_diagonal])):
        known = rows[block_column(rows, "numerical") > 0]
        summary[kind] = {name: _spread(known, name) for name in MEASURES}
        summary[kind]["bound"] = _spread(known, "bound")
        summary[kind]["num_blocks"] = len(rows)
        summary[kind]["num_zero"] = len(rows) - len(known)
    every = table[block_column(table, "on_diagonal") == 0]
    summary["num_ragged"] = int((block_column(table, "ragged") == 1).sum())
    summary["bound_holds"] = bool((block_column(table, "numerical") <= block_column(table, "bound")).all())
    scans = every[block_column(every, "mask") >= 0]
    if len(scans):
        summary["scan"] = {
            "mask": _spread(scans, "mask"),
            "product": _spread(scans, "product"),
            "num_underflowed": int(block_column(scans, "underflowed").sum()),
        }
    return summary


def _summarise_place(measured: Sequence[LayerRanks], layout: TokenLayout) -> dict[str, Any]:
    """Tokens, chunks and grid of the first of some layers, and how far a uniform mixing would reach there."""
    first = measured[0]
    length, grid, chunk = first.length, first.grid, first.chunk
    to_others, far_share = _uniform_reach(length, grid, tuple(layout.patch_columns(grid[0] * grid[1])))
    return {
        "num_tokens": length,
        "grid": list(grid),
        "chunk": chunk,
        "ragged_chunk": length % chunk,
        "heads": first.heads,
        "uniform_distance_to_others": to_others,
        "uniform_far_share": far_share,
    }


@lru_cache(maxsize=8)
def _uniform_reach(length: int, grid: Grid, patch_columns: tuple[int, ...]) -> tuple[float, float]:
    profile = uniform_profile(length, grid, list(patch_columns))
    return profile.distance_to_others, profile.far_share


def block_column(table: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    """One of BLOCK_COLUMNS of a table of blocks."""
    return table[:, BLOCK_COLUMNS.index(name)]


def block_grid(
    table: NDArray[np.float64], layer: int, head: int | None = None, measure: str = "effective"
) -> NDArray[np.float64] | None:
    """The rank of every block where it lies in the matrix, NaN where there is none: means over images, and over heads
    for None or a head that was not measured. None if the layer was not measured.
    """
    rows = table[block_column(table, "layer") == layer]
    if head is not None and (block_column(rows, "head") == head).any():
        rows = rows[block_column(rows, "head") == head]
    if not len(rows):
        return None
    size = 1 + int(max(block_column(rows, name).max() for name in ("row", "column")))
    places = (block_column(rows, "row") * size + block_column(rows, "column")).astype(np.int64)
    totals = np.bincount(places, block_column(rows, measure), minlength=size**2)
    counts = np.bincount(places, minlength=size**2)
    return np.where(counts > 0, totals / np.maximum(counts, 1), np.nan).reshape(size, size)


def _spread(rows: NDArray[np.float64], name: str) -> dict[str, float | None]:
    """Mean and extremes over all blocks, and the standard deviation of the means of images and of heads."""
    values = block_column(rows, name)
    if not len(values):
        return {"mean": None, "min": None, "max": None, "std_over_images": None, "std_over_heads": None}
    over = {}
    for unit in ("image", "head"):
        keys = block_column(rows, unit)
        means = [values[keys == key].mean() for key in np.unique(keys)]
        over[f"std_over_{unit}s"] = float(np.std(means, ddof=1)) if len(means) > 1 else None
    return {"mean": float(values.mean()), "min": float(values.min()), "max": float(values.max()), **over}


def _summarise_heads(measured: Sequence[LayerRanks]) -> dict[str, Any]:
    """Means over heads, layers and images."""
    scalars = [name for name, values in measured[0].distance.items() if values.ndim == 1]
    distance = {name: float(np.concatenate([ranks.distance[name] for ranks in measured]).mean()) for name in scalars}
    whole = {
        name: float(np.concatenate([ranks.whole[name] for ranks in measured]).mean()) for name in measured[0].whole
    }
    return {"distance": distance} | ({"whole": whole} if whole else {})


def _head_arrays(measured: Sequence[LayerRanks], layers: list[int]) -> Arrays:
    """Per layer and head, the mean over images: (layers, heads, ...)."""
    read: dict[str, Callable[[LayerRanks], NDArray[np.float64]]] = {
        "diagonal_spectrum": lambda ranks: ranks.spectra["diagonal"],
        "off_diagonal_spectrum": lambda ranks: ranks.spectra["off_diagonal"],
        "sequence_profile": lambda ranks: ranks.distance["sequence"],
        "grid_profile": lambda ranks: ranks.distance["grid"],
    }
    means = {
        name: [np.mean([get(ranks) for ranks in measured if ranks.layer == layer], axis=0) for layer in layers]
        for name, get in read.items()
    }
    return {"layer": np.array(layers)} | {name: _padded(parts) for name, parts in means.items()}


def _padded(layers: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """(heads, width) of each layer as one array: layers may differ in both, and are filled up with zeros."""
    padded = np.zeros((len(layers), *np.max([part.shape for part in layers], axis=0)))
    for index, part in enumerate(layers):
        padded[index, : part.shape[0], : part.shape[1]] = part
    return padded
