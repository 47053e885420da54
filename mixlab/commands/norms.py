"""`mixlab norms`: the analysis of that name as a command, declared here for the reason of `mixlab matrices`."""

from typing import Any

from mixlab.commands.analysis import ViewedTargets, run_named
from mixlab.commands.answer import Answer
from mixlab.commands.options import Flat


def norms(
    on: Flat[ViewedTargets], answer: Flat[Answer] = Answer(), *, factor: float = 3.0, twins: bool = True
) -> dict[str, Any]:
    """Measure high-norm tokens by layer: how many there are and where, compared with an untrained twin.

    Args:
        factor: a patch is high-norm if its norm exceeds this multiple of the median norm of its image.
        twins: also measure each trained model's untrained twin on the same images.
    """
    return run_named("norms", on, answer, factor=factor, twins=twins)
