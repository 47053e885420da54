"""Charts of Binary-AUC: by model, kind of map, layer, register and head, and ROC curves.

Rows are those of a study of `mixlab auc`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from mixlab.analysis.figures.chart import OTHER, Chart, Styles, line_styles, plot_line
from mixlab.analysis.figures.page_svg import GROUND, LINE, PALETTE, SOFT, TEXT, hint

Row = Mapping[str, Any]
ABOVE, BELOW = PALETTE[4], PALETTE[3]  # chance
AXIS = {"layer": ("layer", "layer, from 0"), "index": ("register", "register, from 0, in the order of the sequence")}


def styles_of(rows: Sequence[Row]) -> Styles:
    return line_styles({row["label"]: row["family"] for row in rows})


def study_charts(study: str, rows: Sequence[Row], styles: Styles | None = None) -> list[Chart]:
    """The charts of a study of `mixlab auc`: of heads one per model, else one."""
    match study:
        case "layer":
            return [scores_along(rows, "layer", styles)]
        case "register":
            return [scores_along(rows, "index", styles)]
        case "map" | "token":
            return [scores_by_map(rows, styles)]
        case "head":
            labels = dict.fromkeys(row["label"] for row in rows)
            return [scores_by_head(label, [row for row in rows if row["label"] == label]) for label in labels]
        case _:
            return [scores_by_model(rows, study, styles)]


def scores_by_model(rows: Sequence[Row], study: str = "model", styles: Styles | None = None) -> Chart:
    """One dot per row with its interval; hollow: the untrained twin; tick: the centre prior on the same images."""
    styles = styles_of(rows) if styles is None else styles
    known = [row for row in rows if row["auc"]["mean"] is not None]

    def draw(ax: Axes) -> None:
        for place, row in enumerate(known):
            auc, colour = row["auc"], styles.get(row["label"], OTHER).colour
            if auc["low"] is not None:
                ax.plot([auc["low"], auc["high"]], [place, place], color=colour)
            _draw_score(ax, row, place, styles, row["label"])
        _finish_scores(ax, [row["label"] for row in known])

    return Chart(f"Binary-AUC by {study}", _highest(known, "label"), draw, height=0.9 + 0.39 * len(known))


def scores_by_map(rows: Sequence[Row], styles: Styles | None = None) -> Chart:
    """Every kind of map, models side by side; hollow: the untrained twin; tick: the centre prior."""
    styles = styles_of(rows) if styles is None else styles
    known = [row for row in rows if row["auc"]["mean"] is not None]
    kinds = list(dict.fromkeys(row["map"] for row in known))
    labels = list(dict.fromkeys(row["label"] for row in known))

    def draw(ax: Axes) -> None:
        for row in known:
            place = kinds.index(row["map"]) + 0.7 * ((labels.index(row["label"]) + 0.5) / len(labels) - 0.5)
            _draw_score(ax, row, place, styles, f"{row['label']}, {row['map']}")
        _finish_scores(ax, kinds)
        for label in labels:
            style = styles.get(label, OTHER)
            ax.plot([], [], color=style.colour, marker=style.marker, label=label, in_layout=False)

    height = 0.9 + 0.17 * len(labels) * len(kinds)
    return Chart("Binary-AUC by kind of map", _highest(known, "map", "label"), draw, height=height)


def scores_along(rows: Sequence[Row], along: str, styles: Styles | None = None) -> Chart:
    """Raw AUC by layer or by register ("index"), one line per model with its band; 0.5 is chance."""
    styles = styles_of(rows) if styles is None else styles
    known = [row for row in rows if row["raw_auc"]["mean"] is not None]

    def draw(ax: Axes) -> None:
        for label in dict.fromkeys(row["label"] for row in known):
            own = [row for row in known if row["label"] == label]
            places, style = [row[along] or 0 for row in own], styles.get(label, OTHER)
            low, high = ([_end(row["raw_auc"], name) for row in own] for name in ("low", "high"))
            ax.fill_between(places, low, high, color=style.colour, alpha=0.14, linewidth=0)
            plot_line(ax, places, [row["raw_auc"]["mean"] for row in own], style, label)
        ax.axhline(0.5, color=SOFT, linewidth=1)
        ax.set(xlabel=AXIS[along][1], ylabel="mean AUC (raw)")
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))

    return Chart(f"AUC by {AXIS[along][0]}", "Bands are 95 % intervals; 0.5 is chance.", draw)


def scores_by_head(label: str, rows: Sequence[Row]) -> Chart:
    """Raw AUC of every head of one model, layers down and heads across: strong colours are far from chance."""
    layers, heads = sorted({row["layer"] for row in rows}), sorted({row["index"] or 0 for row in rows})
    known = {(row["layer"], row["index"] or 0): row["raw_auc"]["mean"] for row in rows}
    values = [value for value in known.values() if value is not None]
    width = min(0.5, 3.9 / len(heads))  # inches a head

    def draw(ax: Axes) -> None:
        ax.grid(visible=False)
        ax.spines["bottom"].set_visible(False)
        for (layer, head), value in known.items():
            if value is None:
                continue
            x, y = heads.index(head), layers.index(layer)
            colour, strength = ABOVE if value >= 0.5 else BELOW, min(1.0, abs(value - 0.5) * 4)
            cell = Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, facecolor=(colour, strength), edgecolor=(LINE, 1.0))
            hint(cell, f"layer {layer}, head {head}: {value:.3f}")
            ax.add_patch(cell)
            if width > 0.33:
                ax.text(x, y, f"{value:.2f}", ha="center", va="center")
        ends = sorted({0, len(heads) - 1})
        ax.set(xlabel="head, from 0", xticks=ends, xticklabels=[heads[end] for end in ends], yticks=range(len(layers)))
        ax.set_yticklabels([f"layer {layer}" for layer in layers])
        ax.set(xlim=(-0.6, 4.1 / width - 0.6), ylim=(len(layers) - 0.4, -0.6))
        ax.xaxis.set_label_coords((len(heads) / 2 + 0.1) * width / 4.1, -0.3 / len(layers) - 0.1)

    about = f"{len(rows)} heads, from {min(values):.2f} to {max(values):.2f}; 0.5 is chance." if values else ""
    return Chart(f"AUC of every head of {label}", about, draw, height=0.7 + 0.42 * len(layers), has_legend=False)


def roc(curves: Mapping[str, Any], styles: Styles) -> Chart:
    """Mean ROC curves, as `mixlab auc` stores them: one line per label; the diagonal is chance."""
    false_rates, true_rates = curves["false_positive_rate"], curves["true_positive_rate"]

    def draw(ax: Axes) -> None:
        ax.plot([0, 1], [0, 1], color=SOFT, linewidth=1)
        for label, rates in true_rates.items():
            plot_line(ax, false_rates, rates, styles.get(label, OTHER), label, marks=False)
        ax.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(0, 1), ylim=(0, 1), aspect="equal")

    return Chart("Mean ROC", f"{', '.join(true_rates)}; the diagonal is chance.", draw, height=4.9)


def _draw_score(ax: Axes, row: Row, place: float, styles: Styles, name: str) -> None:
    style, prior = styles.get(row["label"], OTHER), row["centre_prior"]["mean"]
    (tick,) = ax.plot(prior, place, "|", color=SOFT, markersize=15, markeredgewidth=2)
    hint(tick, f"centre prior: {prior:.3f}")
    if row.get("untrained") and row["untrained"]["mean"] is not None:
        twin = row["untrained"]["mean"]
        (hollow,) = ax.plot(twin, place, color=style.colour, marker=style.marker, markerfacecolor=GROUND, linestyle="")
        hint(hollow, f"{name}, untrained: {twin:.3f}")
    (dot,) = ax.plot(row["auc"]["mean"], place, color=style.colour, marker=style.marker, linestyle="")
    hint(dot, f"{name}: {row['auc']['mean']:.3f}, n = {row['auc']['n']}")


def _finish_scores(ax: Axes, names: Sequence[str]) -> None:
    ax.axvline(0.5, color=SOFT, linewidth=1)
    ax.grid(visible=False, axis="y")
    ax.set(xlabel="mean of max(AUC, 1 − AUC)", yticks=range(len(names)), yticklabels=names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    for marker, face, label in (
        ("o", TEXT, "model, 95 %"),
        ("o", GROUND, "untrained twin"),
        ("|", SOFT, "centre prior"),
    ):
        sample = ax.add_line(Line2D([], [], marker=marker, linestyle="", color=TEXT, markerfacecolor=face, label=label))
        sample.set_in_layout(False)


def _highest(rows: Sequence[Row], *names: str) -> str:
    if not rows:
        return ""
    best = max(rows, key=lambda row: row["auc"]["mean"])
    return f"Highest: {' of '.join(best[name] for name in names)}, {best['auc']['mean']:.3f}."


def _end(figure: Mapping[str, Any], name: str) -> float:
    return figure["mean"] if figure[name] is None else figure[name]
