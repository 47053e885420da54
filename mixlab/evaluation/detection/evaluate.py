"""Detections on a source, over all ranks, in COCO's results format, and their average precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from mixlab.data.coco import box_as_coco, encode_mask
from mixlab.data.dense_batches import ObjectReader, Resizing
from mixlab.data.loader import BatchLoader
from mixlab.data.objects import ObjectSource, instances_file, scale_boxes
from mixlab.data.sample_order import SampleOrder
from mixlab.data.source import Subset
from mixlab.evaluation.detection.average_precision import Interval, Kind, average_precision, precision_interval
from mixlab.evaluation.detection.detector import Detections, Detector, to_input
from mixlab.training.distributed import World, entries_of_all, from_all, from_first
from mixlab.training.precision import Precise
from mixlab.training.stopping import never, until_stopped


def paste_masks(
    masks: Tensor, boxes: Tensor, height: int, width: int, *, soft_edges: bool = False, threshold: float = 0.5
) -> Tensor:
    """Masks (N, M, M) over their boxes (N, 4) -> bool (N, height, width): each pixel's centre looked up in the mask.

    With `soft_edges` there is 0 around a mask: from the middle of its outer cells it fades towards the edge of its box.
    """
    padding = "zeros" if soft_edges else "border"
    rows = torch.arange(height, device=boxes.device) + 0.5
    columns = torch.arange(width, device=boxes.device) + 0.5
    pasted = torch.zeros(len(masks), height, width, dtype=torch.bool, device=boxes.device)
    for number, (mask, box) in enumerate(zip(masks.float(), boxes.float(), strict=True)):  # one at a time: H x W each
        left, top, right, bottom = box
        x = (columns - left) / (right - left).clamp(min=1e-6) * 2 - 1  # the mask spans -1 to 1
        y = (rows - top) / (bottom - top).clamp(min=1e-6) * 2 - 1
        grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)  # (height, width, 2)
        values = grid_sample(mask[None, None], grid[None], padding_mode=padding, align_corners=False)[0, 0]
        inside = (x.abs() <= 1)[None, :] & (y.abs() <= 1)[:, None]
        pasted[number] = (values >= threshold) & inside
    return pasted


def to_results(
    found: Detections,
    *,
    image_id: int,
    category_ids: Sequence[int],
    seen: tuple[int, int],
    own: tuple[int, int],
    soft_edges: bool,
) -> list[dict[str, Any]]:
    """One entry per detection. `seen` is the image's (height, width) as the network saw it, `own` its own."""
    boxes = scale_boxes(found.boxes, old=seen, new=own)
    masks = paste_masks(found.masks, boxes, *own, soft_edges=soft_edges).cpu()
    return [
        {
            "image_id": image_id,
            "category_id": category_ids[kind],
            "bbox": box_as_coco(box),
            "score": score,
            "segmentation": encode_mask(mask),
        }
        for box, score, kind, mask in zip(
            boxes.tolist(), found.scores.tolist(), found.classes.tolist(), masks, strict=True
        )
    ]


@dataclass(frozen=True)
class DetectionAnswers:
    """COCO results of all ranks, by image; which images were read, and what could not be, and why."""

    results: list[dict[str, Any]]
    read: frozenset[int]  # numbers of images
    unreadable: dict[str, str]  # paths and reasons


@dataclass(frozen=True)
class DetectionScores:
    """COCO's metrics for boxes and masks; None where there was nothing to detect."""

    values: dict[str, dict[str, float | None]]
    classes: dict[str, dict[str, float | None]]
    intervals: dict[str, Interval]  # of the AP, 95 %, over images; None where it was not asked for
    num_images: int
    num_objects: int


@torch.no_grad()
def find_objects(
    detector: Detector,
    source: ObjectSource,
    resizing: Resizing,
    *,
    batch: int,
    world: World,
    precise: Precise,
    workers: int = 0,
    progress: Callable[[int], None] = lambda number: None,
    stopped: Callable[[], bool] = never,
) -> DetectionAnswers:
    """Detect on every image of a source, split across the ranks; every rank gets all detections.

    `stopped` is as in `Scores`.
    """
    was_training = detector.training
    detector.eval()
    own = Subset(source, by_orientation(source)[world.rank :: world.size])
    results: list[dict[str, Any]] = []
    read: set[int] = set()
    reasons: dict[str, str] = {}
    loader = None
    if len(own):
        loader = BatchLoader(
            ObjectReader(own, resizing, augment=False),
            SampleOrder.in_turn(len(own), batch),
            num_workers=workers,
            unreadable="drop",
            skip_limit=1.0,
        )
        reasons = loader.skipped.reasons
    for images in until_stopped(loader or (), stopped):
        images = images.to(world.device)
        with precise():
            found = detector.detect(to_input(images, detector.pyramid.backbone), images.shapes())
        sizes = zip(images.shapes(), images.own_sizes.tolist(), strict=True)
        for index, one, (seen, size) in zip(images.indexes.tolist(), found, sizes, strict=True):
            number = own.load(index).number
            read.add(number)
            results += to_results(
                one,
                image_id=number,
                category_ids=own.class_ids,
                seen=seen,
                own=tuple(size),
                soft_edges=detector.regions.rules.soft_edges,
            )
        progress(len(images.indexes))
    detector.train(was_training)
    every = [entry for part in from_all(results) for entry in part]
    return DetectionAnswers(
        sorted(every, key=lambda entry: (entry["image_id"], -entry["score"])),
        frozenset().union(*from_all(read)),
        entries_of_all(reasons),
    )


def score_detections(
    source: ObjectSource, found: DetectionAnswers, *, world: World, intervals: bool = False
) -> DetectionScores:
    """Average precision on the images that could be read; computed once, known on every rank.

    Intervals for COCO's 5,000 validation images take a few minutes.
    """
    return from_first(_score(source, found, intervals) if world.is_first else None)  # type: ignore[return-value]


def _score(source: ObjectSource, found: DetectionAnswers, intervals: bool) -> DetectionScores:
    truth = instances_file(source)
    truth["images"] = [image for image in truth["images"] if image["id"] in found.read]
    truth["annotations"] = [entry for entry in truth["annotations"] if entry["image_id"] in found.read]
    pairs = {kind: average_precision(truth, found.results, kind) for kind in get_args(Kind)}
    return DetectionScores(
        values={kind: pair[0] for kind, pair in pairs.items()},
        classes={kind: pair[1] for kind, pair in pairs.items()},
        intervals={kind: precision_interval(truth, found.results, kind) if intervals else None for kind in pairs},
        num_images=len(truth["images"]),
        num_objects=sum(not entry["iscrowd"] for entry in truth["annotations"]),
    )


def by_orientation(source: ObjectSource) -> list[int]:
    """All numbers, wide images first, so that batches need little padding."""
    sizes = [source.load(index).size for index in range(len(source))]
    return sorted(range(len(source)), key=lambda index: sizes[index][0] > sizes[index][1])
