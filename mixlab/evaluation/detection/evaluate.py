"""A detector's answers on a source, over all ranks, and their average precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import torch

from mixlab.data.dense_batches import ObjectReader, Resizing
from mixlab.data.loader import BatchLoader
from mixlab.data.objects import ObjectSource, instances_file
from mixlab.data.sample_order import SampleOrder
from mixlab.data.source import Subset
from mixlab.evaluation.detection.average_precision import Kind, average_precision
from mixlab.evaluation.detection.detections import to_results
from mixlab.evaluation.detection.detector import Detector, to_input
from mixlab.training.distributed import World, from_all, from_first
from mixlab.training.precision import Precise
from mixlab.training.stopping import never, until_stopped


@dataclass(frozen=True)
class DetectionAnswers:
    """COCO results of all ranks, by image; what could not be read, and why."""

    results: list[dict[str, Any]]
    unreadable: dict[str, str]  # paths and reasons

    def lacks(self, file_name: str) -> bool:
        """Whether this image could not be read."""
        return any(path == file_name or path.endswith(f"/{file_name}") for path in self.unreadable)


@dataclass(frozen=True)
class DetectionScores:
    """COCO's figures for boxes and masks; None where there was nothing to find."""

    figures: dict[str, dict[str, float | None]]
    classes: dict[str, dict[str, float | None]]
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
    """Detect on every image of a source, shared out over the ranks; every rank gets all answers.

    `stopped` is as in `Scores`.
    """
    was_training = detector.training
    detector.eval()
    own = Subset(source, by_orientation(source)[world.rank :: world.size])
    results: list[dict[str, Any]] = []
    reasons: dict[str, str] = {}
    loader = None
    if len(own):
        loader = BatchLoader(
            ObjectReader(own, resizing, augment=False),
            SampleOrder(len(own), min(batch, len(own)), shuffle=False, drop_last=False),
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
            results += to_results(
                one, image_id=own.load(index).number, category_ids=own.class_ids, seen=seen, own=tuple(size)
            )
        progress(len(images.indexes))
    detector.train(was_training)
    everyone = from_all((results, reasons))
    together = [entry for part, _ in everyone for entry in part]
    return DetectionAnswers(
        sorted(together, key=lambda entry: (entry["image_id"], -entry["score"])),
        {path: reason for _, part in everyone for path, reason in part.items()},
    )


def score_detections(source: ObjectSource, found: DetectionAnswers, *, world: World) -> DetectionScores:
    """Average precision on the images that could be read; computed once, known on every rank."""
    return from_first(_score(source, found) if world.is_first else None)  # type: ignore[return-value]


def _score(source: ObjectSource, found: DetectionAnswers) -> DetectionScores:
    truth = instances_file(source)
    unread = {image["id"] for image in truth["images"] if found.lacks(image["file_name"])}
    truth["images"] = [image for image in truth["images"] if image["id"] not in unread]
    truth["annotations"] = [entry for entry in truth["annotations"] if entry["image_id"] not in unread]
    pairs = {kind: average_precision(truth, found.results, kind) for kind in get_args(Kind)}
    return DetectionScores(
        figures={kind: pair[0] for kind, pair in pairs.items()},
        classes={kind: pair[1] for kind, pair in pairs.items()},
        num_images=len(truth["images"]),
        num_objects=sum(not entry["iscrowd"] for entry in truth["annotations"]),
    )


def by_orientation(source: ObjectSource) -> list[int]:
    """All numbers, wide images first, so that batches need little padding."""
    sizes = [source.load(index).size for index in range(len(source))]
    return sorted(range(len(source)), key=lambda index: sizes[index][0] > sizes[index][1])
