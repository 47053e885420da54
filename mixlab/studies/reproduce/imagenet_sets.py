"""ImageNet-1k, and the sets that are scored by its classes: folders of images, one per class."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from mixlab.data.imagenet_labels import NUM_TRAIN, NUM_VAL, imagenet_classes, real_labels, val_number
from mixlab.evaluation.shifted_sets import SETS, class_root
from mixlab.studies.reproduce.arrange import find_val_labels
from mixlab.studies.reproduce.folders import (
    DataSet,
    Found,
    check_classes,
    files_in,
    folders_in,
    is_image,
    stopped,
    together,
)

IMAGENET_PLACES = ("ImageNet", "imagenet-1k", "imagenet1k", "ILSVRC2012", "ILSVRC/Data/CLS-LOC", ".")


def _imagenet(root: Path, data: DataSet, parts: tuple[str, ...] = ("train", "val")) -> Found:
    place = data.folder(root, *parts)
    if place is None:
        return data.missing(root)
    train = [_train_part(place, data)] if "train" in parts else []
    return together(place, [*train, _val_part(root, place, data)])


def _train_part(place: Path, data: DataSet) -> Found:
    train = place / "train"
    packed = [name for name in files_in(train) if name.endswith(".tar")]
    if not train.is_dir():
        return stopped(f"{place} has no train/. {data.unpack}")
    if packed:
        return stopped(
            f"{train} holds {len(packed):,} archives such as {packed[0]}: each is one class. Unpack each into a "
            "folder of its name: for f in *.tar; do mkdir ${f%.tar} && tar xf $f -C ${f%.tar} && rm $f; done"
        )
    return check_classes(train, imagenet_classes(), NUM_TRAIN, "ImageNet-1k's training images")


def _val_part(root: Path, place: Path, data: DataSet) -> Found:
    val = place / "val"
    if not val.is_dir():
        return stopped(f"{place} has no val/. {data.unpack}")
    if folders_in(val) or all(val_number(name) is None for name in files_in(val)):
        return check_classes(val, imagenet_classes(), NUM_VAL, "ImageNet-1k's validation images")
    labels = find_val_labels(root, place)
    if labels is not None:
        note = f"{val} is not sorted into classes: links in the run sort it by {labels}"
        return Found(place, notes=(note,), arrange=("sort-val", str(place), str(labels)))
    return stopped(
        f"{val} is not sorted into classes: its images lie in one folder, as they unpack. Put LOC_val_solution.csv or "
        f"the development kit (ILSVRC2012_devkit_t12) into {place}: then links sort them in the run, and {val} stays "
        f"as it is. Or move each into {val}/WNID yourself"
    )


def _real(root: Path, data: DataSet) -> Found:
    """Labels come with timm; the images are those of validation, known by their names."""
    imagenet = IMAGENET.folder(root, "val")
    if imagenet is None:
        return stopped(f"ReaL relabels ImageNet-1k's validation images. {IMAGENET.unpack}")
    try:
        real_labels()
    except OSError as error:
        return stopped(f"ReaL's labels are missing: {error}")
    val = imagenet / "val"
    first = next(
        (name for folder in (val, *sorted(folders_in(val))) for name in files_in(folder) if is_image(name)), ""
    )
    if val_number(first) is None:
        return stopped(
            f"ReaL needs the validation images under their own names, such as ILSVRC2012_val_00000001.JPEG; {val} "
            f"has {first or 'no image'}. Unpack ILSVRC2012_img_val.tar again and keep the names"
        )
    return Found(val)


def _shifted(name: str) -> Callable[[Path, DataSet], Found]:
    def look(root: Path, data: DataSet) -> Found:
        place = data.folder(root)
        if place is None:
            return data.missing(root)
        robust_set = SETS[name]
        inner, known = class_root(place, robust_set), robust_set.classes()
        folders = [str(number) for number in range(len(known))] if robust_set.numbered else list(known)
        return check_classes(inner, folders, robust_set.num_images, data.title, robust_set.layout)

    return look


def of_v2(name: str) -> DataSet:
    folder = SETS[name].folders[0]
    return DataSet(
        title=f"ImageNet-V2 ({folder.removeprefix('imagenetv2-').removesuffix('-format-val')})",
        place=folder,
        also=(f"imagenetv2/{folder}", *SETS[name].folders[1:]),
        archives=(folder.removesuffix("-format-val"),),
        unpack=f"Unpack its archive into the root; it brings {folder}/0 to {folder}/999.",
        look=_shifted(name),
    )


IMAGENET = DataSet(
    title="ImageNet-1k",
    place="imagenet",
    also=IMAGENET_PLACES,
    archives=("ILSVRC2012_img_train", "ILSVRC2012_img_val", "imagenet-object-localization-challenge"),
    unpack="Unpack ILSVRC2012_img_train.tar, and each of the 1,000 archives in it into a folder of its name, to "
    "imagenet/train, and ILSVRC2012_img_val.tar to imagenet/val.",
    look=_imagenet,
)
IMAGENET_VAL = DataSet(
    title="ImageNet-1k's validation images",
    place="imagenet",
    also=IMAGENET_PLACES,
    archives=("ILSVRC2012_img_val",),
    unpack="Unpack ILSVRC2012_img_val.tar to imagenet/val.",
    look=partial(_imagenet, parts=("val",)),
)
REAL = DataSet(
    title="ImageNet-ReaL",
    place="imagenet/val",
    archives=(),
    unpack="Its labels come with timm; its images are those of ImageNet-1k's validation, by their file names.",
    look=_real,
)
SKETCH = DataSet(
    title="ImageNet-Sketch",
    place="sketch",
    also=("ImageNet-Sketch", "imagenet-sketch"),
    archives=("ImageNet-Sketch", "imagenet-sketch", "sketch"),
    unpack="Unpack ImageNet-Sketch.zip into the root; it brings sketch/WNID.",
    look=_shifted("sketch"),
)
IMAGENET_A = DataSet(
    title="ImageNet-A",
    place="imagenet-a",
    archives=("imagenet-a",),
    unpack="Unpack imagenet-a.tar into the root; it brings imagenet-a/WNID for 200 classes.",
    look=_shifted("a"),
)
IMAGENET_R = DataSet(
    title="ImageNet-R",
    place="imagenet-r",
    archives=("imagenet-r",),
    unpack="Unpack imagenet-r.tar into the root; it brings imagenet-r/WNID for 200 classes.",
    look=_shifted("r"),
)
