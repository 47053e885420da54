"""The data sets of both papers as they unpack from their archives: where each is expected, and what is wrong with it.

A problem is a sentence that says what to do, and stops an item; a note says what will differ from the papers.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mixlab.data.decode import SUFFIXES
from mixlab.data.imagenet_labels import NUM_TRAIN, NUM_VAL, imagenet_classes, real_labels, val_number
from mixlab.data.images import child
from mixlab.errors import few
from mixlab.evaluation.shifted_sets import SETS, class_root
from mixlab.studies.reproduce.arrange import find_val_labels

IMAGENET_PLACES = ("ImageNet", "imagenet-1k", "imagenet1k", "ILSVRC2012", "ILSVRC/Data/CLS-LOC", ".")
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".zip")
IMAGENET_S = {"ImageNetS919": 12_419, "ImageNetS300": 4_097, "ImageNetS50": 752}  # images of validation, as released
ADE_PARTS = {"training": 20_210, "validation": 2_000}
COCO_PARTS = {"train2017": 118_287, "val2017": 5_000}


@dataclass(frozen=True)
class Found:
    """The folder that commands are given, None where there is none; what stops them, and what they should know.

    `arrange` is a job of `arrange.py` that has to make the folder first, with its arguments but the last.
    """

    place: Path | None = None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    arrange: tuple[str, ...] = ()


@dataclass(frozen=True)
class DataSet:
    """A set: its place below the root, other places where people have it, and how it gets there."""

    title: str
    place: str
    unpack: str
    look: Callable[[Path, "DataSet"], Found]
    archives: tuple[str, ...]  # how the names of its archives begin
    also: tuple[str, ...] = ()

    def find(self, root: Path) -> Found:
        return self.look(root, self)

    def folder(self, root: Path, *parts: str) -> Path | None:
        """The first of its places that exists, and that holds one of these folders where some are named."""
        places = [root / name for name in (self.place, *self.also)]
        return next((each for each in places if each.is_dir() and (not parts or child(each, *parts))), None)

    def missing(self, root: Path) -> Found:
        """Not there: its archives may be."""
        packed = [name for name in _files(root) if name.endswith(ARCHIVES) and name.startswith(self.archives)]
        hint = f" {', '.join(packed)} is in {root}, but not unpacked." if packed else ""
        return Found(problems=(f"{self.title} is not in {root / self.place}.{hint} {self.unpack}",))


def check_root(root: Path) -> None:
    """Refuse a root that cannot be one."""
    if not root.is_dir():
        raise FileNotFoundError(f"--root {root} is not a folder; give the one that holds imagenet, coco, ...")
    if root.name in ("train", "val") and child(root, *imagenet_classes()[:20]):
        raise FileNotFoundError(
            f"--root {root} is a part of ImageNet-1k itself; give the folder that holds the data sets, and have this "
            f"one in it as imagenet/{root.name}"
        )


def _imagenet(root: Path, data: DataSet, parts: tuple[str, ...] = ("train", "val")) -> Found:
    place = data.folder(root, *parts)
    if place is None:
        return data.missing(root)
    problems: list[str] = []
    notes: list[str] = []
    if "train" in parts:
        _add(_train_part(place, data), problems, notes)
    val = place / "val"
    flat = not _folders(val) and any(val_number(name) is not None for name in _files(val))
    if not flat:
        _add(_val_part(val, data), problems, notes)
        return Found(None if problems else place, tuple(problems), tuple(notes))
    labels = find_val_labels(root, place)
    if labels is not None:
        notes.append(f"{val} is not sorted into classes: links in the run sort it by {labels}")
        arrange = ("sort-val", str(place), str(labels))
        return Found(None, tuple(problems), tuple(notes)) if problems else Found(place, (), tuple(notes), arrange)
    problems.append(
        f"{val} is not sorted into classes: its images lie in one folder, as they unpack. Put LOC_val_solution.csv or "
        f"the development kit (ILSVRC2012_devkit_t12) into {place}: then links sort them in the run, and {val} stays "
        f"as it is. Or move each into {val}/WNID yourself"
    )
    return Found(None, tuple(problems), tuple(notes))


def _train_part(place: Path, data: DataSet) -> Found:
    train = place / "train"
    packed = [name for name in _files(train) if name.endswith(".tar")]
    if not train.is_dir():
        return Found(problems=(f"{place} has no train/. {data.unpack}",))
    if packed:
        return Found(
            problems=(
                f"{train} holds {len(packed):,} archives such as {packed[0]}: each is one class. Unpack each into a "
                "folder of its name: for f in *.tar; do mkdir ${f%.tar} && tar xf $f -C ${f%.tar} && rm $f; done",
            )
        )
    return _classes(train, imagenet_classes(), NUM_TRAIN, "ImageNet-1k's training images")


def _val_part(val: Path, data: DataSet) -> Found:
    if not val.is_dir():
        return Found(problems=(f"{val.parent} has no val/. {data.unpack}",))
    return _classes(val, imagenet_classes(), NUM_VAL, "ImageNet-1k's validation images")


def _real(root: Path, data: DataSet) -> Found:
    """Labels come with timm; the images are those of validation, known by their names."""
    imagenet = DATA_SETS["imagenet"].folder(root, "val")
    if imagenet is None:
        return Found(problems=(f"ReaL relabels ImageNet-1k's validation images. {DATA_SETS['imagenet'].unpack}",))
    try:
        real_labels()
    except OSError as error:
        return Found(problems=(f"ReaL's labels are missing: {error}",))
    val = imagenet / "val"
    first = next((name for folder in (val, *sorted(_folders(val))) for name in _files(folder) if _is_image(name)), "")
    if val_number(first) is None:
        return Found(
            problems=(
                f"ReaL needs the validation images under their own names, such as ILSVRC2012_val_00000001.JPEG; {val} "
                f"has {first or 'no image'}. Unpack ILSVRC2012_img_val.tar again and keep the names",
            )
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
        problems: list[str] = []
        notes: list[str] = []
        _add(_classes(inner, folders, robust_set.num_images, data.title, robust_set.layout), problems, notes)
        return Found(None if problems else inner, tuple(problems), tuple(notes))

    return look


def _imagenet_s(root: Path, data: DataSet) -> Found:
    place = data.folder(root, "validation-segmentation", "train-semi-segmentation", "validation")
    if place is None:
        return data.missing(root)
    masks, images = place / "validation-segmentation", place / "validation"
    if not masks.is_dir():
        there = [folder.name for folder in _folders(place)]
        return Found(
            problems=(
                f"{place} has {few(there)}, but not validation-segmentation: the paper scores validation alone, and "
                f"masks of another split belong to other images. {data.unpack}",
            )
        )
    wanted = {f"{folder.name}/{Path(name).stem}" for folder in _folders(masks) for name in _files(folder)}
    if not wanted:
        return Found(problems=(f"{masks} has no folders with masks (WNID/ILSVRC2012_val_*.png). {data.unpack}",))
    released = IMAGENET_S.get(place.name, 0)
    notes = [f"{place.name} has {len(wanted):,} masks, released are {released:,}"] if released > len(wanted) else []
    if place.name != "ImageNetS919":
        notes.append(f"the paper scores ImageNetS919; {place.name} has fewer classes")
    have = {f"{folder.name}/{Path(name).stem}" for folder in _folders(images) for name in _files(folder)}
    if wanted <= have:
        return Found(place, notes=tuple(notes))
    imagenet = DATA_SETS["imagenet"].folder(root, "val")
    lacking = sorted(wanted - have)
    if imagenet is None:
        return Found(
            problems=(
                f"{len(lacking):,} of the {len(wanted):,} masks in {masks} have no image in {images}, such as "
                f"{lacking[0]}.JPEG: the archive of ImageNet-S holds masks alone. Have ImageNet-1k in "
                f"{root / DATA_SETS['imagenet'].place}, of whose validation images links are made; or copy them",
            )
        )
    val = imagenet / "val"
    numbers = {Path(name).stem for folder in (val, *_folders(val)) for name in _files(folder)}
    strange = [stem for stem in sorted({one.rsplit("/", 1)[1] for one in wanted}) if stem not in numbers]
    if strange:
        return Found(
            problems=(
                f"{len(strange):,} masks in {masks} belong to no image of {val}, such as {strange[0]}: masks of "
                f"another split, or another data set. {data.unpack}",
            )
        )
    notes.append(f"{place} has masks without images: links to {val} bring them together in the run")
    return Found(place, notes=tuple(notes), arrange=("pair-masks", str(place), str(val)))


def _ade20k(root: Path, data: DataSet) -> Found:
    place = data.folder(root)
    if place is None:
        full = [folder.name for folder in _folders(root) if folder.name.startswith("ADE20K_20")]
        if full:
            return Found(
                problems=(f"{root / full[0]} is the full ADE20K; both papers use its 150-class form. {data.unpack}",)
            )
        return data.missing(root)
    if child(place, "images") and not (place / "annotations").is_dir():
        said = f"{place} has images/ but no annotations/, in which 0 is unlabelled and 1 to 150 are the classes."
        return Found(problems=(f"{said} {data.unpack}",))
    problems: list[str] = []
    notes: list[str] = []
    for part, released in ADE_PARTS.items():
        images, masks = place / "images" / part, place / "annotations" / part
        absent = [folder for folder in (images, masks) if not folder.is_dir()]
        if absent:
            problems.append(f"{absent[0]} is missing. {data.unpack}")
            continue
        pictures, labels = (
            {Path(name).stem for name in _files(folder) if _is_image(name)} for folder in (images, masks)
        )
        if not pictures & labels:
            problems.append(f"no file in {images} has a label map of its name in {masks}: are these one split's?")
        elif pictures ^ labels:
            notes.append(f"{len(pictures ^ labels):,} files of {part} have no counterpart and are left out")
        if len(pictures & labels) < released:
            notes.append(f"{part} has {len(pictures & labels):,} pairs, released are {released:,}")
    if not problems and not [*place.glob("objectInfo150.txt")]:
        problems.append(f"{place} has no objectInfo150.txt, which names the classes. {data.unpack}")
    return Found(None if problems else place, tuple(problems), tuple(notes))


def _coco(root: Path, data: DataSet) -> Found:
    place = data.folder(root, "annotations", "train2017", "val2017")
    if place is None:
        place = next((root / name for name in (data.place, *data.also[:-1]) if (root / name).is_dir()), None)
    if place is None:
        return data.missing(root)
    annotations = place / "annotations"
    if not annotations.is_dir():
        return Found(
            problems=(
                f"{place} has no annotations/. Unpack annotations_trainval2017.zip there; it brings "
                "annotations/instances_train2017.json and annotations/instances_val2017.json",
            )
        )
    problems: list[str] = []
    notes: list[str] = []
    for part, released in COCO_PARTS.items():
        file = annotations / f"instances_{part}.json"
        if not file.is_file():
            others = [name for name in _files(annotations) if name.endswith(".json")]
            there = f", only {few(others)}" if others else ""
            problems.append(
                f"{annotations} has no {file.name}{there}: boxes and masks of COCO 2017 are in the instances files of "
                "annotations_trainval2017.zip"
            )
        images = next((folder for folder in (place / part, place / "images" / part) if folder.is_dir()), None)
        if images is None:
            problems.append(f"{place / part} is missing; unpack {part}.zip into {place}")
        elif (count := sum(map(_is_image, _files(images)))) < released:
            notes.append(f"{part} has {count:,} images, released are {released:,}")
    return Found(None if problems else place, tuple(problems), tuple(notes))


def _classes(
    place: Path, known: Sequence[str], released: int, title: str, layout: str = "folders named by synset"
) -> Found:
    """A folder with one folder of images per class."""
    counts = {folder.name: sum(map(_is_image, _files(folder))) for folder in _folders(place)}
    strange = sorted(counts.keys() - set(known))
    if not counts or len(strange) == len(counts):
        there = few(strange) if strange else few(_files(place)) or "nothing"
        nested = [name for name in strange if {folder.name for folder in _folders(place / name)} & set(known)]
        advice = f"move what is in {place / nested[0]} up into {place}" if nested else "unpack the archive again"
        return Found(problems=(f"{title} need {layout}, such as {known[0]}; {place} holds {there}: {advice}",))
    if strange:
        return Found(
            problems=(
                f"{place} has {len(strange)} folders that are no class of {title}: {few(strange)}. Move them "
                "elsewhere: each would count as a class",
            )
        )
    loose = [name for name in _files(place) if _is_image(name)]
    if loose:
        return Found(
            problems=(
                f"{place} has {len(loose):,} images beside its class folders, such as {loose[0]}: then no image has a "
                "class. Move them into their folders, or elsewhere",
            )
        )
    lacking = [name for name in known if not counts.get(name)]
    notes = []
    if lacking:
        notes.append(f"{len(lacking):,} of {len(known):,} classes of {title} have no image: {few(lacking, 3)}")
    total = sum(counts.values())
    if total != released:
        notes.append(f"{place} has {total:,} images, released are {released:,}")
    return Found(place, notes=tuple(notes))


def _add(found: Found, problems: list[str], notes: list[str]) -> None:
    problems.extend(found.problems)
    notes.extend(found.notes)


def _folders(place: Path) -> list[Path]:
    if not place.is_dir():
        return []
    with os.scandir(place) as entries:
        return [Path(entry.path) for entry in entries if entry.is_dir() and not entry.name.startswith(".")]


def _files(place: Path) -> list[str]:
    if not place.is_dir():
        return []
    with os.scandir(place) as entries:
        return sorted(entry.name for entry in entries if not entry.is_dir() and not entry.name.startswith("."))


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in SUFFIXES  # noqa: PTH122 - a million Paths are slow


def _of_v2(name: str) -> DataSet:
    folder = SETS[name].folders[0]
    return DataSet(
        title=f"ImageNet-V2 ({folder.removeprefix('imagenetv2-').removesuffix('-format-val')})",
        place=folder,
        also=(f"imagenetv2/{folder}", *SETS[name].folders[1:]),
        archives=(folder.removesuffix("-format-val"),),
        unpack=f"Unpack its archive into the root; it brings {folder}/0 to {folder}/999.",
        look=_shifted(name),
    )


DATA_SETS: dict[str, DataSet] = {
    "imagenet": DataSet(
        title="ImageNet-1k",
        place="imagenet",
        also=IMAGENET_PLACES,
        archives=("ILSVRC2012_img_train", "ILSVRC2012_img_val", "imagenet-object-localization-challenge"),
        unpack="Unpack ILSVRC2012_img_train.tar, and each of the 1,000 archives in it into a folder of its name, to "
        "imagenet/train, and ILSVRC2012_img_val.tar to imagenet/val.",
        look=_imagenet,
    ),
    "imagenet-val": DataSet(
        title="ImageNet-1k's validation images",
        place="imagenet",
        also=IMAGENET_PLACES,
        archives=("ILSVRC2012_img_val",),
        unpack="Unpack ILSVRC2012_img_val.tar to imagenet/val.",
        look=partial(_imagenet, parts=("val",)),
    ),
    "real": DataSet(
        title="ImageNet-ReaL",
        place="imagenet/val",
        archives=(),
        unpack="Its labels come with timm; its images are those of ImageNet-1k's validation, by their file names.",
        look=_real,
    ),
    "v2-mf": _of_v2("v2-mf"),
    "v2-t07": _of_v2("v2-t07"),
    "v2-ti": _of_v2("v2-ti"),
    "sketch": DataSet(
        title="ImageNet-Sketch",
        place="sketch",
        also=("ImageNet-Sketch", "imagenet-sketch"),
        archives=("ImageNet-Sketch", "imagenet-sketch", "sketch"),
        unpack="Unpack ImageNet-Sketch.zip into the root; it brings sketch/WNID.",
        look=_shifted("sketch"),
    ),
    "a": DataSet(
        title="ImageNet-A",
        place="imagenet-a",
        archives=("imagenet-a",),
        unpack="Unpack imagenet-a.tar into the root; it brings imagenet-a/WNID for 200 classes.",
        look=_shifted("a"),
    ),
    "r": DataSet(
        title="ImageNet-R",
        place="imagenet-r",
        archives=("imagenet-r",),
        unpack="Unpack imagenet-r.tar into the root; it brings imagenet-r/WNID for 200 classes.",
        look=_shifted("r"),
    ),
    "imagenet-s": DataSet(
        title="ImageNet-S",
        place="ImageNetS919",
        also=("ImageNetS300", "ImageNetS50", "imagenet-s", "ImageNet-S"),
        archives=("ImageNetS",),
        unpack="Unpack ImageNetS919.zip into the root; it brings ImageNetS919/validation-segmentation/WNID/*.png. The "
        "images are taken from ImageNet-1k's validation, or from ImageNetS919/validation where that is there.",
        look=_imagenet_s,
    ),
    "ade20k": DataSet(
        title="ADE20K",
        place="ADEChallengeData2016",
        also=("ade20k", "ADE20K", "ade"),
        archives=("ADEChallengeData2016",),
        unpack="Unpack ADEChallengeData2016.zip into the root; it brings images/, annotations/ and objectInfo150.txt, "
        "the first two with training/ and validation/.",
        look=_ade20k,
    ),
    "coco": DataSet(
        title="COCO 2017",
        place="coco",
        also=("COCO", "coco2017", "COCO2017", "."),
        archives=("train2017", "val2017", "annotations_trainval2017"),
        unpack="Unpack train2017.zip, val2017.zip and annotations_trainval2017.zip into coco.",
        look=_coco,
    ),
}
SHIFTED = ("v2-mf", "v2-t07", "v2-ti", "sketch", "a", "r", "real")  # Table 4, in its order
