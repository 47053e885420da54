"""Few labels: a small share of every class, the same images for the same seed."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from mixlab.data.source import ImageSource, Subset
from mixlab.errors import InputError


def few_labels(labels: Tensor, share: float, *, seed: int = 0) -> list[int]:
    """Indexes of `share` of each class, at least one image of each, rising; labels are int64 (n,).

    A class keeps the first of its own shuffled order, so that 1 % of a set is part of its 10 %.
    """
    if not 0 < share <= 1:
        raise InputError(f"a share of {share} is no part of a set; give a number above 0 and up to 1, such as 0.01")
    values = labels.cpu().numpy()
    chosen = []
    for number in np.unique(values):
        members = np.flatnonzero(values == number)
        kept = max(1, int(share * len(members) + 0.5))
        chosen.append(np.random.default_rng([seed, int(number)]).permutation(members)[:kept])
    return np.sort(np.concatenate(chosen)).tolist() if chosen else []


def label_subset(source: ImageSource, share: float, *, seed: int = 0) -> ImageSource:
    """The images of a source that may be used with their labels."""
    if share == 1:
        return source
    return Subset(source, few_labels(source.labels(), share, seed=seed))
