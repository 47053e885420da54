"""Folders that a study makes from other folders: a held-out part, and masks as label maps. Images are linked."""

from pathlib import Path

import numpy as np
from PIL import Image

from mixlab.data.decode import to_pil
from mixlab.data.images import ImageFolder, parse_source
from mixlab.data.mask_formats import parse_masks
from mixlab.data.source import HELD_OUT, SPLITS, split
from mixlab.data.unreadable import SkippedImages
from mixlab.errors import InputError
from mixlab.run.directory import write_json

HELD_OUT_MASKS = 4
SHORT_SIDE = 256  # px of what segmentation reads


def hold_out(data: str, out: str) -> None:
    """OUT/train and OUT/val with links to the images of DATA's training part: every fifth of a class is in val."""
    source, folder = parse_source(data, split="train"), Path(out)
    if not isinstance(source, ImageFolder) or not source.classes:
        raise InputError(f"{data} has no class folders to hold images out of; give one sub-folder per class")
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
        part: [source.paths[index] for index in chosen.indexes]
        for part, chosen in zip(SPLITS, split(source), strict=True)
    }


def write_labels(masks: str, out: str) -> None:
    """A masks source in the layout of `mixlab segment`: classes ground and figure, 255 not counted."""
    source, folder = parse_masks(masks), Path(out)
    skipped = SkippedImages(total=len(source), limit=1.0)
    for number, item in enumerate(source.read(skipped)):
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
            picture.save(place, quality=95)
    (folder / "classes.txt").write_text("ground\nfigure\n", encoding="utf-8")
