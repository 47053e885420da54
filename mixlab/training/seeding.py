"""Everything random in a step is a function of seed and step: a restarted run draws what it would have drawn."""

import random

import numpy as np
import torch


def seed_for(*parts: int) -> int:
    """One 63-bit seed from whole numbers such as (seed, step); other numbers, other seed."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0]) >> 1


def seed_all(*parts: int) -> None:
    """Seed the generators of torch (every device), NumPy and Python."""
    seed = seed_for(*parts)
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  the global generator, for libraries that draw from it
    random.seed(seed)
