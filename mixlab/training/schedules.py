"""What changes during a run, as pure functions of the step: nothing to save, nothing to restore."""

import math

from mixlab.errors import InputError


def cosine(step: int, *, start: float, end: float, total: int) -> float:
    """From `start` at step 0 along half a cosine towards `end` at step `total`."""
    return end + 0.5 * (start - end) * (1 + math.cos(math.pi * min(step, total) / max(total, 1)))


def learning_rate(
    step: int,
    *,
    peak: float,
    end: float,
    warmup: int,
    total: int,
    start: float = 0.0,
    decay: str = "cosine",
    drops: tuple[int, ...] = (),
) -> float:
    """Linearly from `start` to `peak`, which the last warm-up step has (DINO), then as `decay` says.

    cosine  along half a cosine towards `end`
    poly    in a straight line towards `end`
    drops   a tenth of it after each step of `drops`
    """
    if step < warmup:
        return start + (peak - start) * step / max(warmup - 1, 1)
    match decay:
        case "cosine":
            return cosine(step - warmup, start=peak, end=end, total=total - warmup)
        case "poly":
            return end + (peak - end) * (1 - min(step - warmup, total - warmup) / max(total - warmup, 1))
        case "drops":
            return peak * 0.1 ** sum(step >= drop for drop in drops)
    raise InputError(f"decay {decay!r} is unknown; choose cosine, poly or drops")


def linear_by_epoch(epoch: int, *, start: float, end: float, epochs: int) -> float:
    """From `start` in epoch 0 in equal steps to `end` in epoch `epochs` - 1, and `end` ever after."""
    if epoch >= epochs - 1:
        return end
    return start + (end - start) * epoch / (epochs - 1)
