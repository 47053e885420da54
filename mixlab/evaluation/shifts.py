"""Corruptions of validation images: grey, blurred, noisy, pale, or edges only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mixlab.choices import PrecisionChoice
from mixlab.data.given import AnyData, as_data
from mixlab.data.images import parse_source
from mixlab.data.source import ImageSource, Subset, at_most
from mixlab.data.transforms import to_grey
from mixlab.errors import InputError
from mixlab.evaluation.accuracy import Accuracy
from mixlab.evaluation.classifier import NamedClassifier, check_classifier
from mixlab.evaluation.machine import Machine, precision_in_use, run_precision
from mixlab.evaluation.robustness import robustness_protocol
from mixlab.run import Measurement
from mixlab.run.protocols import RobustnessProtocol
from mixlab.statistics import Estimate, bootstrap_mean
from mixlab.training.distributed import from_all, once_per_machine
from mixlab.training.precision import Precise
from mixlab.training.recipe import seed_for

Shift = Callable[[Tensor, Sequence[int]], Tensor]  # pixels (B, 3, S, S) in [0, 1], and the numbers of the images


def _grey(x: Tensor, _: Sequence[int]) -> Tensor:
    return to_grey(x)[:, None].expand_as(x)


def _blur(x: Tensor, _: Sequence[int]) -> Tensor:
    """As wide at any size: a fortieth of the side."""
    sigma = x.shape[-1] / 40
    reach = int(3 * sigma) + 1
    away = torch.arange(-reach, reach + 1, device=x.device, dtype=x.dtype)
    weights = torch.softmax(-0.5 * (away / sigma) ** 2, 0)
    for kernel in (weights[:, None], weights[None]):
        padded = F.pad(x, (reach * (kernel.shape[1] > 1),) * 2 + (reach * (kernel.shape[0] > 1),) * 2, mode="replicate")
        x = F.conv2d(padded, kernel.expand(3, 1, -1, -1), groups=3)
    return x


def _noise(x: Tensor, numbers: Sequence[int]) -> Tensor:
    """Each image has its own, whatever is beside it."""
    generators = (torch.Generator().manual_seed(seed_for(number)) for number in numbers)
    return x + 0.1 * torch.stack([torch.randn(x.shape[1:], generator=own) for own in generators]).to(x)


def _pale(x: Tensor, _: Sequence[int]) -> Tensor:
    return 0.5 + 0.3 * (x - 0.5)


def _edges(x: Tensor, _: Sequence[int]) -> Tensor:
    """Dark lines on white where lightness changes: a drawing of sorts."""
    light = F.pad(to_grey(x)[:, None], (1, 1, 1, 1), mode="replicate")
    across = light[..., 1:-1, 2:] - light[..., 1:-1, :-2]
    down = light[..., 2:, 1:-1] - light[..., :-2, 1:-1]
    return (1 - 2 * (across**2 + down**2).sqrt()).expand_as(x)


PLAIN, MEAN = "plain", "mean"
SHIFTS: dict[str, Shift] = {"grey": _grey, "blur": _blur, "noise": _noise, "pale": _pale, "edges": _edges}


@dataclass(frozen=True)
class ShiftScores:
    """Correct predictions on some images, unchanged (PLAIN) and under every corruption."""

    numbers: Tensor  # of the images in their source, int64 (n,)
    right: dict[str, Tensor]  # bool (n,)
    unreadable: dict[str, str]

    @classmethod
    def together(cls, parts: Sequence[ShiftScores]) -> ShiftScores:
        """Those of all ranks, in the order of the images."""
        numbers, order = torch.cat([part.numbers for part in parts]).sort()
        right = {name: torch.cat([part.right[name] for part in parts])[order] for name in parts[0].right}
        return cls(numbers, right, {path: why for part in parts for path, why in part.unreadable.items()})


@dataclass(frozen=True)
class ShiftResult:
    """A classifier's accuracy on images as they are, under each change, and on average over the changes."""

    classifier: NamedClassifier
    protocol: RobustnessProtocol  # of all changes; `change` is each one's own
    scores: ShiftScores

    @property
    def accuracies(self) -> dict[str, Accuracy]:
        return {name: Accuracy.of(hits) for name, hits in self.scores.right.items()}

    @property
    def mean(self) -> Estimate:
        """Over the changes; its interval is over images."""
        changed = [hits.double() for name, hits in self.scores.right.items() if name != PLAIN]
        return bootstrap_mean(torch.stack(changed).mean(0), low=0.0, high=1.0)

    @property
    def measurements(self) -> list[Measurement]:
        """One for each change, and their mean."""
        changes = {name: score.estimate for name, score in self.accuracies.items() if name != PLAIN}
        return [
            Measurement.of(
                "shifted_top1" if name == MEAN else "shift_top1",
                estimate,
                subject=self.classifier.subject,
                protocol=replace(self.protocol, change=name),
                seed=self.classifier.seed,
            )
            for name, estimate in (*changes.items(), (MEAN, self.mean))
        ]

    def to_json(self) -> dict[str, Any]:
        mean = self.mean
        rows = {name: score.to_json() for name, score in self.accuracies.items()}
        return {
            "kind": "robust",
            "subject": self.classifier.describe(),
            "checksum": self.classifier.checksum,
            "limit": self.protocol.num_images,
            "view": asdict(self.classifier.view),
            "data": self.protocol.data,
            "shifts": {**rows, MEAN: {"top1": mean.value, "low": mean.low, "high": mean.high, "n": mean.n}},
            "unreadable": self.scores.unreadable,
            "measurements": [found.to_json() for found in self.measurements],
        }


def evaluate_shifts(
    classifier: NamedClassifier,
    data: AnyData,
    *,
    name: str = "",
    limit: int | None = None,
    precision: PrecisionChoice = "auto",
    machine: Machine | None = None,
) -> ShiftResult:
    """Score a classifier on images of its own classes under every change of `SHIFTS`.

    `data` is a name as for `--data` (its validation split), a source or a data set, which `name` may then describe. At
    most `limit` images, evenly spaced.
    """
    check_classifier(classifier)
    machine = machine or Machine.of(classifier.network)
    world = machine.world
    given = as_data(data)
    source = once_per_machine(world, lambda: parse_source(given, split="val"))
    own = score_shifts(
        at_most(source, limit),
        classifier,
        machine=machine,
        shard=(world.rank, world.size),
        precise=run_precision(precision, world.device),
    )
    scores = ShiftScores.together(from_all(own))
    called = name if name and not isinstance(data, str) else str(given)
    if not len(scores.numbers):
        named = next(iter(scores.unreadable))
        raise InputError(f"none of the {len(scores.unreadable)} images of {called} can be read; {named}")
    protocol = robustness_protocol(classifier, limit=limit, precision=precision_in_use(precision, world.device))
    return ShiftResult(classifier, replace(protocol, data=called), scores)


def shifted(images: Tensor, name: str, numbers: Sequence[int]) -> Tensor:
    """Pixels uint8 (B, 3, S, S) of images with these numbers, changed."""
    return (255 * SHIFTS[name](images.float() / 255, numbers).clamp(0, 1)).round().to(torch.uint8)


def score_shifts(
    images: ImageSource,
    classifier: NamedClassifier,
    *,
    machine: Machine,
    shard: tuple[int, int] = (0, 1),
    precise: Precise = nullcontext,
) -> ShiftScores:
    """Score `shard` (i, n) of the images: every n-th of those that the classifier may know, from the i-th on."""
    outputs = {name: number for number, name in enumerate(classifier.classes)}
    known = [number for number, name in enumerate(images.classes) if name in outputs]
    numbers = [index for index in range(len(images)) if images.label(index) in known]
    if not numbers:
        raise InputError(
            f"none of the classes {', '.join(images.classes[:4])} ... is among those of the classifier "
            f"({', '.join(classifier.classes[:4])} ...); give images of its own classes"
        )
    device, own = machine.world.device, numbers[shard[0] :: shard[1]]
    seen: list[int] = []
    right: dict[str, list[bool]] = {name: [] for name in (PLAIN, *SHIFTS)}
    answers = torch.tensor([outputs.get(name, -1) for name in images.classes], device=device)
    wanted, options = Subset(images, own), {"batch": machine.batch, "workers": machine.workers}
    loader = classifier.view.loader(wanted, pin_memory=device.type == "cuda", **options) if own else None
    with machine.bar("changed images", len(own)) as progress:
        for found in loader or ():  # there may be more ranks than images
            pixels, expected = found.images.to(device), answers[found.labels.to(device)]
            here = [own[index] for index in found.indexes.tolist()]
            for name, hits in right.items():
                changed = pixels if name == PLAIN else shifted(pixels, name, here)
                with precise():
                    hits += (classifier.logits(changed).argmax(-1) == expected).tolist()
            seen += here
            progress(len(pixels))
    return ShiftScores(
        torch.tensor(seen, dtype=torch.int64),
        {name: torch.tensor(hits, dtype=torch.bool) for name, hits in right.items()},
        dict(loader.skipped.reasons) if loader is not None else {},
    )
