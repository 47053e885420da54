"""The charts of a report, each from one kind of result. All use the colours of the models' table."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from mixlab.report.pictures import MAGMA, level_picture, shrink
from mixlab.report.plot import NUM_COLOURS, Plot, Scale, dashes, figure_svg, mark
from mixlab.report.records import Curve, Record

Colours = Mapping[str, int]


def auc_dots(rows: Sequence[dict[str, Any]], colours: Colours) -> Markup:
    """Binary-AUC of each model with its interval, its untrained twin and the centre prior."""
    rows = [row for row in rows if row["auc"]["mean"] is not None]
    names = [row["label"] for row in rows]
    ends = [value for row in rows for value in (row["auc"]["low"], row["auc"]["high"], row["centre_prior"]["mean"])]
    ends += [row["untrained"]["mean"] for row in rows if row.get("untrained")]
    x = Scale.around([0.5, *(value for value in ends if value is not None)])
    best = max(rows, key=lambda row: row["auc"]["mean"])
    plot = Plot(
        x,
        Scale(-0.6, len(rows) - 0.4),
        "mean of max(AUC, 1 − AUC)",
        "",
        "Binary-AUC by model",
        f"Highest: {best['label']}, {best['auc']['mean']:.3f}.",
        height=64 + 28 * len(rows),
        rows=names,
    )
    plot.rule(x=0.5)
    for place, row in enumerate(rows):
        auc, colour = row["auc"], colours.get(row["label"], 6)
        plot.tick(row["centre_prior"]["mean"], place, name=f"centre prior: {row['centre_prior']['mean']:.3f}")
        if auc["low"] is not None:
            plot.segment(auc["low"], auc["high"], place, colour)
        if row.get("untrained") and row["untrained"]["mean"] is not None:
            twin = row["untrained"]["mean"]
            plot.dot(twin, place, colour, name=f"{row['label']}, untrained: {twin:.3f}", hollow=True)
        plot.dot(auc["mean"], place, colour, name=f"{row['label']}: {auc['mean']:.3f}, n = {auc['n']}")
    return plot.svg()


def auc_by_map(rows: Sequence[dict[str, Any]], colours: Colours) -> Markup:
    """Binary-AUC of each kind of map, models side by side with their untrained twins; a tick is the centre prior."""
    rows = [row for row in rows if row["auc"]["mean"] is not None]
    kinds = list(dict.fromkeys(row["map"] for row in rows))
    labels = list(dict.fromkeys(row["label"] for row in rows))
    twins = [row["untrained"]["mean"] for row in rows if row.get("untrained")]
    ends = [row[name]["mean"] for row in rows for name in ("auc", "centre_prior")]
    best = max(rows, key=lambda row: row["auc"]["mean"])
    plot = Plot(
        Scale.around([0.5, *(value for value in [*ends, *twins] if value is not None)]),
        Scale(-0.6, len(kinds) - 0.4),
        "mean of max(AUC, 1 − AUC)",
        "",
        "Binary-AUC by kind of map",
        f"Highest: {best['map']} of {best['label']}, {best['auc']['mean']:.3f}.",
        height=64 + 12 * len(labels) * len(kinds),
        rows=kinds,
    )
    plot.rule(x=0.5)
    for row in rows:
        place = kinds.index(row["map"]) + 0.7 * ((labels.index(row["label"]) + 0.5) / len(labels) - 0.5)
        colour, name, prior = colours.get(row["label"], 6), f"{row['label']}, {row['map']}", row["centre_prior"]["mean"]
        plot.tick(prior, place, name=f"centre prior: {prior:.3f}")
        if row.get("untrained") and row["untrained"]["mean"] is not None:
            twin = row["untrained"]["mean"]
            plot.dot(twin, place, colour, name=f"{name}, untrained: {twin:.3f}", hollow=True)
        plot.dot(row["auc"]["mean"], place, colour, name=f"{name}: {row['auc']['mean']:.3f}, n = {row['auc']['n']}")
    return plot.svg()


def roc_curves(roc: Mapping[str, Any], colours: Colours) -> Markup:
    """Mean ROC curves; the diagonal is chance."""
    curves = roc["true_positive_rate"]
    plot = Plot(
        Scale(0, 1),
        Scale(0, 1),
        "false positive rate",
        "true positive rate",
        "Mean ROC of each model's maps",
        f"{', '.join(curves)}; the diagonal is chance.",
        square=True,
    )
    plot.line([0, 1], [0, 1], 6, name="chance", dots=False)
    for label, rates in curves.items():
        plot.line(roc["false_positive_rate"], rates, colours.get(label, 6), name=label, dots=False)
    return plot.svg()


def auc_along(rows: Sequence[dict[str, Any]], along: str, colours: Colours, xlabel: str) -> Markup:
    """Raw AUC by layer or register with its band; 0.5 is chance."""
    known = [row for row in rows if row["raw_auc"]["mean"] is not None]
    ends = [row["raw_auc"][end] for row in known for end in ("mean", "low", "high")]
    plot = Plot(
        Scale.around([float(row[along] or 0) for row in known], integer=True),
        Scale.around([0.5, *(value for value in ends if value is not None)]),
        xlabel,
        "mean AUC (raw)",
        f"AUC by {xlabel}",
        "Bands are 95 % intervals over images; 0.5 is chance.",
    )
    plot.rule(y=0.5)
    for label in dict.fromkeys(row["label"] for row in known):
        own = [row for row in known if row["label"] == label]
        xs = [float(row[along] or 0) for row in own]
        means = [row["raw_auc"]["mean"] for row in own]
        lows, highs = ([_or(row["raw_auc"][end], row["raw_auc"]["mean"]) for row in own] for end in ("low", "high"))
        plot.band(xs, lows, highs, colours.get(label, 6))
        plot.line(xs, means, colours.get(label, 6), name=label)
    return plot.svg()


def head_grid(label: str, rows: Sequence[dict[str, Any]]) -> Markup:
    """Every head of one model: the stronger the colour, the farther from chance."""
    layers = sorted({row["layer"] for row in rows})
    heads = sorted({row["index"] or 0 for row in rows})
    width = 340.0
    left, cell = 52.0, min(36.0, (width - 60.0) / len(heads))
    parts = []
    for row in rows:
        value = row["raw_auc"]["mean"]
        if value is None:
            continue
        x = left + heads.index(row["index"] or 0) * cell
        y = 8 + layers.index(row["layer"]) * 30
        kind = "above" if value >= 0.5 else "below"
        parts.append(
            f'<rect class="cell {kind}" x="{x:.1f}" y="{y}" width="{cell - 1.5:.1f}" height="28" '
            f'fill-opacity="{min(1.0, abs(value - 0.5) * 4):.2f}"><title>layer {row["layer"]}, head {row["index"]}: '
            f"{value:.3f}</title></rect>"
        )
        if cell > 24:
            parts.append(f'<text x="{x + cell / 2:.1f}" y="{y + 18}" text-anchor="middle">{value:.2f}</text>')
    parts += [
        f'<text x="{left - 6}" y="{26 + place * 30}" text-anchor="end">layer {layer}</text>'
        for place, layer in enumerate(layers)
    ]
    bottom = 8 + 30 * len(layers)
    ends = [heads[0], heads[-1]] if len(heads) > 1 else heads
    for head in ends:
        x = left + heads.index(head) * cell + cell / 2
        parts.append(f'<text x="{x:.1f}" y="{bottom + 12}" text-anchor="middle">{head}</text>')
    parts.append(f'<text class="name" x="{left + len(heads) * cell / 2:.1f}" y="{bottom + 24}" '
                 'text-anchor="middle">head</text>')  # fmt: skip
    values = [row["raw_auc"]["mean"] for row in rows if row["raw_auc"]["mean"] is not None]
    about = f"{len(rows)} heads, from {min(values):.2f} to {max(values):.2f}; 0.5 is chance." if values else ""
    return figure_svg(width, bottom + 30, parts, title=f"AUC of every head of {label}", about=about)


def matrix_with_ranks(
    label: str, levels: NDArray[np.uint8], head: int, ranks: NDArray[np.float64] | None, chunk: int | None
) -> Markup:
    """One head's matrix, and the effective rank of each block written where the block stands."""
    length, side = levels.shape[0], 300.0
    about = f"{length} tokens read from {length} tokens; bright is strong."
    parts = [
        f'<image x="0" y="0" width="{side:g}" height="{side:g}" preserveAspectRatio="none" '
        f'href="{level_picture(shrink(levels), MAGMA)}"/>'
    ]
    if ranks is not None and chunk is not None:
        for (row, column), value in np.ndenumerate(ranks):
            y, x = (side * min(place * chunk, length) / length for place in (row, column))
            height, width = (side * min(chunk, length - place * chunk) / length for place in (row, column))
            if min(height, width) < 14:  # a ragged edge
                continue
            parts.append(f'<rect class="block" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>')
            if not math.isnan(value):
                parts.append(_number_on_picture(x + width / 2, y + height / 2, value))
        off = ranks[~np.eye(len(ranks), dtype=bool)]
        if np.isfinite(off).any():
            about += f" Mean effective rank of off-diagonal blocks {np.nanmean(off):.1f}, of {chunk} at most."
    return figure_svg(side, side, parts, title=f"Mixing matrix of {label}, head {head}", about=about)


def rank_lines(records: Mapping[str, Record], measure: str, colours: Colours) -> Markup:
    """Off-diagonal rank of each model by layer; dotted: the bound of theory."""
    lines = {
        label: [(entry["layer"], entry["off_diagonal"][measure]["mean"]) for entry in record.content["layers"]]
        for label, record in records.items()
    }
    bounds = {
        label: record.content["overall"]["off_diagonal"]["bound"]["max"] for label, record in records.items()
    } if measure == "numerical" else {}  # fmt: skip
    values = [value for points in lines.values() for _, value in points if value is not None]
    plot = Plot(
        Scale.around([layer for points in lines.values() for layer, _ in points], integer=True),
        Scale.around([*values, *(value for value in bounds.values() if value is not None)], start=0.0),
        "layer",
        f"{measure} rank",
        f"{measure.capitalize()} rank of off-diagonal blocks by layer",
        "; ".join(f"{label}: {points[-1][1]:.1f} in the last" for label, points in lines.items() if points[-1][1]),
    )
    for label, points in lines.items():
        if bounds.get(label) is not None:
            plot.rule(y=bounds[label], colour=colours.get(label, 6))
        plot.line(
            [layer for layer, _ in points],
            [math.nan if value is None else value for _, value in points],
            colours.get(label, 6),
            name=label,
        )
    return plot.svg()


def spectrum_lines(arrays: Mapping[str, NDArray[np.float64]], colours: Colours) -> Markup:
    """Singular values of off-diagonal blocks (..., C), the mean over layers, heads and images."""
    means = {}
    for label, values in arrays.items():
        live = values.reshape(-1, values.shape[-1])
        live = live[live.max(-1) > 0]
        if len(live):
            means[label] = live.mean(0)
    shown = {label: mean[mean > 1e-12] for label, mean in means.items()}  # below: rounding
    plot = Plot(
        Scale.around([1.0, *(float(len(mean)) for mean in shown.values())], integer=True),
        Scale.around([1.0, *(float(value) for mean in shown.values() for value in mean)], log=True),
        "index",
        "singular value / largest",
        "Spectra of off-diagonal blocks",
        "; ".join(f"{label} ends after {len(mean)}" for label, mean in shown.items()),
    )
    for label, mean in shown.items():
        plot.line(np.arange(1.0, len(mean) + 1).tolist(), mean.tolist(), colours.get(label, 6), name=label, dots=False)
    return plot.svg()


def distance_lines(records: Mapping[str, Record], colours: Colours) -> Markup:
    """How much weight lies how far away on the grid."""
    profiles = {label: record.arrays()["grid_profile"] for label, record in records.items()}
    lines = {label: values.reshape(-1, values.shape[-1]).mean(0) for label, values in profiles.items()}
    plot = Plot(
        Scale.around([0.0, *(len(line) - 1.0 for line in lines.values())], integer=True),
        Scale.around([float(value) for line in lines.values() for value in line[1:]], start=0.0),
        "distance in patches, itself left out",
        "share of weight",
        "Where the weight of the matrices lies",
        "; ".join(f"{label}: {line[0]:.0%} on the patch itself" for label, line in lines.items()),
    )
    for label, line in lines.items():
        plot.line(np.arange(1.0, len(line)).tolist(), line[1:].tolist(), colours.get(label, 6), name=label, dots=False)
    return plot.svg()


def training_lines(curves: Sequence[Curve], name: str, ylabel: str, *, title: str, colours: Colours) -> Markup | None:
    """One figure of every run by step; nothing where no run has it."""
    lines = {curve.label: curve.points(name) for curve in curves}
    lines = {label: (steps, values) for label, (steps, values) in lines.items() if steps}
    if not lines:
        return None
    plot = Plot(
        Scale.around([step for steps, _ in lines.values() for step in steps], margin=0.03),
        Scale.around([value for _, values in lines.values() for value in values]),
        "step",
        ylabel,
        f"{title}, by step",
        "; ".join(f"{label} ends at {values[-1]:.3g}" for label, (_, values) in lines.items()),
    )
    for label, (steps, values) in lines.items():
        plot.line(steps, values, colours.get(label, 6), name=label, dots=len(steps) < 12)
    return plot.svg()


def scaling_lines(rows: Sequence[dict[str, Any]], value: str, ylabel: str, *, title: str, colours: Colours) -> Markup:
    """Images per second, or memory, of each model against tokens, both in powers of ten."""
    points = {
        label: [(row["tokens"], row[value]) for row in rows if row["label"] == label]
        for label in dict.fromkeys(row["label"] for row in rows)
    }
    plot = Plot(
        Scale.around([float(row["tokens"]) for row in rows], log=True),
        Scale.around([float(row[value]) for row in rows], log=True),
        "tokens",
        ylabel,
        title,
        "; ".join(f"{label}: {part[-1][1]:.3g} at {part[-1][0]} tokens" for label, part in points.items()),
    )
    for label, part in points.items():
        plot.line([x for x, _ in part], [y for _, y in part], colours.get(label, 6), name=label)
    return plot.svg()


def legend(labels: Sequence[str], colours: Colours) -> Markup:
    """Names with their colours and marks, as text that flows."""
    items = []
    for label in labels:
        colour = colours.get(label, 6)
        sample = (
            f'<svg viewBox="0 0 34 12" aria-hidden="true"><line class="line s{colour % NUM_COLOURS}" x1="1" x2="33" '
            f'y1="6" y2="6" stroke-dasharray="{dashes(colour)}"/>{mark(17, 6, colour, name=label)}</svg>'
        )
        items.append(f"<li>{sample}{escape(label)}</li>")
    return Markup(f'<ul class="legend">{"".join(items)}</ul>')  # labels are escaped


def _number_on_picture(x: float, y: float, value: float) -> str:
    """A rank on a dark label, readable on any picture."""
    text = f"{value:.0f}" if value >= 9.95 else f"{value:.1f}"
    return (
        f'<rect class="label" x="{x - 17:.1f}" y="{y - 11:.1f}" width="34" height="22" rx="4"/>'
        f'<text class="on-picture" x="{x:.1f}" y="{y + 6:.1f}" text-anchor="middle">{text}</text>'
    )


def _or(value: float | None, other: float) -> float:
    return other if value is None else value
