"""Folders that a study makes from others: small copies of large photographs, a held-out part, masks as label maps."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from mixlab.console import console
from mixlab.data.decode import UnreadableImage, decode, open_image, to_pil
from mixlab.data.images import ImageFolder, parse_source
from mixlab.data.mask_formats import parse_masks
from mixlab.data.skipped import SkippedImages
from mixlab.data.source import HELD_OUT, SPLITS, evenly_spaced, split
from mixlab.errors import InputError
from mixlab.run.disk import naming_file
from mixlab.run.files import write_json

HELD_OUT_MASKS = 4
SHORT_SIDE = 256  # px of what segmentation reads
COPY_SIDE = 128  # px of copies: views are cut from 112
SMALL = 160  # px: images up to this are read as they are
MOST = {"train": 20_000, "val": 5_000}
SAMPLED = 50  # headers that are looked at
QUALITY = 95
Images = list[tuple[Path, str]]  # each with its path within its part


def prepare(data: Path, out: Path, *, workers: int, side: int = COPY_SIDE) -> str:
    """The folder itself where it is split, or has no classes, and is small already; else a copy in OUT, made once.

    `side` is the short side of copies in pixels.
    """
    train, val = (parse_source(str(data), split=part) for part in ("train", "val"))
    assert isinstance(train, ImageFolder) and isinstance(val, ImageFolder)  # a folder was given
    as_it_is = train.root != val.root or not train.classes
    if train.root != val.root:
        parts = {"train": _images(train, train.paths), "val": _images(val, val.paths)}
    elif train.classes:
        parts = {part: _images(train, paths) for part, paths in held_out(train).items()}
    else:
        parts = {"train": _images(train, train.paths)}
    if as_it_is and all(_is_small(images, MOST[part]) for part, images in parts.items()):
        return str(data)
    if not (out / "split.json").is_file():
        chosen = {part: _evenly(images, MOST[part]) for part, images in parts.items()}
        numbers = {part: len(images) for part, images in chosen.items()}
        counts = ", ".join(f"{number:,} for {part}" for part, number in numbers.items())
        console.print(f"{data}: {counts} in {out}, large ones at {side} px")
        if not as_it_is:
            console.print(f"{data} has no val/: every fifth image of a class is for validation", style="yellow")
        pairs = [(file, out / part / path) for part, images in chosen.items() for file, path in images]
        with ThreadPoolExecutor(workers) as pool:  # decoding lets other threads run
            list(pool.map(lambda pair: _copy(pair[0], pair[1], side), pairs))
        write_json(out / "split.json", {"data": str(data), "short_side": side, **numbers})
    return str(out)


def _images(source: ImageFolder, paths: Sequence[str]) -> Images:
    return [(source.root / path, path) for path in paths]


def _is_small(images: Images, most: int) -> bool:
    return len(images) <= most and all(_short_side(file) <= SMALL for file, _ in _evenly(images, SAMPLED))


def _evenly(images: Images, most: int) -> Images:
    """At most `most`, evenly spaced over the sorted paths and so over classes."""
    return [images[index] for index in evenly_spaced(len(images), most)]


def _copy(file: Path, place: Path, side: int = COPY_SIDE) -> None:
    """A small copy, or a link if the image is small or unreadable; the reader reports unreadable ones."""
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        image = decode(file, draft=side) if _short_side(file) > SMALL else None
    except UnreadableImage:
        image = None
    if image is not None and place.suffix.lower() not in (".jpg", ".jpeg"):
        place = place.with_name(f"{place.name}.jpg")
    aside = place.with_name(f".{file.name}.partial")  # PLACE may be a link to a photograph: never written through
    aside.unlink(missing_ok=True)
    if image is None:
        aside.symlink_to(file.resolve())
    else:
        scale = side / min(image.size)
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        with naming_file(place):
            image.resize(size, Image.Resampling.BICUBIC).save(aside, format="JPEG", quality=QUALITY, subsampling=0)
    aside.replace(place)


def _short_side(file: Path) -> int:
    """Without decoding it; 0 where it cannot be read."""
    try:
        return min(open_image(file, name=str(file)).size)
    except UnreadableImage:
        return 0


def hold_out(data: str, out: str) -> None:
    """OUT/train and OUT/val with links to the images of DATA's training part: every fifth of a class is in val."""
    source, folder = parse_source(data, split="train"), Path(out)
    if not isinstance(source, ImageFolder) or not source.classes:
        raise InputError(f"{data} has no class folders to split; give one sub-folder per class")
    parts = held_out(source)
    for part, paths in parts.items():
        for path in paths:
            link = folder / part / path
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.is_symlink():
                link.symlink_to((source.root / path).resolve())
    counts = {part: len(paths) for part, paths in parts.items()}
    write_json(folder / "split.json", {"data": data, "held_out": f"every {HELD_OUT}th image of a class", **counts})


def held_out(source: ImageFolder) -> dict[str, list[str]]:
    """The paths of a source in two parts."""
    return {
        part: [source.paths[index] for index in chosen.indexes.tolist()]
        for part, chosen in zip(SPLITS, split(source), strict=True)
    }


def write_labels(masks: str, out: str) -> None:
    """A masks source in the layout of `mixlab segment`: classes ground and figure, 255 not counted."""
    source, folder = parse_masks(masks), Path(out)
    skipped = SkippedImages(total=len(source), limit=1.0)
    for number, (_, item) in enumerate(source.read(skipped)):
        part = "validation" if number % HELD_OUT_MASKS == 0 else "training"
        height, width = item.mask.shape
        scale = min(1.0, SHORT_SIDE / min(height, width))
        size = (round(width * scale), round(height * scale))
        mask = Image.fromarray(item.mask.numpy().astype(np.uint8)).resize(size, Image.Resampling.NEAREST)
        for kind, picture, suffix in (
            ("images", to_pil(item.image).resize(size, Image.Resampling.BICUBIC), ".jpg"),
            ("labels", mask, ".png"),
        ):
            place = folder / kind / part / f"{number:05d}{suffix}"
            place.parent.mkdir(parents=True, exist_ok=True)
            with naming_file(place):
                picture.save(place, quality=95)
    (folder / "classes.txt").write_text("ground\nfigure\n", encoding="utf-8")
