"""Labelled images for training and validation, with one list of classes; what is wrong with their folders; and few
labels of each class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mixlab.errors import InputError, counted, few

from .given import AnyData, Data, GivenData, as_data
from .images import SPLIT_FOLDERS, ImageFolder, child, parse_source
from .listed import ListedSource
from .sample_order import check_seed
from .shapes import Shapes
from .shards import TarShards
from .source import ImageSource, Subset, split


class Relabelled(Subset[Tensor]):
    """Images of another source under the numbers of these classes; images of other classes, or of none, are left out.
    Classes are matched by name; equal lists by number, since two classes of a data set may share a name.
    """

    def __init__(self, source: ImageSource, classes: Sequence[str]) -> None:
        known = {name: number for number, name in enumerate(classes)}
        numbers = {index: known[name] for index, name in enumerate(source.classes) if name in known}
        if tuple(source.classes) == tuple(classes):
            numbers = {number: number for number in range(len(classes))}
        labels = source.labels().tolist()
        super().__init__(source, [index for index, label in enumerate(labels) if label in numbers])
        self._labels = torch.tensor([numbers[labels[index]] for index in self.indexes.tolist()], dtype=torch.int64)
        self.classes = tuple(classes)

    def label(self, index: int) -> int:
        return int(self._labels[index])

    def labels(self) -> Tensor:
        return self._labels


@dataclass(frozen=True)
class LabelledSplits:
    """Training and validation images with one list of classes."""

    train: ImageSource
    val: ImageSource
    unknown: dict[str, int] = field(default_factory=dict)  # classes of `val` that `train` lacks: images left out
    absent: tuple[str, ...] = ()  # classes of `train` that `val` has no image of
    data: str = ""  # what `labelled_splits` was given
    val_data: str | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        return self.train.classes

    def name(self, which: str) -> str:
        """The name of its "train" or "val" part."""
        return f"{' '.join(filter(None, (self.data, self.val_data)))} [{which}]"

    def notes(self) -> list[str]:
        """A sentence for each mismatch between the class lists."""
        found = []
        if self.unknown:
            number, classes = sum(self.unknown.values()), counted(self.unknown, "unknown class", "unknown classes")
            images = counted(number, "image is", "images are")
            found.append(f"{images} left out, of {classes}: {few(self.unknown)}")
        if self.absent:
            absent = counted(self.absent, "class has", "classes have")
            found.append(f"{absent} no validation image: {few(self.absent)}")
        return found


def labelled_splits(data: AnyData | LabelledSplits, *, val_data: AnyData | None = None) -> LabelledSplits:
    """The train and val splits of a source, or `split` of its only one; `val_data` is another validation set.

    `data` is a name as for `--data`, a `Source`, a data set, or a mapping of "train" and "val", see `as_data`.
    """
    if isinstance(data, LabelledSplits):
        return data
    given, other = as_data(data), None if val_data is None else as_data(val_data)
    train = parse_source(given, split="train")
    check_labels(train, str(given))
    val = parse_source(other or given, split="val")
    if other is None and not is_held_out(given, val, train):
        if len(train) < 2:
            raise InputError(f"{given} has 1 image, too few for a validation split; give at least 2")
        return LabelledSplits(*split(train), data=str(given))
    check_sorted(val, train)
    check_labels(val, f"the validation part of {other or given}")
    return replace(align(train, val), data=str(given), val_data=None if other is None else str(other))


def is_held_out(data: Data, val: ImageSource, train: ImageSource) -> bool:
    """Whether the val split of data is a set of its own, rather than the images of its train split."""
    if isinstance(data, GivenData):
        return data.val is not None
    if isinstance(train, ListedSource):  # of a run that resumes after images were removed
        return is_held_out(data, val, train.source)
    if isinstance(train, ImageFolder) and isinstance(val, ImageFolder):
        return train.root != val.root
    return isinstance(val, Shapes) or val.is_own_split


def align(train: ImageSource, val: ImageSource) -> LabelledSplits:
    """Validation images under the class numbers of the training set; what only one side has is named."""
    aligned, classes = Relabelled(val, train.classes), {*train.classes}
    counts = Counter(val.labels().tolist())
    unknown = {name: counts[index] for index, name in enumerate(val.classes) if name not in classes and counts[index]}
    if not len(aligned):
        raise InputError(
            f"no validation image belongs to a known class: found {few(val.classes)}, known are {few(train.classes)}; "
            "name the class folders alike"
        )
    found = {*aligned.labels().tolist()}
    absent = tuple(name for number, name in enumerate(train.classes) if number not in found)
    return LabelledSplits(train, aligned, unknown, absent)


def _way_to_labels(source: ImageSource) -> str:
    if isinstance(source, TarShards):
        return "put a class number beside each image in the shards (NAME.cls beside NAME.jpg)"
    return "put the images into one folder per class"


def check_labels(source: ImageSource, name: str) -> None:
    if isinstance(source, ImageFolder) and not source.classes and (misplaced := _misplaced(source, name)):
        raise InputError(misplaced)
    if not source.classes and bool((source.labels() >= 0).any()):
        raise InputError(f"{name} has labels but no class names; set `classes` of {type(source).__name__}")
    if len(source.classes) < 2:
        raise InputError(
            f"{name} has {counted(source.classes, 'class', 'classes')}; scores need labels of at least 2: "
            f"{_way_to_labels(source)}, or give (image, label) from Python"
        )
    unlabelled = int((source.labels() < 0).sum())
    if unlabelled:
        raise InputError(
            f"{unlabelled} of the {len(source)} images of {name} have no label; give each one, or leave it out"
        )


def check_sorted(val: ImageSource, train: ImageSource) -> None:
    """Refuse validation images that lie in one folder beside training images in class folders, as ImageNet unpacks."""
    if isinstance(val, ImageFolder) and not val.classes and train.classes:
        raise InputError(
            f"{val.root} is not sorted into classes: its {len(val):,} images lie in one folder. Put each into a folder "
            f"of its class, such as {val.root}/{train.classes[0]}; for ImageNet-1k `mixlab reproduce ITEM --root` does "
            "it by links, from LOC_val_solution.csv or the development kit"
        )


def check_class_folders(source: ImageSource, data: str) -> None:
    """Refuse folders whose images have no classes, or whose classes are something else. Other sources pass."""
    if not isinstance(source, ImageFolder):
        return
    root = source.root
    if not source.classes:
        raise InputError(_without_classes(source, data))
    folders = [entry for entry in sorted(root.iterdir()) if entry.is_dir() and entry.name[0] != "."]
    sets = [folder for folder in folders if all(child(folder, *names) for names in SPLIT_FOLDERS.values())]
    if sets:
        raise InputError(
            f"{root} holds data sets, not classes: {few([folder.name for folder in sets])}, with parts for training "
            f"and validation; give one of them, such as {sets[0]}"
        )
    if len(source.classes) == 1 and folders:
        inner = [entry.name for entry in sorted(folders[0].iterdir()) if entry.is_dir()]
        advice = f"move its folders ({few(inner)}) up into {root}" if inner else "add a folder for each class"
        raise InputError(f"{root} has one folder, {folders[0].name}, which is one class; {advice}")
    labelled_splits(data)  # what cannot be scored in the end is refused before it is trained on


def _without_classes(source: ImageFolder, data: str) -> str:
    root = source.root
    if misplaced := _misplaced(source, data):
        return misplaced
    missing = ""
    if root.name in SPLIT_FOLDERS["val"] and root.name != Path(data).name:
        missing = f"{root.parent} has no train/, and "
    return (
        f"{missing}the {len(source):,} images of {root} have no classes, since they lie in one folder; put each into a "
        "folder of its class, or pretrain without labels (`mixlab pretrain`)"
    )


def _misplaced(source: ImageFolder, data: str) -> str | None:
    """Why images have no class, where it is not that all lie in one folder."""
    if Path(data).expanduser().is_file():
        return f"{data} is one image, without a class; give a folder that has a sub-folder for each class"
    paths = source.paths
    folders = {paths.folders[number].split("/", 1)[0] for number in paths.run_folders.tolist()} - {""}
    loose = next((path for path in paths if "/" not in path), None)
    if loose is None or not folders:
        return None
    return (
        f"{source.root} has images beside its {len(folders):,} class folders, such as {loose}: then no image has a "
        "class; move them into their folders, or elsewhere"
    )


def label_subset(source: ImageSource, share: float, *, seed: int = 0) -> ImageSource:
    """`share` of the images of each class, at least one of each: those that may be used with their labels.

    A class keeps the first of its own shuffled order, so that 1 % of a set is part of its 10 %.
    """
    check_seed(seed)
    if not 0 < share <= 1:
        raise InputError(f"the label share is {share}; give a number above 0 and at most 1, such as 0.01")
    if share == 1:
        return source
    labels = source.labels().numpy()
    chosen: list[int] = []
    for number in np.unique(labels):
        members = np.flatnonzero(labels == number)
        kept = max(1, int(share * len(members) + 0.5))
        chosen += np.random.default_rng([seed, int(number)]).permutation(members)[:kept].tolist()
    return Subset(source, sorted(chosen))
