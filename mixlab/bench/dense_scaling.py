"""How speed and memory grow with the input: where the lines of two models cross, and the figure."""

import math
from collections.abc import Sequence
from typing import Any

from mixlab.analysis.figures import Chart, cost_by_pixels, line_styles

Row = dict[str, Any]
REFERENCE = "vit"  # the family that the others are measured by
FAMILY_OF = {"vit": "attention", "dinovim": "mamba2", "linearvit": "linear_attention", "mambaout": "gated_conv"}


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


def scaling_charts(rows: Sequence[Row]) -> list[Chart]:
    """Speed and memory against the input size."""
    models = dict.fromkeys(row["model"] for row in rows)
    return cost_by_pixels(rows, line_styles({model: FAMILY_OF[model.partition("_")[0]] for model in models}))
