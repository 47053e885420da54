"""Accuracy under distribution shift: ImageNet-V2, Sketch, A, R, ReaL and plain validation, as they are released.

Whatever does not fit (folders that are no class, images that cannot be read, classes the classifier does not know) is
named and counted, and the rest is scored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mixlab.data.imagenet_labels import (
    imagenet_a_classes,
    imagenet_classes,
    imagenet_r_classes,
    real_labels,
    val_number,
)
from mixlab.data.images import ImageFolder
from mixlab.data.labelled import few
from mixlab.data.source import Subset, evenly_spaced
from mixlab.errors import InputError
from mixlab.evaluation.accuracy import Accuracy
from mixlab.evaluation.classifier import NamedClassifier
from mixlab.evaluation.machine import Machine, PrecisionChoice, PrecisionInUse, precision_in_use, run_precision
from mixlab.evaluation.paper import robustness_figure
from mixlab.run import Measurement
from mixlab.run.protocols import RobustnessProtocol
from mixlab.training.distributed import from_all
from mixlab.training.precision import Precise

# What parts of one evaluation have in common, and what to call it
ALIKE = {"subject": "subject", "checksum": "classifier", "limit": "limit", "view": "view", "counts": "choice of sets"}


@dataclass(frozen=True)
class RobustSet:
    """One set: how its folders are named, which classes it holds, and how many images are in the released one."""

    title: str
    folders: tuple[str, ...]  # what people and archives call it
    classes: Callable[[], tuple[str, ...]]
    num_images: int
    numbered: bool = False  # folders 0 to 999 instead of synsets
    label_sets: bool = False  # ReaL: several labels per image, or none

    def class_of(self, folder: str) -> str | None:
        """The synset that a folder stands for; None if it is none of this set's."""
        if self.numbered:
            known = self.classes()
            return known[int(folder)] if folder.isdecimal() and int(folder) < len(known) else None
        return folder if folder in self.classes() else None

    @property
    def layout(self) -> str:
        return "folders 0 to 999" if self.numbered else f"folders named by synset, such as {self.classes()[0]}"


SETS: dict[str, RobustSet] = {
    "val": RobustSet("val", ("val", "validation"), imagenet_classes, 50_000),
    "v2-mf": RobustSet("V2 MF", ("imagenetv2-matched-frequency-format-val", "imagenetv2-matched-frequency"),
                       imagenet_classes, 10_000, numbered=True),
    "v2-t07": RobustSet("V2 T0.7", ("imagenetv2-threshold0.7-format-val", "imagenetv2-threshold0.7"),
                        imagenet_classes, 10_000, numbered=True),
    "v2-ti": RobustSet("V2 TI", ("imagenetv2-top-images-format-val", "imagenetv2-top-images"),
                       imagenet_classes, 10_000, numbered=True),
    "sketch": RobustSet("Sketch", ("sketch", "imagenet-sketch", "ImageNet-Sketch"), imagenet_classes, 50_889),
    "a": RobustSet("A", ("imagenet-a",), imagenet_a_classes, 7_500),
    "r": RobustSet("R", ("imagenet-r",), imagenet_r_classes, 30_000),
    "real": RobustSet("ReaL", (), imagenet_classes, 46_837, label_sets=True),  # on the images of val
}  # fmt: skip


@dataclass
class SetScore:
    """What became of one set: how many are right, and all that was left out."""

    name: str
    correct: int = 0
    n: int = 0
    strange_folders: dict[str, int] = field(default_factory=dict)  # no class of the set: images
    unknown_classes: dict[str, int] = field(default_factory=dict)  # the classifier does not know them: images
    absent_classes: list[str] = field(default_factory=list)  # of the set, without an image
    unreadable: dict[str, str] = field(default_factory=dict)
    unlabelled: int = 0  # ReaL: images without a label
    unnamed: dict[str, int] = field(default_factory=dict)  # ReaL: folders with images whose name gives no number

    @property
    def accuracy(self) -> Accuracy:
        return Accuracy(self.correct, self.n)

    def add(self, other: SetScore) -> None:
        """Another part of the same set. What was left out before images were read is the whole set's in every part."""
        self.correct, self.n = self.correct + other.correct, self.n + other.n
        self.unreadable |= other.unreadable

    def notes(self) -> list[str]:
        """A sentence for each thing that was left out."""
        title, found = SETS[self.name].title, []
        if self.strange_folders:
            found.append(_left_out(self.strange_folders, f"folders that are no class of {title}"))
        if self.unknown_classes:
            found.append(_left_out(self.unknown_classes, "classes that the classifier does not know"))
        if self.absent_classes:
            found.append(f"{len(self.absent_classes)} classes have no image: {few(self.absent_classes)}")
        if self.unreadable:
            found.append(f"{len(self.unreadable)} images cannot be read: {few(self.unreadable)}")
        if self.unnamed:
            found.append(_left_out(self.unnamed, "folders whose file names do not say which validation image they are"))
        if self.unlabelled:
            found.append(f"{self.unlabelled} images have no ReaL label and are left out, as defined")
        return [f"{title}: {sentence}" for sentence in found]


def find_sets(root: Path) -> dict[str, Path]:
    """The sets among the sub-folders of a folder, by their released names; the folder itself if it is a val set."""
    if not root.is_dir():
        raise FileNotFoundError(
            f"{root} is not a folder; give one that holds imagenet-a, sketch, val, ..., or NAME=FOLDER"
        )
    here = {part.name.lower(): part for part in root.iterdir() if part.is_dir()}
    found = {}
    for name, robust_set in SETS.items():
        folder = next((here[wanted.lower()] for wanted in robust_set.folders if wanted.lower() in here), None)
        if folder is not None:
            found[name] = folder
    if not found and set(here) & set(imagenet_classes()):
        found["val"] = root
    if "val" in found:
        found["real"] = found["val"]
    if not found:
        names = ", ".join(robust_set.folders[0] for robust_set in SETS.values() if robust_set.folders)
        raise FileNotFoundError(f"{root} holds none of {names}; give NAME=FOLDER with NAME among {', '.join(SETS)}")
    return found


class SetImages(Subset[Tensor]):
    """The images of a set that a classifier can be asked about, `answers` being the right outputs of each."""

    def __init__(self, name: str, folder: Path, classifier: NamedClassifier) -> None:
        robust_set = SETS[name]
        source = ImageFolder(class_root(folder, robust_set))
        self.score = SetScore(name)
        outputs = {synset: number for number, synset in enumerate(classifier.classes)}
        members = [outputs[synset] for synset in robust_set.classes() if synset in outputs]
        self.outputs = torch.tensor(sorted(members), dtype=torch.int64)  # logits are restricted to these
        answers: dict[int, frozenset[int]] = {}
        seen = Counter[str | None]()
        for index, path in enumerate(source.paths):
            top = path.split("/", 1)[0] if "/" in path else "."
            synsets = self._real_synsets(path, top) if robust_set.label_sets else [robust_set.class_of(top)]
            if None in synsets:
                _count(self.score.strange_folders, top)
                continue
            seen.update(synsets)
            right = frozenset(outputs[synset] for synset in synsets if synset in outputs)
            if right:
                answers[index] = right
            elif synsets:
                _count(self.score.unknown_classes, str(synsets[0]))
        self.score.absent_classes = [synset for synset in robust_set.classes() if not seen[synset]]
        super().__init__(source, list(answers))
        self.answers = list(answers.values())
        if not answers:
            raise InputError(
                f"{folder} has no image that can be scored as {robust_set.title}, which has {robust_set.layout}. "
                + " ".join(self.score.notes())
            )

    def label(self, index: int) -> int:
        return min(self.answers[index])

    def _real_synsets(self, path: str, folder: str) -> list[str | None]:
        """Everything that is in a validation image, by its file name; its folder does not matter."""
        number = val_number(path)
        if number is None:
            _count(self.score.unnamed, folder)
            return []
        if not real_labels()[number]:
            self.score.unlabelled += 1
        return [imagenet_classes()[label] for label in sorted(real_labels()[number])]


@dataclass(frozen=True)
class RobustnessResult:
    """Scores of a classifier on sets, or those of one part of their images (`part` of `num_parts`)."""

    classifier: NamedClassifier
    protocol: RobustnessProtocol  # of all sets; data is each set's own
    scores: dict[str, SetScore]
    part: int = 0
    num_parts: int = 1

    @property
    def measurements(self) -> list[Measurement]:
        """One for each shifted set; none of a part, and none of plain validation, which is no shift."""
        return [
            Measurement.of(
                "robust_top1",
                score.accuracy.estimate,
                subject=self.classifier.subject,
                protocol=replace(self.protocol, data=f"imagenet-{name}"),
                seed=self.classifier.seed,
            )
            for name, score in self.scores.items()
            if name != "val" and self.num_parts == 1 and score.n
        ]

    def to_json(self) -> dict[str, Any]:
        """Of a part the counts alone: `join_parts` makes the figures."""
        result = {
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
        records = [found.to_json() for found in self.measurements]
        return result | {"sets": {name: self._set_json(name) for name in self.scores}, "measurements": records}

    def _set_json(self, name: str) -> dict[str, Any]:
        score, subject = self.scores[name], self.classifier.subject
        complete = score.n == SETS[name].num_images
        paper = robustness_figure(subject.model, name) if complete and subject.training == "dino" else None
        return {**score.accuracy.to_json(), "complete": complete, "paper": paper, "notes": score.notes()}


def evaluate_robustness(
    classifier: NamedClassifier,
    folders: Mapping[str, Path] | Path,
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
    machine = machine or Machine.of(classifier.network)
    world = machine.world
    scores: dict[str, SetScore] = {}
    for name, folder in (find_sets(folders) if isinstance(folders, Path) else folders).items():
        with machine.bar(SETS[name].title, SETS[name].num_images) as step:
            own = score_set(
                name,
                folder,
                classifier,
                machine=machine,
                limit=limit,
                shard=(part * world.size + world.rank, num_parts * world.size),
                precise=run_precision(precision, world.device),
                progress=step,
            )
        scores[name], *rest = from_all(own)
        for other in rest:
            scores[name].add(other)
    protocol = robustness_protocol(classifier, limit=limit, precision=precision_in_use(precision, world.device))
    return RobustnessResult(classifier, protocol, scores, part, num_parts)


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
    progress: Callable[[int], None] = lambda count: None,
) -> SetScore:
    """Score one set, or `shard` (i, n) of it: every n-th image from the i-th on, after the limit."""
    images = SetImages(name, folder, classifier)
    score, device = images.score, machine.world.device
    numbers = evenly_spaced(len(images), limit)[shard[0] :: shard[1]]
    if not numbers:
        return score
    wanted = Subset(images, numbers)
    on_gpu = device.type == "cuda"
    loader = classifier.view.loader(wanted, batch=machine.batch, workers=machine.workers, pin_memory=on_gpu)
    outputs = images.outputs.to(device)
    for found in loader:
        with precise():
            logits = classifier.logits(found.images.to(device)).float()
        predicted = outputs[logits[:, outputs].argmax(-1)].tolist()
        for index, answer in zip(found.indexes.tolist(), predicted, strict=True):
            score.correct += answer in images.answers[numbers[index]]
        score.n += len(predicted)
        progress(len(predicted))
    score.unreadable = dict(loader.skipped.reasons)
    return score


def _aspect(result: dict[str, Any], key: str) -> Any:
    return list(result["counts"]) if key == "counts" else result.get(key)


def class_root(folder: Path, robust_set: RobustSet) -> Path:
    """Where the class folders are: here, or below folders that an archive wrapped around them."""
    inner = folder
    while True:
        parts = [part for part in inner.iterdir() if part.is_dir() and not part.name.startswith(".")]
        if any(robust_set.class_of(part.name) for part in parts):
            return inner
        if len(parts) != 1:
            return folder
        inner = parts[0]


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def _left_out(counts: dict[str, int], what: str) -> str:
    return f"{sum(counts.values())} images in {len(counts)} {what}: {few(counts)}"
