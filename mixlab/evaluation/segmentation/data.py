"""Images with a class for every pixel: ADE20K, PASCAL VOC, folders of people's own, and the drawn shapes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from mixlab.data.mask_values import Mask, MaskValueError, read_values
from mixlab.data.masks import MaskedImage, PairedMasks
from mixlab.data.shapes import SHAPE_CLASSES, SPLITS, Shapes
from mixlab.data.source_name import parse_options, to_number
from mixlab.errors import InputError

IGNORE = 255  # in every mask here
MOST_CLASSES = 255
HELD_OUT = 5  # without a split of its own, every fifth image is held out
VOC_CLASSES = ("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
               "dining table", "dog", "horse", "motorbike", "person", "potted plant", "sheep", "sofa", "train",
               "television")  # fmt: skip
_IMAGES = ("images", "JPEGImages")
_SPLIT_FOLDERS = {"train": ("training", "train"), "val": ("validation", "val")}


class LabelMaps(ABC):
    """Numbered images with masks uint8 (H, W) of class numbers; 255 is not counted."""

    classes: tuple[str, ...]

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def load(self, index: int) -> MaskedImage:
        """One pair; `UnreadableImage` where the image or the mask is no good."""

    @abstractmethod
    def name(self, index: int) -> str:
        """What to call this image in a log."""


class PairedLabels(LabelMaps):
    """Some of the pairs of two folders."""

    def __init__(self, pairs: PairedMasks, classes: tuple[str, ...], indexes: Sequence[int]) -> None:
        if not indexes:
            raise InputError(f"no pairs are left of {len(pairs)} in {pairs.pairs[0][0].parent}; check the split's list")
        self.pairs, self.classes, self.indexes = pairs, classes, list(indexes)

    def __len__(self) -> int:
        return len(self.indexes)

    def load(self, index: int) -> MaskedImage:
        return self.pairs.load(self.indexes[index])

    def name(self, index: int) -> str:
        return self.pairs.pairs[self.indexes[index]][0].name


class ShapesLabels(LabelMaps):
    """The embedded set: the ground, and ten kinds of shape."""

    classes = ("ground", *SHAPE_CLASSES)

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes

    def __len__(self) -> int:
        return len(self.shapes)

    def load(self, index: int) -> MaskedImage:
        scene = self.shapes.scene(index)
        return MaskedImage(scene.image, scene.semantic, self.name(index))

    def name(self, index: int) -> str:
        return self.shapes.name(index)


class FirstLabels(LabelMaps):
    """At most so many of another set, evenly spread."""

    def __init__(self, source: LabelMaps, most: int) -> None:
        self.source, self.classes = source, source.classes
        num = min(most, len(source))
        self.indexes = np.linspace(0, len(source), num, endpoint=False, dtype=np.int64).tolist()

    def __len__(self) -> int:
        return len(self.indexes)

    def load(self, index: int) -> MaskedImage:
        return self.source.load(self.indexes[index])

    def name(self, index: int) -> str:
        return self.source.name(self.indexes[index])


def parse_labels(name: str, *, split: str = "train") -> LabelMaps:
    """Label maps from what people type: `shapes[:size=64,n=2000,seed=0]`, or a folder with images/ and one of

    annotations/         0 is not counted, 1 to K are the classes (ADE20K); names in objectInfo*.txt or classes.txt
    labels/              0 to K - 1 are the classes, 255 is not counted; names in classes.txt
    SegmentationClass/   PASCAL VOC, beside JPEGImages/

    Splits are folders (training, validation; train, val) or VOC's lists; without them every fifth image is held out.
    """
    if split not in SPLITS:
        raise InputError(f"split {split!r} does not exist; choose {' or '.join(SPLITS)}")
    if name == "shapes" or name.startswith("shapes:"):
        options = parse_options(name, name.removeprefix("shapes").removeprefix(":"), known=("size", "n", "seed"))
        size, num, seed = (to_number(name, options, *default) for default in (("size", 64), ("n", 2000), ("seed", 0)))
        return ShapesLabels(Shapes(size=size, num_images=num, seed=seed, split=split))
    root = Path(name).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"{name!r} is no set of label maps: not 'shapes' and not an existing folder")
    images = next((root / part for part in _IMAGES if (root / part).is_dir()), None)
    masks = next(
        (root / part for part in ("annotations", "labels", "SegmentationClass") if (root / part).is_dir()), None
    )
    if images is None or masks is None:
        raise InputError(
            f"{root} holds no label maps in a known layout: images/ beside annotations/ (0 not counted, classes from "
            "1) or labels/ (classes from 0, 255 not counted), or PASCAL VOC's JPEGImages/ beside SegmentationClass/"
        )
    from_one = masks.name == "annotations"
    classes = VOC_CLASSES if masks.name == "SegmentationClass" else read_classes(root)
    read = partial(class_mask, num_classes=len(classes), from_one=from_one)
    part = _split_folder(masks, split)
    if part is not None:
        pairs = PairedMasks(images / part, masks / part, read, every_image=True)
        return PairedLabels(pairs, classes, range(len(pairs)))
    pairs = PairedMasks(images, masks, read, every_image=False)
    return PairedLabels(pairs, classes, _split_indexes(root, pairs, split))


def class_mask(image: Image.Image, *, num_classes: int, from_one: bool) -> Mask:
    """A mask file as class numbers uint8 (H, W), with 255 where nothing is counted."""
    values = read_values(image)
    ignored = values == (0 if from_one else IGNORE)
    classes = values - 1 if from_one else values
    unknown = np.flatnonzero(np.bincount(classes[~ignored & (classes >= num_classes)]))
    if len(unknown):
        first = int(unknown[0]) + from_one
        rule = f"1 to {num_classes}, and 0" if from_one else f"0 to {num_classes - 1}, and 255"
        raise MaskValueError(f"the label {first} is unknown: the set has {rule} for what is not counted")
    return np.where(ignored, IGNORE, classes).astype(np.uint8)


def read_classes(root: Path) -> tuple[str, ...]:
    """The names of the classes: the last column of objectInfo*.txt, below its heading, or the lines of classes.txt.

    A line may begin with the label and a tab; that of what is not counted is no class.
    """
    tables = sorted(root.glob("objectInfo*.txt"))
    file = tables[0] if tables else root / "classes.txt"
    if not file.is_file():
        raise FileNotFoundError(
            f"{root} does not name its classes; write classes.txt, one name on each line, in the order of the labels"
        )
    lines = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    kept = [line for line in lines[bool(tables) :] if len(line) < 2 or line[0].strip() != str(IGNORE)]
    if not 2 <= len(kept) <= MOST_CLASSES:
        raise InputError(f"{file} names {len(kept)} classes; give 2 to {MOST_CLASSES}")
    return tuple(line[-1].strip() for line in kept)


def _split_folder(masks: Path, split: str) -> str | None:
    """The sub-folder of a split; None where the set has no splits."""
    found = {
        kind: next((part for part in parts if (masks / part).is_dir()), None) for kind, parts in _SPLIT_FOLDERS.items()
    }
    if found[split] is None and any(found.values()):
        there = next(part for part in found.values() if part)
        raise FileNotFoundError(f"{masks} has {there}/ but no {' or '.join(_SPLIT_FOLDERS[split])}/ for {split!r}")
    return found[split]


def _split_indexes(root: Path, pairs: PairedMasks, split: str) -> list[int]:
    listed = root / "ImageSets" / "Segmentation" / f"{split}.txt"
    if listed.is_file():
        names = set(listed.read_text(encoding="utf-8").split())
        return [index for index, (image, _) in enumerate(pairs.pairs) if image.stem in names]
    return [index for index in range(len(pairs)) if (index % HELD_OUT == 0) == (split == "val")]
