"""Charts of ranks and scores in one style: vector, colour-blind safe, every axis named. Each returns a Figure."""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from mixlab.analysis.rank import block_grid
from mixlab.errors import InputError

# Okabe and Ito's palette: told apart with any colour vision, and in grey by lightness.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
FAMILY_COLOURS = {"attention": "#0072B2", "mamba2": "#D55E00", "linear_attention": "#009E73", "gated_conv": "#E69F00"}
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "image.cmap": "viridis",
    "savefig.bbox": "tight",
    "svg.hashsalt": "mixlab",  # the same figure gives the same file
}
Parameters = ParamSpec("Parameters")
Results = Mapping[str, dict[str, Any]]
Arrays = Mapping[str, NDArray[Any]]


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure; the suffix chooses the format, and no date goes into the file."""
    metadata = {"Date": None} if path.suffix == ".svg" else None
    with mpl.rc_context(STYLE):
        figure.savefig(path, metadata=metadata, dpi=150)
    return path


def styled(draw: Callable[Parameters, Figure]) -> Callable[Parameters, Figure]:
    """Draw in STYLE, and leave matplotlib's settings as they were."""

    @wraps(draw)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Figure:
        with mpl.rc_context(STYLE):
            return draw(*args, **kwargs)

    return wrapped


def colours_of(families: Mapping[str, str]) -> dict[str, str]:
    """A colour per label: the first of a family has the family's own, the rest what is left."""
    chosen: dict[str, str] = {}
    for label, family in families.items():
        own = FAMILY_COLOURS.get(family)
        free = [colour for colour in PALETTE if colour not in chosen.values()] or list(PALETTE)
        others = [colour for colour in free if colour not in FAMILY_COLOURS.values()] or free
        chosen[label] = own if own is not None and own not in chosen.values() else others[0]
    return chosen


@styled
def rank_by_layer(results: Results, measures: Sequence[str] = ("numerical", "effective")) -> Figure:
    """Off-diagonal rank of each model by layer, one panel per definition; dotted: the bound of theory."""
    figure, axes = _panels(len(measures), width=4.2)
    colours = colours_of({label: result["subject"]["family"] for label, result in results.items()})
    for ax, measure in zip(axes, measures, strict=True):
        for index, (label, result) in enumerate(results.items()):
            layers = [entry["layer"] for entry in result["layers"]]
            figures = [entry["off_diagonal"][measure] for entry in result["layers"]]
            means = np.array([np.nan if f["mean"] is None else f["mean"] for f in figures])
            spread = np.array([f["std_over_heads"] or 0.0 for f in figures])
            colour = colours[label]
            ax.plot(layers, means, color=colour, marker=MARKERS[index % len(MARKERS)], label=label)
            ax.fill_between(layers, means - spread, means + spread, color=colour, alpha=0.15, linewidth=0)
            bound = result["overall"]["off_diagonal"]["bound"]["max"]
            if bound is not None and measure in ("numerical", "practical"):
                ax.axhline(bound, color=colour, linestyle=":", linewidth=1)
        ax.set(xlabel="layer", ylabel=f"{measure} rank", title=f"Off-diagonal blocks, {measure} rank", ylim=(0, None))
    axes[0].legend(title="band: spread over heads")
    return figure


@styled
def spectra(arrays: Mapping[str, Arrays], results: Results) -> Figure:
    """Singular values of off-diagonal blocks, the mean over layers, heads and images."""
    figure, (ax,) = _panels(1, width=5.2)
    colours = colours_of({label: result["subject"]["family"] for label, result in results.items()})
    for label, stored in arrays.items():
        values = stored["off_diagonal_spectrum"]
        live = values[values.max(-1) > 0]
        if not len(live):
            continue
        mean = live.reshape(-1, values.shape[-1]).mean(0)
        shown = mean[mean > 1e-17]  # below: rounding
        ax.semilogy(np.arange(1, len(shown) + 1), shown, color=colours[label], label=label)
    ax.set(xlabel="index", ylabel="singular value / largest", title="Spectrum of off-diagonal blocks")
    ax.legend()
    return figure


@styled
def block_ranks(label: str, table: NDArray[np.float64], layer: int, measure: str = "effective") -> Figure:
    """The rank of every block, drawn where the block stands in the matrix: means over heads and images of one layer."""
    grid = block_grid(table, layer, measure=measure)
    if grid is None:
        raise InputError(f"layer {layer} of {label} was not measured")
    size = len(grid)
    figure, (ax,) = _panels(1, width=4.4, height=3.6)
    ax.grid(visible=False)
    image = ax.imshow(grid, vmin=0)
    if size <= 12:
        ax.set(xticks=range(size), yticks=range(size))
        middle = np.nanmax(grid) / 2
        for (row, place), value in np.ndenumerate(grid):
            if not np.isnan(value):
                colour = "black" if value > middle else "white"
                ax.text(place, row, f"{value:.0f}", ha="center", va="center", color=colour, fontsize=8)
    ax.set(
        xlabel="chunk of the sources", ylabel="chunk of the readers", title=f"{label}, layer {layer}: {measure} rank"
    )
    figure.colorbar(image, ax=ax, label=f"{measure} rank")
    return figure


@styled
def distance_profiles(arrays: Mapping[str, Arrays], results: Results) -> Figure:
    """How much weight lies how far away on the grid, the mean over layers and heads; dashed: mean to others."""
    figure, (ax,) = _panels(1, width=5.2)
    colours = colours_of({label: result["subject"]["family"] for label, result in results.items()})
    for label, stored in arrays.items():
        profile = stored["grid_profile"].reshape(-1, stored["grid_profile"].shape[-1]).mean(0)
        colour = colours[label]
        ax.plot(profile, color=colour, label=label)
        ax.axvline(
            results[label]["overall"]["distance"]["distance_to_others"], color=colour, linestyle="--", linewidth=1
        )
    for distance in sorted({result["uniform_distance_to_others"] for result in results.values()}):
        ax.axvline(distance, color="#888888", linestyle=":", linewidth=1, label=f"uniform mixing: {distance:.1f}")
    ax.set(
        xlabel="distance in patches",
        ylabel="share of weight",
        title="Where the weight of the matrix lies",
        ylim=(0, None),
    )
    ax.legend()
    return figure


@styled
def scores(rows: Sequence[dict[str, Any]], title: str = "Binary-AUC") -> Figure:
    """One dot per row with its interval; hollow: the untrained twin; tick: the centre prior on the same images."""
    figure, (ax,) = _panels(1, width=5.2, height=1.1 + 0.3 * len(rows))
    colours = colours_of({row["label"]: row["family"] for row in rows})
    for place, row in enumerate(rows):
        auc, colour = row["auc"], colours[row["label"]]
        if auc["mean"] is None:
            continue
        error = [[auc["mean"] - _or(auc["low"], auc["mean"])], [_or(auc["high"], auc["mean"]) - auc["mean"]]]
        ax.errorbar(auc["mean"], place, xerr=error, fmt="o", color=colour, capsize=2)
        if row.get("untrained") and row["untrained"]["mean"] is not None:
            ax.plot(row["untrained"]["mean"], place, "o", color=colour, markerfacecolor="white")
        ax.plot(row["centre_prior"]["mean"], place, "|", color="#555555", markersize=12)
    ax.axvline(0.5, color="#888888", linewidth=0.8)
    ax.set(
        yticks=range(len(rows)),
        yticklabels=[_row_name(row) for row in rows],
        xlabel="mean of max(AUC, 1 - AUC)",
        title=title,
    )
    ax.set_ylim(len(rows) - 0.4, -0.6)
    figure.legend(handles=_score_legend(), loc="outside lower center", ncols=3)
    return figure


@styled
def scores_along(rows: Sequence[dict[str, Any]], along: str) -> Figure:
    """Raw AUC by layer or by register, one line per subject with its band; 0.5 is chance."""
    figure, (ax,) = _panels(1, width=5.2)
    colours = colours_of({row["label"]: row["family"] for row in rows})
    for index, (label, colour) in enumerate(colours.items()):
        own = [row for row in rows if row["label"] == label and row["raw_auc"]["mean"] is not None]
        places = [row[along] if row[along] is not None else 0 for row in own]
        ax.plot(
            places,
            [row["raw_auc"]["mean"] for row in own],
            color=colour,
            marker=MARKERS[index % len(MARKERS)],
            label=label,
        )
        low, high = ([_or(row["raw_auc"][end], row["raw_auc"]["mean"]) for row in own] for end in ("low", "high"))
        ax.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
    ax.axhline(0.5, color="#888888", linewidth=0.8)
    name = {"layer": "layer", "index": "register, in the order of the sequence"}[along]
    ax.set(xlabel=name, ylabel="mean AUC (raw)", title=f"AUC by {along if along == 'layer' else 'register'}")
    ax.legend(title="band: 95 % over images")
    return figure


@styled
def scores_by_head(rows: Sequence[dict[str, Any]]) -> Figure:
    """Raw AUC of every head, one panel per subject: layers down, heads across, white at chance."""
    labels = list(dict.fromkeys(row["label"] for row in rows))
    figure, axes = _panels(len(labels), width=4.6, height=2.4)
    for ax, label in zip(axes, labels, strict=True):
        own = [row for row in rows if row["label"] == label]
        layers = sorted({row["layer"] for row in own})
        heads = sorted({row["index"] or 0 for row in own})
        grid = np.full((len(layers), len(heads)), np.nan)
        for row in own:
            grid[layers.index(row["layer"]), heads.index(row["index"] or 0)] = _or(row["raw_auc"]["mean"], np.nan)
        ax.grid(visible=False)
        image = ax.imshow(grid, cmap="PuOr", vmin=0, vmax=1, aspect="auto")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set(yticks=range(len(layers)), yticklabels=layers, xlabel="head", ylabel="layer", title=label)
        figure.colorbar(image, ax=ax, label="mean AUC (raw)")
    return figure


@styled
def roc(curves: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]], families: Mapping[str, str]) -> Figure:
    """Mean ROC curves: true against false positive rate, one line per label."""
    figure, (ax,) = _panels(1, width=3.8, height=3.6)
    colours = colours_of(families)
    for label, (false_rate, true_rate) in curves.items():
        ax.plot(false_rate, true_rate, color=colours[label], label=label)
    ax.plot([0, 1], [0, 1], color="#888888", linewidth=0.8)
    ax.set(
        xlabel="false positive rate",
        ylabel="true positive rate",
        title="Mean ROC",
        aspect="equal",
        xlim=(0, 1),
        ylim=(0, 1),
    )
    ax.legend(loc="lower right")
    return figure


def _panels(count: int, *, width: float, height: float = 3.0) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width * count, height), layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(1, count)))


def _row_name(row: dict[str, Any]) -> str:
    parts = [row["label"]] + ([f"#{row['index']}"] if row["index"] is not None else [])
    return " ".join(parts)


def _score_legend() -> list[Line2D]:
    return [
        Line2D([], [], marker="o", linestyle="", color="#333333", label="model, 95 %"),
        Line2D([], [], marker="o", linestyle="", color="#333333", markerfacecolor="white", label="untrained twin"),
        Line2D([], [], marker="|", linestyle="", color="#555555", markersize=12, label="centre prior"),
    ]


def _or(value: float | None, other: float) -> float:
    return other if value is None else value
