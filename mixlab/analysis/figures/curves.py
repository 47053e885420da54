"""Charts of training by step, and of cost by the number of tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullLocator

from mixlab.analysis.figures.chart import OTHER, Chart, Styles, log_axis, plot_line

Points = tuple[Sequence[float], Sequence[float]]


def training_curves(lines: Mapping[str, Points], ylabel: str, title: str, styles: Styles) -> Chart:
    """One value of every training by step."""

    def draw(ax: Axes) -> None:
        for label, (steps, values) in lines.items():
            plot_line(ax, steps, values, styles.get(label, OTHER), label, marks=len(steps) < 12)
        ax.set(xlabel="step", ylabel=ylabel)
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.xaxis.set_major_formatter("{x:,.0f}")

    ends = "; ".join(f"{label} ends at {values[-1]:.3g}" for label, (_, values) in lines.items())
    return Chart(title, ends, draw)


def layer_curves(lines: Mapping[str, Sequence[float]], ylabel: str, title: str, styles: Styles) -> Chart:
    """One value of every network by layer."""

    def draw(ax: Axes) -> None:
        for label, values in lines.items():
            plot_line(ax, range(len(values)), values, styles.get(label, OTHER), label)
        ax.set(xlabel="layer, from 0", ylabel=ylabel)
        if not any(map(any, lines.values())):
            ax.set_ylim(0, 1)  # nothing but zeros
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))

    return Chart(title, "; ".join(f"{label} at most {max(values):.3g}" for label, values in lines.items()), draw)


def cost_by_tokens(lines: Mapping[str, Points], ylabel: str, title: str, styles: Styles) -> Chart:
    """Images per second or memory of each model against tokens, both in powers of ten."""

    def draw(ax: Axes) -> None:
        for label, (tokens, values) in lines.items():
            plot_line(ax, tokens, values, styles.get(label, OTHER), label)
        ax.set(xlabel="tokens", ylabel=ylabel)
        log_axis(ax, "x")
        log_axis(ax, "y")

    ends = (f"{label}: {values[-1]:.3g} at {tokens[-1]} tokens" for label, (tokens, values) in lines.items())
    return Chart(title, "; ".join(ends), draw)


def cost_by_pixels(rows: Sequence[Mapping[str, Any]], styles: Styles) -> list[Chart]:
    """Pixels per second, and memory per pixel, against the input size; a cost linear in tokens is a flat line."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    pixels = sorted({row["px"] for row in rows})

    def speed(row: Mapping[str, Any]) -> float:
        return row["images_per_s"] * row["px"] ** 2 / 1e6

    def memory(row: Mapping[str, Any]) -> float | None:
        return None if row["peak_GiB"] is None else row["peak_GiB"] / row["batch"] / row["px"] ** 2 * 1e6

    def chart(title: str, ylabel: str, value: Any) -> Chart:
        def draw(ax: Axes) -> None:
            for model in models:
                found = [(row["px"], value(row)) for row in rows if row["model"] == model and value(row) is not None]
                if found:
                    sizes, values = zip(*found, strict=True)
                    plot_line(ax, sizes, values, styles.get(model, OTHER), model)
            if not ax.lines:
                ax.text(0.5, 0.5, "measured on a GPU alone", ha="center", transform=ax.transAxes)
            ax.set_xscale("log", base=2)
            ax.set_xticks(pixels, [f"{px}\n{(px // 16) ** 2:,}" for px in pixels])
            ax.xaxis.set_minor_locator(NullLocator())
            ax.set(xlabel="input size in px, and tokens of 16 px", ylabel=ylabel, ylim=(0, None))

        return Chart(title, f"{', '.join(models)} at {pixels[0]} to {pixels[-1]} px.", draw)

    return [
        chart("Forward and backward: speed", "million pixels per second", speed),
        chart("Forward and backward: memory", "peak GiB per million pixels", memory),
    ]
