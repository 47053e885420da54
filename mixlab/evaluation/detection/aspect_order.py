"""Images of one orientation in one batch, so that padding stays small."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mixlab.data.sample_order import SampleOrder
from mixlab.errors import InputError


@dataclass(frozen=True)
class AspectOrder(SampleOrder):
    """A permutation whose groups of `group` images in a row are all wide or all tall, but for the last leftovers.

    With `group` the images of a whole step, the order depends neither on the ranks nor on accumulation, and a run can
    go on with others.
    """

    tall: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool), compare=False)
    group: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.tall) != self.num_images or self.group < 1:
            raise InputError(
                f"{len(self.tall)} shapes for {self.num_images} images in groups of {self.group}: give one per image, "
                "and groups of at least 1"
            )

    def permutation(self, epoch: int) -> NDArray[np.int64]:
        order = super().permutation(epoch)
        groups: list[tuple[int, NDArray[np.int64]]] = []  # with the place of its last image, where it is complete
        rest: list[NDArray[np.int64]] = []
        for places in (np.flatnonzero(~self.tall[order]), np.flatnonzero(self.tall[order])):
            whole = len(places) // self.group * self.group
            groups += [(int(part[-1]), part) for part in places[:whole].reshape(-1, self.group)]
            rest.append(places[whole:])
        complete = [part for _, part in sorted(groups, key=lambda pair: pair[0])]
        return order[np.concatenate([*complete, np.sort(np.concatenate(rest))])]
