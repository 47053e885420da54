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
    """The mixing matrices of one or more backbones on one image, as a picture: which tokens read which.

    Args:
        layer: the mixing of which layer, counted from 0; negative numbers count from the end.
        heads: which heads, counted from 0; default: three, evenly spaced. A convolution has one for each channel.
        patch: of which patch to show what it reads, as the mean over heads: its place from the top and from the left, 0
            to 1.
    """
    return run_named("matrices", on, answer, layer=layer, heads=heads, patch=patch)
