"""How speed and memory grow with the input: where the lines of two models cross, and the figure."""

import math
from collections.abc import Sequence
from typing import Any

import matplotlib.ticker
from matplotlib.figure import Figure

from mixlab.analysis.figures import FAMILY_COLOURS, MARKERS, styled

Row = dict[str, Any]
REFERENCE = "vit"  # the family that the others are measured by
COLOURS = {"vit": "attention", "dinovim": "mamba2", "linearvit": "linear_attention", "mambaout": "gated_conv"}


def crossings(rows: Sequence[Row]) -> list[Row]:
    """From which size on each model is ahead of the ViT, a straight line drawn between measured ratios."""
    models = dict.fromkeys(row["model"] for row in rows if not row["model"].startswith(REFERENCE))
    return [
        {
            "model": model,
            "faster_from_px": _crossing([(r["px"], r["speed_over_vit"]) for r in rows if r["model"] == model]),
            "less_memory_from_px": _crossing(
                [(r["px"], 1 / r["memory_over_vit"]) for r in rows if r["model"] == model and r["memory_over_vit"]]
            ),
        }
        for model in models
    ]


def _crossing(points: list[tuple[int, float]]) -> str:
    """Where a ratio passes 1 for good, on logarithmic axes; at an end of the measured range, that it is beyond."""
    if not points:
        return "not measured"
    if points[-1][1] <= 1:
        return f"not up to {points[-1][0]}"
    behind = [index for index, (_, ratio) in enumerate(points) if ratio <= 1]
    if not behind:
        return f"{points[0][0]} or below"
    (px, ratio), (next_px, next_ratio) = points[behind[-1]], points[behind[-1] + 1]
    share = -math.log(ratio) / (math.log(next_ratio) - math.log(ratio))
    return f"about {round(px * (next_px / px) ** share)}"


@styled
def scaling_figure(rows: Sequence[Row]) -> Figure:
    """Pixels per second, and memory per pixel, against the input size; a cost linear in tokens is a flat line."""
    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    speed, memory = figure.subplots(1, 2)
    for number, model in enumerate(dict.fromkeys(row["model"] for row in rows)):
        own = [row for row in rows if row["model"] == model]
        style: dict[str, Any] = {"marker": MARKERS[number], "label": model}
        style["color"] = FAMILY_COLOURS[COLOURS[model.partition("_")[0]]]
        speed.plot([row["px"] for row in own], [row["images_per_s"] * row["px"] ** 2 / 1e6 for row in own], **style)
        measured = [row for row in own if row["peak_GiB"] is not None]
        per_pixel = [row["peak_GiB"] / row["batch"] / row["px"] ** 2 * 1e6 for row in measured]
        memory.plot([row["px"] for row in measured], per_pixel, **style)
    pixels = sorted({row["px"] for row in rows})
    for ax, label in ((speed, "million pixels per second"), (memory, "peak memory per million pixels (GiB)")):
        ax.set_xscale("log", base=2)
        ax.set_xticks(pixels, [f"{px}\n{(px // 16) ** 2:,}" for px in pixels])
        ax.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
        ax.set_xlabel("input size (px), and tokens of 16 px")
        ax.set_ylabel(label)
        ax.set_ylim(bottom=0)
    if not any(row["peak_GiB"] for row in rows):
        memory.text(0.5, 0.5, "measured on a GPU alone", ha="center", transform=memory.transAxes)
    figure.suptitle("Forward and backward", x=0.01, ha="left")
    figure.legend(*speed.get_legend_handles_labels(), loc="outside upper right", ncols=4)
    return figure
