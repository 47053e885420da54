"""Charts of mixing matrices: ranks by layer and by block, spectra, and how far the weights reach."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from mixlab.analysis.figures.chart import INK, OTHER, Chart, Styles, log_axis, plot_line
from mixlab.analysis.figures.page_svg import SOFT, hint
from mixlab.analysis.rank import block_grid
from mixlab.errors import InputError

Results = Mapping[str, dict[str, Any]]  # of `mixlab rank`, by label
Arrays = Mapping[str, NDArray[Any]]
_MOST_PIXELS = 260  # a side of a drawn matrix


def rank_by_layer(results: Results, measure: str, styles: Styles) -> Chart:
    """Off-diagonal rank of each model by layer; band: spread over heads; dotted: the bound of theory."""
    means = {
        label: [np.nan if one["mean"] is None else one["mean"] for one in _by_layer(result, measure)]
        for label, result in results.items()
    }

    def draw(ax: Axes) -> None:
        for label, result in results.items():
            style, mean = styles.get(label, OTHER), np.array(means[label])
            layers = [entry["layer"] for entry in result["layers"]]
            spread = np.array([one["std_over_heads"] or 0.0 for one in _by_layer(result, measure)])
            band = np.maximum(mean - spread, 0), mean + spread
            ax.fill_between(layers, *band, color=style.colour, alpha=0.14, linewidth=0)
            plot_line(ax, layers, means[label], style, label)
            bound = result["overall"]["off_diagonal"]["bound"]["max"]
            if bound is not None and measure in ("numerical", "practical"):
                ax.axhline(bound, color=style.colour, linestyle=":", linewidth=1.3)
        ax.set(xlabel="layer, from 0", ylabel=f"{measure} rank", ylim=(0, None))
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))

    last = (f"{label}: {mean[-1]:.1f} in the last" for label, mean in means.items() if not np.isnan(mean[-1]))
    return Chart(f"{measure.capitalize()} rank of off-diagonal blocks", "; ".join(last), draw)


def spectra(arrays: Mapping[str, Arrays], styles: Styles) -> Chart:
    """Singular values of off-diagonal blocks, the mean over layers, heads and images, down to rounding."""
    shown = {}
    for label, stored in arrays.items():
        values = stored["off_diagonal_spectrum"].reshape(-1, stored["off_diagonal_spectrum"].shape[-1])
        live = values[values.max(-1) > 0]
        if len(live):
            mean = live.mean(0)
            shown[label] = mean[mean > np.finfo(np.float64).eps * len(mean)]  # as the numerical rank counts them

    def draw(ax: Axes) -> None:
        for label, mean in shown.items():
            places = np.arange(1, len(mean) + 1).tolist()
            plot_line(ax, places, mean.tolist(), styles.get(label, OTHER), label, marks=False)
        ax.set(xlabel="index", ylabel="singular value / largest")
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        log_axis(ax, "y")

    ends = "; ".join(f"{label} ends after {len(mean)}" for label, mean in shown.items())
    return Chart("Spectra of off-diagonal blocks", ends, draw)


def distances(arrays: Mapping[str, Arrays], results: Results, styles: Styles) -> Chart:
    """Weight by distance on the grid, without the patch itself; ticks below: the mean distance."""
    profiles = {label: stored["grid_profile"] for label, stored in arrays.items()}
    lines = {label: profile.reshape(-1, profile.shape[-1]).mean(0) for label, profile in profiles.items()}

    def draw(ax: Axes) -> None:
        for label, line in lines.items():
            style, mean = styles.get(label, OTHER), results[label]["overall"]["distance"]["distance_to_others"]
            plot_line(ax, np.arange(1, len(line)).tolist(), line[1:].tolist(), style, label, marks=False)
            (tick,) = ax.plot(mean, 0, "|", color=style.colour, markersize=14)
            hint(tick, f"{label}: {mean:.1f} patches on average")
        for distance in sorted({result.get("uniform_distance_to_others", 0.0) for result in results.values()} - {0.0}):
            uniform = ax.axvline(distance, color=SOFT, linestyle=":", linewidth=1.3)
            hint(uniform, f"uniform mixing: {distance:.1f} patches on average")
        ax.set(xlabel="distance in patches, itself left out", ylabel="share of weight", xlim=(0, None), ylim=(0, None))

    kept = "; ".join(f"{label}: {line[0]:.0%} on the patch itself" for label, line in lines.items())
    return Chart("Where the weight of the matrices lies", kept, draw)


def block_ranks(label: str, table: NDArray[np.float64], layer: int) -> Chart:
    """The effective rank of every block at its place in the matrix: means over heads and images of one layer."""
    grid = block_grid(table, layer)
    if grid is None:
        raise InputError(f"layer {layer} of {label} was not measured")
    highest = np.nanmax(grid)

    def draw(ax: Axes) -> None:
        ax.grid(visible=False)
        image = ax.imshow(grid, vmin=0)
        if len(grid) <= 12:
            ax.set(xticks=range(len(grid)), yticks=range(len(grid)))
            for (row, column), value in np.ndenumerate(grid):
                if not np.isnan(value):
                    colour = "black" if value > highest / 2 else "white"
                    ax.text(column, row, f"{value:.0f}", ha="center", va="center", color=colour, fontsize=9)
        ax.set(xlabel="chunk that is read", ylabel="chunk that reads")
        ax.figure.colorbar(image, ax=ax, label="effective rank")

    about = f"Mean effective rank of {len(grid)} x {len(grid)} blocks, {highest:.1f} at most."
    return Chart(f"{label}, layer {layer}: effective rank", about, draw, height=4.0, has_legend=False)


def matrix_with_ranks(
    label: str, levels: NDArray[np.uint8], head: int, ranks: NDArray[np.float64] | None, chunk: int | None
) -> Chart:
    """One head's matrix (L, L) as grey levels, with the effective rank of each block written on it."""
    length = len(levels)
    about = f"{length} tokens read from {length} tokens; bright is strong."
    if ranks is not None and np.isfinite(off := ranks[~np.eye(len(ranks), dtype=bool)]).any():
        about += f" Mean effective rank of off-diagonal blocks {np.nanmean(off):.1f}, of {chunk} at most."

    def draw(ax: Axes) -> None:
        ax.set_axis_off()
        ax.imshow(shrunk(levels), cmap="magma", vmin=0, vmax=255, interpolation="none", extent=(0, length, length, 0))
        for (row, column), value in np.ndenumerate(np.empty((0, 0)) if ranks is None or chunk is None else ranks):
            x, y, size = column * chunk, row * chunk, [min(chunk, length - place * chunk) for place in (column, row)]
            if min(size) < 0.05 * length:  # a ragged edge
                continue
            ax.add_patch(Rectangle((x, y), *size, fill=False, edgecolor=INK, linewidth=1, alpha=0.75))
            if not np.isnan(value):
                text = f"{value:.0f}" if value >= 9.95 else f"{value:.1f}"
                box = {"boxstyle": "round,pad=0.25", "facecolor": "black", "alpha": 0.68, "linewidth": 0}
                place = (x + size[0] / 2, y + size[1] / 2)
                ax.text(*place, text, ha="center", va="center", color=INK, fontsize=17, bbox=box)

    return Chart(f"Mixing matrix of {label}, head {head}", about, draw, 300 / 72, 300 / 72, has_legend=False)


def _by_layer(result: dict[str, Any], measure: str) -> list[dict[str, Any]]:
    return [entry["off_diagonal"][measure] for entry in result["layers"]]


def shrunk(levels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A matrix at most so large, the brightest of each patch kept."""
    step = -(-len(levels) // _MOST_PIXELS)
    size = -(-len(levels) // step) * step
    padded = np.zeros((size, size), dtype=np.uint8)
    padded[: len(levels), : len(levels)] = levels
    return padded.reshape(size // step, step, size // step, step).max((1, 3))
