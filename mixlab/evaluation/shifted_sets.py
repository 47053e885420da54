"""ImageNet-V2, Sketch, A, R, ReaL and plain validation as released: their folders and their labels.

What does not fit (folders that are not a class, unreadable images, classes the classifier does not know) is
named and counted, and the rest is scored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from mixlab.data.imagenet_labels import (
    NUM_VAL,
    imagenet_a_classes,
    imagenet_classes,
    imagenet_r_classes,
    real_labels,
    val_number,
)
from mixlab.data.images import ImageFolder
from mixlab.data.source import Subset
from mixlab.errors import InputError, counted, few
from mixlab.evaluation.accuracy import Accuracy


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
    "val": RobustSet("val", ("val", "validation"), imagenet_classes, NUM_VAL),
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
    answers: str = ""  # the number of each image with + for right and - for wrong: "12+ 13-"

    @property
    def accuracy(self) -> Accuracy:
        answers = sorted((int(each[:-1]), each[-1] == "+") for each in self.answers.split())
        if len(answers) < self.n:  # parts of an older version kept none
            return Accuracy(self.correct, self.n)
        return Accuracy.of([right for _, right in answers])

    def take(self, number: int, right: bool) -> None:
        """The answer of one image."""
        self.correct, self.n = self.correct + right, self.n + 1
        self.answers += f" {number}{'+' if right else '-'}"

    def add(self, other: SetScore) -> None:
        """Another part of the same set. What was left out before images were read is the whole set's in every part."""
        self.correct, self.n = self.correct + other.correct, self.n + other.n
        self.answers = f"{self.answers} {other.answers}"
        self.unreadable |= other.unreadable

    def notes(self) -> list[str]:
        """A sentence for each thing that was left out."""
        title, found = SETS[self.name].title, []
        if self.strange_folders:
            found.append(_left_out(self.strange_folders, "folder", "folders", f"without a class of {title}"))
        if self.unknown_classes:
            found.append(_left_out(self.unknown_classes, "class", "classes", "that the classifier does not know"))
        if self.absent_classes:
            absent = counted(self.absent_classes, "class has", "classes have")
            found.append(f"{absent} no image: {few(self.absent_classes)}")
        if self.unreadable:
            found.append(f"{counted(self.unreadable, 'image', 'images')} cannot be read: {few(self.unreadable)}")
        if self.unnamed:
            what = "whose file names do not say which validation image they are"
            found.append(_left_out(self.unnamed, "folder", "folders", what))
        if self.unlabelled:
            unlabelled = counted(self.unlabelled, "image has no ReaL label and is", "images have no ReaL label and are")
            found.append(f"{unlabelled} left out, as defined")
        return [f"{title}: {sentence}" for sentence in found]


def find_sets(root: Path) -> dict[str, Path]:
    """The sets among the sub-folders of a folder, by their released names; the folder itself if it is a val set."""
    if not root.is_dir():
        raise FileNotFoundError(
            f"{root} is not a folder; give one that holds imagenet-a, sketch, val, ..., or NAME=FOLDER; other images "
            "with --shifts, corrupted"
        )
    here = {part.name.lower(): part for part in root.iterdir() if part.is_dir()}
    for wrapper in ("imagenet", "imagenetv2"):  # imagenet/val, and the three of V2 in a folder of their own
        if wrapper in here:
            inner = {part.name.lower(): part for part in here[wrapper].iterdir() if part.is_dir()}
            here = inner | here
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
        raise FileNotFoundError(
            f"{root} holds none of {names}; give NAME=FOLDER with NAME among {', '.join(SETS)}, or, for images of your "
            f"own that are then corrupted, --shifts {root} instead of --data"
        )
    return found


class SetImages(Subset[Tensor]):
    """The images of a set that a classifier of these classes can be asked about, and the right outputs for each."""

    def __init__(self, name: str, folder: Path, classes: Sequence[str]) -> None:
        """`folder` is where its class folders are: see `class_root`."""
        robust_set = SETS[name]
        source = ImageFolder(folder)
        self.score = SetScore(name)
        outputs = {synset: number for number, synset in enumerate(classes)}
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
                f"{self._advice()} {' '.join(self.score.notes())}"
            )

    def label(self, index: int) -> int:
        return min(self.answers[index])

    def labels(self) -> Tensor:
        return torch.tensor([min(right) for right in self.answers], dtype=torch.int64)

    def _advice(self) -> str:
        """What to do where no image can be scored."""
        if self.score.unnamed:
            return (
                "It needs ImageNet-1k's validation images under their own names, such as ILSVRC2012_val_00000001.JPEG: "
                "unpack ILSVRC2012_img_val.tar again and keep the names."
            )
        if [*self.score.strange_folders] == ["."]:
            return (
                "All images lie in one folder: sort them into class folders; `mixlab reproduce ITEM --root` does that "
                "for ImageNet-1k by links."
            )
        return "Give the folder that its archive unpacks."

    def _real_synsets(self, path: str, folder: str) -> list[str | None]:
        """Everything that is in a validation image, by its file name; its folder does not matter."""
        number = val_number(path)
        if number is None:
            _count(self.score.unnamed, folder)
            return []
        if not real_labels()[number]:
            self.score.unlabelled += 1
        return [imagenet_classes()[label] for label in sorted(real_labels()[number])]


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


def _left_out(counts: dict[str, int], one: str, several: str, what: str) -> str:
    images = counted(sum(counts.values()), "image", "images")
    return f"{images} in {counted(counts, one, several)} {what}: {few(counts)}"
