"""What is at a place: images alone, or images with masks, and in which format."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from mixlab.errors import InputError

from .coco import coco_files
from .decode import SUFFIXES
from .images import IMAGE_FOLDERS, MASK_FOLDERS, child, parse_source
from .mask_values import ADE_THINGS, ade_mask, imagenet_s_mask, pets_mask, plain_mask, voc_mask
from .masks import CocoMasks, MaskSource, PairedMasks, ShapesMasks
from .shapes import parse_shapes
from .source import ImageSource
from .source_name import parse_options, to_numbers


def parse_images_or_masks(name: str, *, split: str = "val") -> ImageSource | MaskSource:
    """Images with their masks where the place has masks, and images alone elsewhere."""
    return parse_source(name, split=split) if mask_format(name) is None else parse_masks(name, split=split)


def parse_masks(name: str, *, split: str = "val") -> MaskSource:
    """A mask source from what people type: `shapes[:size=64,n=500]`, a folder, a COCO JSON file, or `FORMAT:PLACE`.

    FORMAT is masks, imagenet-s, voc, pets, coco or ade. Two have options: `masks:DIR:foreground=nonzero` (or half, see
    `plain_mask`) and `ade:DIR:things=1-76+90` for label sets other than ADE20K's 150.
    """
    if shapes := parse_shapes(name, split=split, num_images=500):
        return ShapesMasks(shapes)
    head, place, options = _split_name(name)
    path = Path(place).expanduser()
    if not path.exists():
        raise FileNotFoundError(
            f"{name!r} is no source of masks: {place!r} does not exist. Give 'shapes', a folder, a COCO JSON file, "
            f"or a format and a folder ({', '.join(f'{known}:DIR' for known in _FORMATS)})"
        )
    found = head or _recognise(path)
    if found is None:
        raise InputError(
            f"{place} holds no masks in a known layout: images/ beside masks/, ImageNet-S, PASCAL VOC, Oxford Pets, "
            "COCO or ADE20K; name the format, for example masks:DIR"
        )
    return _FORMATS[found](path, name, options)


def mask_format(name: str) -> str | None:
    """What is at a place that people name: masks in which FORMAT of `parse_masks` ("shapes" among them), or None.

    None means images alone: an image file, a folder without masks, shards, or label maps that do not say which of
    their classes are the foreground. Whether there is anything at all is for `parse_source` to say.
    """
    head, text, _ = _split_name(name)
    if head or text.partition(":")[0] == "shapes":
        return head or "shapes"
    place = Path(text).expanduser()
    found = _recognise(place)
    return None if found == "ade" and _has_other_labels(place) else found


def _recognise(place: Path) -> str | None:
    if place.is_file():
        return None if place.suffix.lower() in SUFFIXES else "coco"
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


def _no_options(name: str, options: str) -> None:
    parse_options(name, options, known=())


def _open_plain(place: Path, name: str, options: str) -> MaskSource:
    rule = parse_options(name, options, known=("foreground",)).get("foreground", "auto")
    if rule not in ("auto", "nonzero", "half"):
        raise InputError(f"{name!r}: foreground {rule!r} is unknown; choose auto, nonzero or half")
    images, masks = _need(place, *IMAGE_FOLDERS), _need(place, *MASK_FOLDERS)
    return PairedMasks(images, masks, partial(plain_mask, foreground=rule), every_image=True)


def _open_imagenet_s(place: Path, name: str, options: str) -> MaskSource:
    _no_options(name, options)
    masks = _need(place, "validation-segmentation", "train-semi-segmentation")
    images = _need(place, masks.name.removesuffix("-segmentation"))
    return PairedMasks(images, masks, imagenet_s_mask, every_image=True)


def _open_voc(place: Path, name: str, options: str) -> MaskSource:
    _no_options(name, options)
    images, masks = _need(place, *reversed(IMAGE_FOLDERS)), _need(place, "SegmentationClass", "labels")
    return PairedMasks(images, masks, voc_mask, every_image=False)


def _open_pets(place: Path, name: str, options: str) -> MaskSource:
    _no_options(name, options)
    return PairedMasks(_need(place, "images"), _need(place / "annotations", "trimaps"), pets_mask, every_image=True)


def _open_ade(place: Path, name: str, options: str) -> MaskSource:
    text = parse_options(name, options, known=("things",)).get("things")
    if text is None and (table := _has_other_labels(place)):
        raise InputError(
            f"{place} has labels of its own ({table}), not ADE20K's 150; "
            f"say which of them are things, for example ade:{place}:things=1-76"
        )
    things = ADE_THINGS if text is None else to_numbers(name, text)
    images, masks = _need(place, "images"), _need(place, "annotations")
    part = child(masks, "validation", "training")
    if part is not None:
        images, masks = _need(images, part.name), part
    return PairedMasks(images, masks, partial(ade_mask, things=things), every_image=True)


def _has_other_labels(place: Path) -> str | None:
    """The table of labels of a folder in ADE20K's layout, unless it has ADE20K's 150."""
    tables = sorted(place.glob("objectInfo*.txt"))
    return tables[0].name if tables and "150" not in tables[0].name else None


def _open_coco(place: Path, name: str, options: str) -> MaskSource:
    _no_options(name, options)
    files = [place] if place.is_file() else coco_files(place)
    if not files:
        raise FileNotFoundError(f"{place} has no instances*.json, nor has its folder annotations; give the file itself")
    return CocoMasks(min(files, key=lambda file: "val" not in file.name))  # the validation part first


_FORMATS: dict[str, Callable[[Path, str, str], MaskSource]] = {
    "masks": _open_plain,
    "imagenet-s": _open_imagenet_s,
    "voc": _open_voc,
    "pets": _open_pets,
    "coco": _open_coco,
    "ade": _open_ade,
}
