"""What changes during a run, as pure functions of the step: nothing to save, nothing to restore."""

import math


def cosine(step: int, *, start: float, end: float, total: int) -> float:
    """From `start` at step 0 along half a cosine towards `end` at step `total`."""
    return end + 0.5 * (start - end) * (1 + math.cos(math.pi * min(step, total) / max(total, 1)))


def warmup_cosine(step: int, *, peak: float, end: float, warmup: int, total: int) -> float:
    """Linearly from 0 to `peak`, which the last warm-up step has, then a cosine towards `end` (DINO)."""
    if step < warmup:
        return peak * step / max(warmup - 1, 1)
    return cosine(step - warmup, start=peak, end=end, total=total - warmup)


def linear_by_epoch(epoch: int, *, start: float, end: float, epochs: int) -> float:
    """From `start` in epoch 0 in equal steps to `end` in epoch `epochs` - 1, and `end` ever after."""
    if epoch >= epochs - 1:
        return end
    return start + (end - start) * epoch / (epochs - 1)
