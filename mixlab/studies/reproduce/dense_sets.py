"""The sets with masks and boxes: ImageNet-S, ADE20K and COCO."""

from pathlib import Path

from mixlab.data.images import child
from mixlab.errors import counted, few
from mixlab.studies.reproduce.folders import DataSet, Found, files_in, folders_in, is_image, stopped, together
from mixlab.studies.reproduce.imagenet_sets import IMAGENET

IMAGENET_S_PARTS = {
    "ImageNetS919": 12_419,
    "ImageNetS300": 4_097,
    "ImageNetS50": 752,
}  # images of validation, as released
ADE_PARTS = {"training": 20_210, "validation": 2_000}
COCO_PARTS = {"train2017": 118_287, "val2017": 5_000}


def _imagenet_s(root: Path, data: DataSet) -> Found:
    place = data.folder(root, "validation-segmentation", "train-semi-segmentation", "validation")
    if place is None:
        return data.missing(root)
    masks, images = place / "validation-segmentation", place / "validation"
    if not masks.is_dir():
        there = [folder.name for folder in folders_in(place)]
        return stopped(
            f"{place} has {few(there)}, but not validation-segmentation: the paper scores validation alone, and "
            f"masks of another split belong to other images. {data.unpack}"
        )
    wanted = _names(masks)
    if not wanted:
        return stopped(f"{masks} has no folders with masks (WNID/ILSVRC2012_val_*.png). {data.unpack}")
    released = IMAGENET_S_PARTS.get(place.name, 0)
    notes = [f"{place.name} has {len(wanted):,} masks, released are {released:,}"] if released > len(wanted) else []
    if place.name != "ImageNetS919":
        notes.append(f"the paper scores ImageNetS919; {place.name} has fewer classes")
    have = _names(images)
    if wanted <= have:
        return Found(place, notes=tuple(notes))
    imagenet = IMAGENET.folder(root, "val")
    lacking = sorted(wanted - have)
    if imagenet is None:
        return stopped(
            f"{len(lacking):,} of the {len(wanted):,} masks in {masks} have no image in {images}, such as "
            f"{lacking[0]}.JPEG: the archive of ImageNet-S holds masks alone. Have ImageNet-1k in "
            f"{root / IMAGENET.place}, of whose validation images links are made; or copy them"
        )
    val = imagenet / "val"
    numbers = {Path(name).stem for folder in (val, *folders_in(val)) for name in files_in(folder)}
    strange = [stem for stem in sorted({one.rsplit("/", 1)[1] for one in wanted}) if stem not in numbers]
    if strange:
        return stopped(
            f"{len(strange):,} masks in {masks} belong to no image of {val}, such as {strange[0]}: masks of "
            f"another split, or another data set. {data.unpack}"
        )
    notes.append(f"{place} has masks without images: links to {val} bring them together in the run")
    return Found(place, notes=tuple(notes), arrange=("pair-masks", str(place), str(val)))


def _names(place: Path) -> set[str]:
    """Of all files in the folders of a place: WNID/STEM."""
    return {f"{folder.name}/{Path(name).stem}" for folder in folders_in(place) for name in files_in(folder)}


def _ade20k(root: Path, data: DataSet) -> Found:
    place = data.folder(root)
    if place is None:
        full = [folder.name for folder in folders_in(root) if folder.name.startswith("ADE20K_20")]
        if full:
            return stopped(f"{root / full[0]} is the full ADE20K; both papers use its 150-class form. {data.unpack}")
        return data.missing(root)
    if child(place, "images") and not (place / "annotations").is_dir():
        said = f"{place} has images/ but no annotations/, in which 0 is unlabelled and 1 to 150 are the classes."
        return stopped(f"{said} {data.unpack}")
    found = together(place, [_ade_part(place, part, data) for part in ADE_PARTS])
    if found.place and not (place / "objectInfo150.txt").is_file():
        return together(
            place, [found, stopped(f"{place} has no objectInfo150.txt, which names the classes. {data.unpack}")]
        )
    return found


def _ade_part(place: Path, part: str, data: DataSet) -> Found:
    images, masks = place / "images" / part, place / "annotations" / part
    for folder in (images, masks):
        if not folder.is_dir():
            return stopped(f"{folder} is missing. {data.unpack}")
    pictures, labels = ({Path(name).stem for name in files_in(folder) if is_image(name)} for folder in (images, masks))
    pairs, alone, notes = len(pictures & labels), len(pictures ^ labels), []
    if not pairs:
        return stopped(f"no file in {images} has a label map of its name in {masks}: are these one split's?")
    if alone:
        lone = ("file of {0} has no counterpart and is", "files of {0} have no counterpart and are")
        notes.append(f"{counted(alone, *lone).format(part)} left out")
    if pairs < ADE_PARTS[part]:
        notes.append(f"{part} has {pairs:,} pairs, released are {ADE_PARTS[part]:,}")
    return Found(place, notes=tuple(notes))


def _coco(root: Path, data: DataSet) -> Found:
    place = data.folder(root, "annotations", "train2017", "val2017")
    if place is None:
        place = next((root / name for name in (data.place, *data.also[:-1]) if (root / name).is_dir()), None)
    if place is None:
        return data.missing(root)
    annotations = place / "annotations"
    if not annotations.is_dir():
        return stopped(
            f"{place} has no annotations/. Unpack annotations_trainval2017.zip there; it brings "
            "annotations/instances_train2017.json and annotations/instances_val2017.json"
        )
    return together(
        place, [found for part in COCO_PARTS for found in (_coco_objects(annotations, part), _coco_images(place, part))]
    )


def _coco_objects(annotations: Path, part: str) -> Found:
    file = annotations / f"instances_{part}.json"
    if file.is_file():
        return Found(file)
    others = [name for name in files_in(annotations) if name.endswith(".json")]
    there = f", only {few(others)}" if others else ""
    return stopped(
        f"{annotations} has no {file.name}{there}: boxes and masks of COCO 2017 are in the instances files of "
        "annotations_trainval2017.zip"
    )


def _coco_images(place: Path, part: str) -> Found:
    images = next((folder for folder in (place / part, place / "images" / part) if folder.is_dir()), None)
    if images is None:
        return stopped(f"{place / part} is missing; unpack {part}.zip into {place}")
    count, released = sum(map(is_image, files_in(images))), COCO_PARTS[part]
    return Found(images, notes=(f"{part} has {count:,} images, released are {released:,}",) if count < released else ())


IMAGENET_S = DataSet(
    title="ImageNet-S",
    place="ImageNetS919",
    also=("ImageNetS300", "ImageNetS50", "imagenet-s", "ImageNet-S"),
    archives=("ImageNetS",),
    unpack="Unpack ImageNetS919.zip into the root; it brings ImageNetS919/validation-segmentation/WNID/*.png. The "
    "images are taken from ImageNet-1k's validation, or from ImageNetS919/validation where that is there.",
    look=_imagenet_s,
)
ADE20K = DataSet(
    title="ADE20K",
    place="ADEChallengeData2016",
    also=("ade20k", "ADE20K", "ade"),
    archives=("ADEChallengeData2016",),
    unpack="Unpack ADEChallengeData2016.zip into the root; it brings images/, annotations/ and objectInfo150.txt, "
    "the first two with training/ and validation/.",
    look=_ade20k,
)
COCO = DataSet(
    title="COCO 2017",
    place="coco",
    also=("COCO", "coco2017", "COCO2017", "."),
    archives=("train2017", "val2017", "annotations_trainval2017"),
    unpack="Unpack train2017.zip, val2017.zip and annotations_trainval2017.zip into coco.",
    look=_coco,
)
