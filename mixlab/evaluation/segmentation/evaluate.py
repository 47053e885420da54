"""Label maps of a whole set against the truth, over any number of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from mixlab.data.dense_batches import WholeReader
from mixlab.data.loader import BatchLoader
from mixlab.data.masks import MaskedImage, MaskSource
from mixlab.data.sample_order import SampleOrder
from mixlab.evaluation.segmentation.inference import Predictor
from mixlab.evaluation.segmentation.metrics import ConfusionMatrix, SegmentationScores, scores_of
from mixlab.training.distributed import World, from_all
from mixlab.training.stopping import never, until_stopped

BATCH = 16
MOST_PIXELS = 2**20  # in one pass
MOST_GROUPS = 200  # of images, for the interval


def score_label_maps(
    predictor: Predictor,
    source: MaskSource,
    *,
    world: World,
    workers: int = 0,
    step: Callable[[int], None] = lambda count: None,
    stopped: Callable[[], bool] = never,
) -> tuple[SegmentationScores, dict[str, str]]:
    """Scores over all images of all processes, and what could not be read, by name.

    `step` is told how many more images of this process are done; `stopped` is as in `Scores`.
    """
    num_groups = min(MOST_GROUPS, len(source))
    matrix = ConfusionMatrix(len(source.classes), num_groups=num_groups, device=world.device)
    share = -(-len(source) // world.size)
    loader = BatchLoader(
        WholeReader(source),
        SampleOrder(
            len(source), min(BATCH, share), rank=world.rank, world_size=world.size, shuffle=False, drop_last=False
        ),
        num_workers=workers,
        unreadable="drop",
        skip_limit=1.0,
    )
    passes = ((batch, places) for batch in loader for places in same_size(batch.pairs))
    for batch, places in until_stopped(passes, stopped):
        images, masks = (
            torch.stack([getattr(batch.pairs[place], part) for place in places]).to(world.device)
            for part in ("image", "mask")
        )
        for place, found, truth in zip(places, predictor(images), masks, strict=True):
            matrix.update(found, truth, group=int(batch.indexes[place]) % num_groups)
        step(len(places))
    skipped = {path: reason for part in from_all(loader.skipped.reasons) for path, reason in part.items()}
    return scores_of(matrix.compute()), skipped


def same_size(pairs: Sequence[MaskedImage]) -> Iterator[list[int]]:
    """The places of pairs of one size together, as many as go into one pass."""
    groups: dict[torch.Size, list[int]] = {}
    for place, pair in enumerate(pairs):
        groups.setdefault(pair.mask.shape, []).append(place)
    for shape, group in groups.items():
        most = max(MOST_PIXELS // shape.numel(), 1)
        yield from (group[first : first + most] for first in range(0, len(group), most))
