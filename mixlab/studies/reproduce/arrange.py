"""Links that bring released folders into the form that commands read, in the run: the data itself is never changed."""

import csv
import shutil
from collections.abc import Iterable
from pathlib import Path

from mixlab.data.imagenet_labels import NUM_VAL, imagenet_classes, val_number
from mixlab.errors import InputError, WorkError

KAGGLE = "LOC_val_solution.csv"  # ImageId,PredictionString: ILSVRC2012_val_00048981,n03995372 85 1 499 272
KIT = "ILSVRC2012_devkit_t12"
KIT_LABELS = "data/ILSVRC2012_validation_ground_truth.txt"  # of image 1, 2, ...: a number of meta.mat


def find_val_labels(root: Path, imagenet: Path) -> Path | None:
    """What says the class of each validation image: Kaggle's table, or the development kit."""
    places = [imagenet, *(parent for parent in imagenet.parents if parent.is_relative_to(root)), root]
    files = [place / name for place in places for name in (KAGGLE, KIT)]
    return next((file for file in files if file.is_file() or (file / KIT_LABELS).is_file()), None)


def read_val_labels(source: Path) -> list[str]:
    """The synset of each of the 50,000 validation images."""
    found = _from_table(source) if source.is_file() else _from_kit(source)
    strange = sorted({synset for synset in found if synset} - set(imagenet_classes()))
    if strange:
        raise InputError(f"{source} names {strange[0]}, which is no class of ImageNet-1k; is it the file of 2012?")
    return found


def sort_val(imagenet: str, labels: str, out: str) -> None:
    """OUT/train, a link, and OUT/val/WNID/* for the images of IMAGENET/val, which lie in one folder."""
    place, synsets = Path(imagenet), read_val_labels(Path(labels))
    pairs = []
    for file in sorted((place / "val").iterdir()):
        number = val_number(file.name)
        if number is not None and not synsets[number]:
            raise InputError(f"{labels} has no class for {file.name}; is the file complete?")
        if number is not None:
            pairs.append((f"val/{synsets[number]}/{file.name}", file))
    _link([*pairs, ("train", place / "train")], Path(out))


def pair_masks(masks: str, val: str, out: str) -> None:
    """OUT/validation-segmentation, a link, and OUT/validation/WNID/* for the images of its masks in VAL."""
    annotated, images = Path(masks) / "validation-segmentation", Path(val)
    by_stem = {file.stem: file for file in images.rglob("*") if val_number(file.name) is not None}
    pairs: list[tuple[str, Path]] = [("validation-segmentation", annotated)]
    for mask in sorted(annotated.glob("*/*.png")):
        image = by_stem.get(mask.stem)
        if image is None:
            raise WorkError(f"{mask} has no image in {images}; it was there when the folders were checked")
        pairs.append((f"validation/{mask.parent.name}/{image.name}", image))
    _link(pairs, Path(out))


def _link(pairs: Iterable[tuple[str, Path]], out: Path) -> None:
    """All links in a folder aside, which is then renamed: it is whole or not there."""
    aside = out.with_name(f".{out.name}.aside")
    shutil.rmtree(aside, ignore_errors=True)
    for name, file in pairs:
        place = aside / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(file.resolve())
    if out.exists():
        shutil.rmtree(out)
    aside.replace(out)


def _from_table(file: Path) -> list[str]:
    found = [""] * NUM_VAL
    with file.open(encoding="utf-8", newline="") as lines:
        for row in csv.reader(lines):
            number = val_number(row[0]) if len(row) > 1 else None
            if number is not None:
                found[number] = row[1].split(" ", 1)[0]
    if not any(found):
        raise InputError(
            f"{file} names no validation image; Kaggle's file has lines ILSVRC2012_val_00000001,n01751748 ..."
        )
    return found


def _from_kit(kit: Path) -> list[str]:
    try:
        from scipy.io import loadmat  # type: ignore[import-untyped]
    except ImportError as error:
        raise InputError(
            f"{kit} keeps its classes in a file of MATLAB's, which scipy reads: pip install scipy, or put {KAGGLE} "
            "beside it"
        ) from error
    synsets = loadmat(kit / "data" / "meta.mat", squeeze_me=True)["synsets"]
    names = {int(number): str(synset) for number, synset in zip(synsets["ILSVRC2012_ID"], synsets["WNID"], strict=True)}
    return [names[int(line)] for line in (kit / KIT_LABELS).read_text(encoding="utf-8").split()]
