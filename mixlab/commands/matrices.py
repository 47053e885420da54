"""`mixlab matrices`: the analysis of that name as a command. Its options are declared here, too, so that `--help` does
not wait for torch."""

from typing import Any

from mixlab.commands.analysis import ViewedTargets, run_named
from mixlab.commands.answer import Answer
from mixlab.commands.options import Flat


def matrices(
    on: Flat[ViewedTargets],
    answer: Flat[Answer] = Answer(),
    *,
    layer: int = -1,
    heads: tuple[int, ...] = (),
    patch: tuple[float, float] = (0.5, 0.5),
) -> dict[str, Any]:
    """Draw the mixing matrices of one or more backbones on one image: which token reads which.

    Args:
        layer: which layer, counted from 0; negative numbers count from the end.
        heads: which heads, counted from 0; default: three, evenly spaced. A convolution has one head per channel.
        patch: also show what this patch reads (mean over heads): its position from the top and from the left, 0 to 1.
    """
    return run_named("matrices", on, answer, layer=layer, heads=heads, patch=patch)
