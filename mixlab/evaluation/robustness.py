"""A classifier's accuracy under distribution shift, on ImageNet's released sets (`shifted_sets`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mixlab.choices import PrecisionChoice
from mixlab.data.source import Subset, evenly_spaced
from mixlab.errors import check_kind
from mixlab.evaluation.classifier import RELEASED_WITH, TRAINED, NamedClassifier, check_classifier
from mixlab.evaluation.machine import Machine, PrecisionInUse, precision_in_use, run_precision
from mixlab.evaluation.paper import robustness_figure
from mixlab.evaluation.shifted_sets import SETS, SetImages, SetScore, class_root, find_sets
from mixlab.run import Measurement
from mixlab.run.protocols import AccuracyProtocol, RobustnessProtocol
from mixlab.training.distributed import from_all, once_per_machine, only_first
from mixlab.training.precision import Precise

# What parts of one evaluation have in common, and what to call it
ALIKE = {"subject": "subject", "checksum": "classifier", "limit": "limit", "view": "view", "counts": "choice of sets"}


@dataclass(frozen=True)
class RobustnessResult:
    """Scores of a classifier on sets, or those of one part of their images (`part` of `num_parts`)."""

    classifier: NamedClassifier
    protocol: RobustnessProtocol  # of all sets; data is each set's own
    scores: dict[str, SetScore]
    part: int = 0
    num_parts: int = 1
    val_data: str = ""  # of the set "val", as `mixlab train` is given it

    @property
    def measurements(self) -> list[Measurement]:
        """One for each set; none for a part. Plain validation is not shifted: there a classifier that was trained with
        its network has the accuracy that `mixlab train` measures, and a probe has no figure."""
        return [
            Measurement.of(
                "top1" if name == "val" else "robust_top1",
                score.accuracy.estimate,
                subject=self.classifier.subject,
                protocol=self._accuracy_protocol()
                if name == "val"
                else replace(self.protocol, data=f"imagenet-{name}"),
                seed=self.classifier.seed,
            )
            for name, score in self.scores.items()
            if self.num_parts == 1 and score.n and (name != "val" or self.classifier.kind in (TRAINED, RELEASED_WITH))
        ]

    def _accuracy_protocol(self) -> AccuracyProtocol:
        names = ("num_images", "image", "crop_share", "fit", "precision")
        return AccuracyProtocol(
            data=self.val_data, split="val", **{name: getattr(self.protocol, name) for name in names}
        )

    def to_json(self) -> dict[str, Any]:
        """Of a part the counts alone: `join_parts` makes the figures."""
        result: dict[str, Any] = {
            "kind": "robust",
            "subject": self.classifier.describe(),
            "checksum": self.classifier.checksum,
            "limit": self.protocol.num_images,
            "view": asdict(self.classifier.view),
            "protocol": self.protocol.to_json() | {"sets": list(self.scores), "part": [self.part, self.num_parts]},
            "counts": {name: asdict(score) for name, score in self.scores.items()},
        }
        if self.num_parts > 1:
            return result
        for counts in result["counts"].values():
            del counts["answers"]  # measurements have them
        records = [found.to_json() for found in self.measurements]
        return result | {"sets": {name: self._set_json(name) for name in self.scores}, "measurements": records}

    def _set_json(self, name: str) -> dict[str, Any]:
        score, subject = self.scores[name], self.classifier.subject
        complete = score.n == SETS[name].num_images
        paper = robustness_figure(subject.model, name) if complete and self.classifier.published else None
        return {**score.accuracy.to_json(), "complete": complete, "paper": paper, "notes": score.notes()}


def evaluate_robustness(
    classifier: NamedClassifier,
    folders: Mapping[str, Path] | str | Path,
    *,
    limit: int | None = None,
    part: int = 0,
    num_parts: int = 1,
    precision: PrecisionChoice = "auto",
    machine: Machine | None = None,
) -> RobustnessResult:
    """Score a classifier on ImageNet's shifted sets.

    `folders` are those of the sets by name (`SETS`), or one folder that holds them under their released names. At most
    `limit` images of each, evenly spaced; of these every `num_parts`-th from `part` on, to be joined by `join_parts`.
    """
    check_classifier(classifier)
    machine = machine or Machine.of(classifier.network)
    world = machine.world
    scores: dict[str, SetScore] = {}
    check_kind(folders, Mapping | str | Path, "give the folder of each set by its name, or one folder with all of them")
    place = folders
    folders = place if isinstance(place, Mapping) else only_first(lambda: find_sets(Path(place)))
    for name, folder in folders.items():
        own = score_set(
            name,
            folder,
            classifier,
            machine=machine,
            limit=limit,
            shard=(part * world.size + world.rank, num_parts * world.size),
            precise=run_precision(precision, world.device),
        )
        scores[name], *rest = from_all(own)
        for other in rest:
            scores[name].add(other)
    protocol = robustness_protocol(classifier, limit=limit, precision=precision_in_use(precision, world.device))
    val = folders.get("val", Path())
    return RobustnessResult(
        classifier, protocol, scores, part, num_parts, val_data=str(val.parent if val.name == "val" else val)
    )


def join_parts(result: RobustnessResult, stored: Iterable[dict[str, Any]]) -> tuple[RobustnessResult, dict[int, str]]:
    """A part with all others of the same evaluation among stored results (kind "robust"): the whole, or the same part
    if some are missing; these by number, with what is different in a part that is there instead, or ""."""
    own = result.to_json()
    parts = {result.part: result.scores}
    others: dict[int, str] = {}
    for other in stored:
        number, num_parts = other.get("protocol", {}).get("part", (0, 1))
        if num_parts != result.num_parts or number in parts:
            continue
        if different := [said for key, said in ALIKE.items() if _aspect(other, key) != _aspect(own, key)]:
            others[number] = ", ".join(different)
        else:
            parts[number] = {name: SetScore(**counts) for name, counts in other["counts"].items()}
    missing = {number: others.get(number, "") for number in range(result.num_parts) if number not in parts}
    if missing:
        return result, missing
    whole = {name: SetScore(**asdict(score)) for name, score in parts[0].items()}
    for number in range(1, result.num_parts):
        for name, score in parts[number].items():
            whole[name].add(score)
    return replace(result, scores=whole, part=0, num_parts=1), {}


def robustness_protocol(
    classifier: NamedClassifier, *, limit: int | None, precision: PrecisionInUse
) -> RobustnessProtocol:
    view = classifier.view
    return RobustnessProtocol(
        num_images=limit,
        limited=limit is not None,
        image=view.size,
        crop_share=view.crop_share,
        fit=view.fit,
        precision=precision,
        classifier=classifier.kind,
        classifier_weights=classifier.checksum[:16],
    )


def score_set(
    name: str,
    folder: Path,
    classifier: NamedClassifier,
    *,
    machine: Machine,
    limit: int | None = None,
    shard: tuple[int, int] = (0, 1),
    precise: Precise = nullcontext,
) -> SetScore:
    """Score one set, or `shard` (i, n) of it: every n-th image from the i-th on, after the limit."""
    root = only_first(lambda: class_root(folder, SETS[name]))
    images = once_per_machine(machine.world, lambda: SetImages(name, root, classifier.classes))
    score, device = images.score, machine.world.device
    numbers = evenly_spaced(len(images), limit)[shard[0] :: shard[1]]
    if not numbers:
        return score
    wanted = Subset(images, numbers)
    on_gpu = device.type == "cuda"
    loader = classifier.view.loader(wanted, batch=machine.batch, workers=machine.workers, pin_memory=on_gpu)
    outputs = images.outputs.to(device)
    with machine.bar(SETS[name].title, len(numbers)) as progress:
        for found in loader:
            with precise():
                logits = classifier.logits(found.images.to(device)).float()
            predicted = outputs[logits[:, outputs].argmax(-1)].tolist()
            for index, answer in zip(found.indexes.tolist(), predicted, strict=True):
                score.take(numbers[index], answer in images.answers[numbers[index]])
            progress(len(predicted))
    score.unreadable = dict(loader.skipped.reasons)
    return score


def _aspect(result: dict[str, Any], key: str) -> Any:
    return list(result["counts"]) if key == "counts" else result.get(key)
