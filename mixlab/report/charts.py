"""The charts of a report, each from one kind of result. All use the colours of the models' table."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from mixlab.report.pictures import MAGMA, level_picture, shrink
from mixlab.report.plot import NUM_COLOURS, Colours, Plot, Scale, dashes, figure_svg, mark
from mixlab.report.records import Curve, Record


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
