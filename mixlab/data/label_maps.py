"""Images with a class for every pixel: ADE20K, PASCAL VOC, folders of people's own, and the drawn shapes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from mixlab.errors import InputError

from .images import LABEL_FOLDERS, SPLIT_FOLDERS, child
from .mask_values import IGNORE, Mask, MaskValueError, read_values
from .masks import MaskSource, PairedMasks, ShapesMasks
from .shapes import parse_shapes
from .source import SPLITS, Subset, check_split, part_of

MOST_CLASSES = 255
VOC_CLASSES = ("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
               "dining table", "dog", "horse", "motorbike", "person", "potted plant", "sheep", "sofa", "train",
               "television")  # fmt: skip


def parse_label_maps(name: str, *, split: str = "train") -> MaskSource:
    """Label maps from what people type: `shapes[:size=64,n=2000,seed=0]`, or a folder with images/ and one of

    annotations/         0 is not counted, 1 to K are the classes (ADE20K); names in objectInfo*.txt or classes.txt
    labels/              0 to K - 1 are the classes, 255 is not counted; names in classes.txt
    SegmentationClass/   PASCAL VOC, beside JPEGImages/

    Splits are folders (training, validation; train, val) or VOC's lists. Without one for validation, every fifth image
    is held out.
    """
    check_split(split)
    if shapes := parse_shapes(name, split=split):
        return ShapesMasks(shapes, kind="semantic")
    root = Path(name).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"{name!r} is no set of label maps: not 'shapes' and not an existing folder")
    images, masks = child(root, "images", "JPEGImages"), child(root, *LABEL_FOLDERS)
    if images is None or masks is None:
        raise InputError(
            f"{root} holds no label maps in a known layout: images/ beside annotations/ (0 not counted, classes from "
            "1) or labels/ (classes from 0, 255 not counted), or PASCAL VOC's JPEGImages/ beside SegmentationClass/"
        )
    classes = VOC_CLASSES if masks.name == "SegmentationClass" else read_classes(root)
    read = partial(class_mask, num_classes=len(classes), from_one=masks.name == "annotations")
    folders = {which: child(masks, *SPLIT_FOLDERS[which]) for which in SPLITS}
    folder = _own(folders, split, root)
    if folder is not None:
        pairs = PairedMasks(images / folder.name, folder, read, every_image=True, classes=classes)
        return pairs if folders["val"] else part_of(pairs, split, name=name)
    whole = PairedMasks(images, masks, read, every_image=False, classes=classes)
    lists = {which: _existing(root / "ImageSets" / "Segmentation" / f"{which}.txt") for which in SPLITS}
    listed = _own(lists, split, root)
    if listed is None:
        return part_of(whole, split, name=name)
    names = set(listed.read_text(encoding="utf-8").split())
    chosen = Subset(whole, [index for index, (image, _) in enumerate(whole.pairs) if image.stem in names])
    if not len(chosen):
        raise InputError(f"{listed} names none of the {len(whole)} pairs in {images} and {masks}; check the list")
    return chosen if lists["val"] else part_of(chosen, split, name=name)


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


def _own(parts: dict[str, Path | None], split: str, root: Path) -> Path | None:
    """What holds a split: its own folder or list, or the training part, which is then cut in two."""
    if split == "train" and parts["train"] is None and parts["val"] is not None:
        raise FileNotFoundError(f"{root} has {parts['val'].name} to validate on, but no training part; add one")
    return parts[split] or parts["train"]


def _existing(file: Path) -> Path | None:
    return file if file.is_file() else None
