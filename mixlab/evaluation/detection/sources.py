"""Which source of objects a name means."""

from __future__ import annotations

from pathlib import Path

from mixlab.data.coco import read_coco
from mixlab.data.images import parse_source
from mixlab.data.shapes import Shapes
from mixlab.errors import InputError
from mixlab.evaluation.detection.coco_objects import CocoObjects
from mixlab.evaluation.detection.object_source import ObjectSource, ObjectSubset, ShapeObjects

HELD_OUT = 5  # without an annotation file of its own, every fifth image is for validation
SPLIT_NAMES = {"train": ("train",), "val": ("val", "valid")}


def parse_objects(name: str, *, split: str = "train", keep_empty: bool = True) -> ObjectSource:
    """A source from what people type: `shapes[:size=64,n=2000,seed=0]`, a COCO folder, or an instances file.

    A folder holds instances*.json, perhaps in annotations/, for each split or for all images: then every fifth image
    is for validation. `keep_empty=False` leaves images without objects out.
    """
    if split not in SPLIT_NAMES:
        raise InputError(f"split {split!r} does not exist; choose {' or '.join(SPLIT_NAMES)}")
    if name == "shapes" or name.startswith("shapes:"):
        shapes = parse_source(name, split=split)
        assert isinstance(shapes, Shapes)
        return ShapeObjects(shapes)
    source = _open_coco(name, split)
    if keep_empty:
        return source
    full = [index for index in range(len(source)) if source.num_objects(index)]
    if not full:
        raise InputError(f"{name}: none of its {len(source)} images has an object to learn from")
    return source if len(full) == len(source) else ObjectSubset(source, full)


def _open_coco(name: str, split: str) -> ObjectSource:
    place = Path(name).expanduser()
    if not place.exists():
        raise FileNotFoundError(f"{name!r} is no source of objects: not 'shapes', not a folder and not a file")
    files = [place] if place.is_file() else sorted(place.glob("instances*.json"))
    files = files or sorted((place / "annotations").glob("instances*.json"))
    if not files:
        raise FileNotFoundError(f"{place} has no instances*.json, nor has its folder annotations; give the file itself")
    others = [word for key, words in SPLIT_NAMES.items() if key != split for word in words]
    own = [file for file in files if any(word in file.stem for word in SPLIT_NAMES[split])]
    if own:
        return _with_images(own[0])
    shared = [file for file in files if not any(word in file.stem for word in others)]
    if not shared and not place.is_file():
        raise FileNotFoundError(f"{place} has {', '.join(file.name for file in files)}, but none for the {split} split")
    source = _with_images((shared or files)[0])
    chosen = [index for index in range(len(source)) if (index % HELD_OUT == 0) == (split == "val")]
    if not chosen:
        raise InputError(f"{name} has {len(source)} image, which is not enough to set some aside for validation")
    return ObjectSubset(source, chosen)


def _with_images(annotations: Path) -> CocoObjects:
    images = read_coco(annotations).images
    if not images:
        raise InputError(f"{annotations} lists no images; give a file with some")
    part = annotations.stem.removeprefix("instances_")
    parents = (annotations.parent, annotations.parent.parent)
    for folder in (parent / name for parent in parents for name in ("images", part, f"images/{part}", ".")):
        if any((folder / image.file_name).is_file() for image in images[:10]):
            return CocoObjects(annotations, folder)
    raise FileNotFoundError(
        f"{annotations} names images such as {images[0].file_name}, which are not in images/ or {part}/ beside it"
    )
