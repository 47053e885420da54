"""Masks and label maps by name: detects the format of a path, and opens it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from mixlab.errors import InputError

from .coco import coco_files, need_coco_files
from .given import Data, GivenData, check_kind
from .images import IMAGE_FOLDERS, LABEL_FOLDERS, MASK_FOLDERS, SPLIT_FOLDERS, child, parse_source
from .masks import (
    ADE_THINGS,
    IGNORE,
    CocoMasks,
    Mask,
    MaskedImage,
    MaskSource,
    PairedMasks,
    ShapesMasks,
    ade_mask,
    imagenet_s_mask,
    pets_mask,
    plain_mask,
    read_values,
    voc_mask,
)
from .registered import is_registered, open_registered, open_registered_with
from .shapes import parse_shapes
from .source import SPLITS, ImageSource, Subset, check_split, part_of
from .source_names import DRAWN, is_built_in, is_drawn, nearest_place, parse_options


def parse_images_or_masks(name: Data) -> ImageSource | MaskSource:
    """Validation images, with their masks where the place has masks."""
    if isinstance(name, GivenData):
        return name.part("val")
    return parse_source(name, split="val") if mask_format(name) is None else parse_masks(name)


def parse_masks(name: Data, *, split: str = "val") -> MaskSource:
    """A mask source from its name: `shapes[:size=64,n=500]`, a folder, a COCO JSON file, or `FORMAT:PATH`.

    FORMAT is masks, imagenet-s, voc, pets, coco or ade. Two have options: `masks:DIR:foreground=nonzero` (or half, see
    `plain_mask`) and `ade:DIR:things=1-76+90` for label sets other than ADE20K's 150.
    """
    if isinstance(name, GivenData):
        check_kind(name.part(split), MaskedImage, name=str(name), what="a score of maps")
        return name.part(split)
    if shapes := parse_shapes(name, split=split, num_images=500):
        return ShapesMasks(shapes)
    if (own := open_registered(name, split)) is not None:
        check_kind(own, MaskedImage, name=name, what="a score of maps")
        return own
    if is_built_in(name):
        raise InputError(f"{name} has no masks; give 'shapes', or a folder of images with masks")
    head, place, options = _split_name(name)
    path = Path(place).expanduser()
    if not path.exists():
        raise FileNotFoundError(
            f"{name!r} is not a source of masks: {place!r} does not exist. Give 'shapes', a folder, a COCO JSON file, "
            f"or a format and a folder ({', '.join(f'{known}:DIR' for known in _FORMATS)}); {nearest_place(place)}"
        )
    found = head or _recognise(path)
    if found is None:
        raise InputError(
            f"{place} holds no masks in a known layout: images/ beside masks/, ImageNet-S, PASCAL VOC, Oxford Pets, "
            "COCO or ADE20K; name the format, for example masks:DIR"
        )
    key, open_masks = _FORMATS[found]
    return open_masks(path, name, parse_options(name, options, known=(key,) if key else ()).get(key))


def mask_format(name: str) -> str | None:
    """The format of the masks at a path or source name: a FORMAT of `parse_masks`, "shapes", or None.

    None means images alone: an image file, a folder without masks, shards, or label maps that do not say which of
    their classes are the foreground. Whether there is anything at all is for `parse_source` to say.
    """
    head, text, _ = _split_name(name)
    if head or is_drawn(text):
        return head or DRAWN
    place = Path(text).expanduser()
    found = _recognise(place)
    return None if found == "ade" and _has_other_labels(place) else found


def _recognise(place: Path) -> str | None:
    if place.is_file():
        return "coco" if place.suffix.lower() in (".json", "") else None
    if child(place, "validation-segmentation", "train-semi-segmentation"):
        return "imagenet-s"
    if (place / "SegmentationClass").is_dir():
        return "voc"
    if (place / "annotations" / "trimaps").is_dir():
        return "pets"
    if coco_files(place):
        return "coco"
    if child(place, *IMAGE_FOLDERS):
        if child(place, *MASK_FOLDERS):
            return "masks"
        if (place / "annotations").is_dir():
            return "ade"
        if (place / "labels").is_dir():
            return "voc"
    return None


def _split_name(name: str) -> tuple[str, str, str]:
    """FORMAT:PLACE:OPTIONS in its parts, the first and the last "" where they are not given."""
    head, colon, rest = name.partition(":")
    if not colon or head not in _FORMATS:
        return "", name, ""
    place, _, options = rest.partition(":")
    return head, place, options


def _need(place: Path, *names: str) -> Path:
    found = child(place, *names)
    if found is None:
        raise FileNotFoundError(f"{place} has no folder {' or '.join(names)}; check the path and the format")
    return found


def _open_plain(place: Path, name: str, option: str | None) -> MaskSource:
    rule = option or "auto"
    if rule not in ("auto", "nonzero", "half"):
        raise InputError(f"{name!r}: foreground {rule!r} is unknown; choose auto, nonzero or half")
    images, masks = _need(place, *IMAGE_FOLDERS), _need(place, *MASK_FOLDERS)
    return PairedMasks(images, masks, partial(plain_mask, foreground=rule), every_image=True)


def _open_imagenet_s(place: Path, name: str, option: str | None) -> MaskSource:
    masks = _need(place, "validation-segmentation", "train-semi-segmentation")
    images = place / masks.name.removesuffix("-segmentation")
    if not images.is_dir():
        raise FileNotFoundError(
            f"{place} has {masks.name}/ but no {images.name}/: the archive of ImageNet-S holds masks alone. Copy or "
            f"link ImageNet-1k's images of the same names to {images}/WNID, or let `mixlab reproduce ITEM --root` do it"
        )
    return PairedMasks(images, masks, imagenet_s_mask, every_image=True)


def _open_voc(place: Path, name: str, option: str | None) -> MaskSource:
    images, masks = _need(place, *reversed(IMAGE_FOLDERS)), _need(place, "SegmentationClass", "labels")
    return PairedMasks(images, masks, voc_mask, every_image=False)


def _open_pets(place: Path, name: str, option: str | None) -> MaskSource:
    return PairedMasks(_need(place, "images"), _need(place / "annotations", "trimaps"), pets_mask, every_image=True)


def _open_ade(place: Path, name: str, option: str | None) -> MaskSource:
    if option is None and (table := _has_other_labels(place)):
        raise InputError(
            f"{place} has labels of its own ({table}), not ADE20K's 150; "
            f"say which of them are things, for example ade:{place}:things=1-76"
        )
    things = ADE_THINGS if option is None else _to_numbers(name, option)
    images, masks = _need(place, "images"), _need(place, "annotations")
    part = child(masks, "validation", "training")
    if part is not None:
        images, masks = _need(images, part.name), part
    return PairedMasks(images, masks, partial(ade_mask, things=things), every_image=True)


def _has_other_labels(place: Path) -> str | None:
    """The table of labels of a folder in ADE20K's layout, unless it has ADE20K's 150."""
    tables = sorted(place.glob("objectInfo*.txt"))
    return tables[0].name if tables and "150" not in tables[0].name else None


def _open_coco(place: Path, name: str, option: str | None) -> MaskSource:
    return CocoMasks(min(need_coco_files(place), key=lambda file: "val" not in file.name))  # the validation part first


_FORMATS: dict[str, tuple[str, Callable[[Path, str, str | None], MaskSource]]] = {  # with the name of its option
    "masks": ("foreground", _open_plain),
    "imagenet-s": ("", _open_imagenet_s),
    "voc": ("", _open_voc),
    "pets": ("", _open_pets),
    "coco": ("", _open_coco),
    "ade": ("things", _open_ade),
}


def _to_numbers(name: str, text: str) -> frozenset[int]:
    """A set of whole numbers written as `1-76+90`."""
    numbers: set[int] = set()
    for part in text.split("+"):
        span = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if not span:
            raise InputError(f"{name!r}: {part!r} is neither a number nor a range; write for example 1-76+90")
        numbers |= set(range(int(span[1]), int(span[2] or span[1]) + 1))
    return frozenset(numbers)


MOST_CLASSES = 255
VOC_CLASSES = ("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
               "dining table", "dog", "horse", "motorbike", "person", "potted plant", "sheep", "sofa", "train",
               "television")  # fmt: skip


def parse_label_maps(name: Data, *, split: str = "train") -> MaskSource:
    """Label maps from the name of a source: `shapes[:size=64,n=2000,seed=0]`, or a folder with images/ and one of

    annotations/         0 is not counted, 1 to K are the classes (ADE20K); names in objectInfo*.txt or classes.txt
    labels/              0 to K - 1 are the classes, 255 is not counted; names in classes.txt
    SegmentationClass/   PASCAL VOC, beside JPEGImages/

    Splits are folders (training, validation; train, val) or VOC's lists. Without one for validation, every fifth image
    is held out.
    """
    check_split(split)
    if isinstance(name, GivenData):
        return name.part_with(split, MaskedImage, "segmentation")
    if shapes := parse_shapes(name, split=split):
        return ShapesMasks(shapes, kind="semantic")
    if is_registered(name):
        return open_registered_with(name, split, MaskedImage, "segmentation")
    root = Path(name).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(
            f"{name!r} is not a source of label maps: neither 'shapes' nor an existing folder; {nearest_place(name)}"
        )
    images, masks = child(root, "images", "JPEGImages"), child(root, *LABEL_FOLDERS)
    if images is None or masks is None:
        raise InputError(
            f"{root} holds no label maps in a known layout: images/ beside annotations/ (0 not counted, classes from "
            "1) or labels/ (classes from 0, 255 not counted), or PASCAL VOC's JPEGImages/ beside SegmentationClass/. "
            "Of ADE20K take the form of 150 classes, and unpack all of ADEChallengeData2016.zip"
        )
    classes = VOC_CLASSES if masks.name == "SegmentationClass" else read_classes(root)
    read = partial(class_mask, num_classes=len(classes), from_one=masks.name == "annotations")
    folders = {which: child(masks, *SPLIT_FOLDERS[which]) for which in SPLITS}
    folder = _own(folders, split, root)
    alone = child(images, *SPLIT_FOLDERS["val"])
    if folder is not None and folders["val"] is None and alone is not None:
        raise FileNotFoundError(
            f"{alone} has no label maps in {masks / alone.name}: unpack them, too; or move {alone} away, and every "
            "fifth image of the training part is held out"
        )
    if folder is not None:
        pairs = PairedMasks(images / folder.name, folder, read, every_image=True, classes=classes)
        return pairs if folders["val"] else part_of(pairs, split, name=name)
    whole = PairedMasks(images, masks, read, every_image=False, classes=classes)
    files = {which: root / "ImageSets" / "Segmentation" / f"{which}.txt" for which in SPLITS}
    lists = {which: file if file.is_file() else None for which, file in files.items()}
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
        raise InputError(f"the label {first} is unknown: labels are {rule} for ignored pixels")
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
    """The folder or list of a split, or that of the training part, which is then split."""
    if split == "train" and parts["train"] is None and parts["val"] is not None:
        raise FileNotFoundError(f"{root} has {parts['val'].name} to validate on, but no training part; add one")
    return parts[split] or parts["train"]
