"""Charts of Binary-AUC for the page: by model, kind of map, layer, register and head."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from mixlab.report.plot import Colours, Plot, Scale, figure_svg


def dots(rows: Sequence[dict[str, Any]], colours: Colours) -> Markup:
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


def by_map(rows: Sequence[dict[str, Any]], colours: Colours) -> Markup:
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


def lines(rows: Sequence[dict[str, Any]], along: str, colours: Colours, xlabel: str) -> Markup:
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


def _or(value: float | None, other: float) -> float:
    return other if value is None else value
