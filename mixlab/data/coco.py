"""COCO instance annotations: the JSON, and polygons and run lengths to masks."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixlab.errors import InputError

Bitmap = NDArray[np.bool_]


@dataclass(frozen=True)
class CocoObject:
    """One annotation: a box (left, top, width, height) and a segmentation as the file has it."""

    category: int
    box: tuple[float, float, float, float]
    segmentation: Any
    is_crowd: bool

    def bitmap(self, height: int, width: int) -> Bitmap:
        return decode_segmentation(self.segmentation, height, width)


@dataclass(frozen=True)
class CocoImage:
    number: int
    file_name: str
    height: int
    width: int
    objects: list[CocoObject] = field(default_factory=list)


@dataclass(frozen=True)
class CocoAnnotations:
    """An instances file: its images in file order, and the names of its categories (ids may have gaps)."""

    images: list[CocoImage]
    categories: dict[int, str]


def read_coco(path: str | Path) -> CocoAnnotations:
    """Read an instances JSON file, with a clear error for one that is broken or of another kind."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid JSON ({error}); is the file complete?") from error
    parts = ("images", "annotations", "categories")
    missing = [part for part in parts if not isinstance(content, dict) or not isinstance(content.get(part), list)]
    if missing:
        raise InputError(f"{path} has no list {missing[0]!r}; a COCO instances file has {', '.join(parts)}")
    try:
        images = {
            int(image["id"]): CocoImage(
                int(image["id"]), str(image["file_name"]), int(image["height"]), int(image["width"])
            )
            for image in content["images"]
        }
        categories = {int(category["id"]): str(category["name"]) for category in content["categories"]}
        for entry in content["annotations"]:
            left, top, width, height = (float(value) for value in entry["bbox"])
            images[int(entry["image_id"])].objects.append(
                CocoObject(
                    category=int(entry["category_id"]),
                    box=(left, top, width, height),
                    segmentation=entry.get("segmentation"),
                    is_crowd=bool(entry.get("iscrowd", 0)),
                )
            )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} has an entry that is not COCO's ({type(error).__name__}: {error}); "
            "images need id, file_name, height and width, annotations need image_id, category_id and bbox"
        ) from error
    return CocoAnnotations(images=list(images.values()), categories=categories)


def decode_segmentation(segmentation: Any, height: int, width: int) -> Bitmap:
    """COCO's three spellings of a mask, (height, width): polygons, run lengths as a list, run lengths as a string."""
    if isinstance(segmentation, list):
        mask = np.zeros((height, width), dtype=bool)
        for polygon in segmentation:
            points = np.asarray(polygon, dtype=np.float64)
            if points.ndim != 1 or len(points) % 2 or len(points) < 6 or not np.isfinite(points).all():
                raise InputError(f"a polygon of {points.size} numbers is not a list of three or more finite points")
            mask |= fill_polygon(points.reshape(-1, 2), height, width)
        return mask
    if isinstance(segmentation, dict) and "counts" in segmentation:
        counts = segmentation["counts"]
        runs = _unpack_counts(counts) if isinstance(counts, str | bytes) else np.asarray(counts, dtype=np.int64)
        if list(segmentation.get("size", ())) != [height, width]:
            raise InputError(f"run lengths of size {segmentation.get('size')} for an image of {[height, width]}")
        if runs.ndim != 1 or (runs < 0).any() or runs.sum() != height * width:
            raise InputError(f"run lengths that cover {runs.sum()} of {height * width} pixels")
        inside = np.arange(len(runs)) % 2 == 1  # runs alternate, the first is background, down the columns
        return np.repeat(inside, runs).reshape(width, height).T
    raise InputError("a segmentation that is neither polygons nor run lengths")


def fill_polygon(points: NDArray[np.float64], height: int, width: int) -> Bitmap:
    """Pixels whose centre lies inside a polygon (n, 2) of (x, y), by the even-odd rule."""
    x0, y0 = points.T
    x1, y1 = np.roll(points, -1, axis=0).T
    centres = np.arange(height)[:, None] + 0.5
    crosses = (np.minimum(y0, y1) <= centres) & (centres < np.maximum(y0, y1))  # (height, n)
    rows, edges = np.nonzero(crosses)
    share = (centres[rows, 0] - y0[edges]) / (y1 - y0)[edges]
    x = x0[edges] + share * (x1 - x0)[edges]
    columns = np.clip(np.ceil(x - 0.5), 0, width).astype(np.int64)
    flips = np.zeros((height, width + 1), dtype=np.int64)
    np.add.at(flips, (rows, columns), 1)  # every crossing turns inside into outside, or back
    return np.cumsum(flips, axis=1)[:, :width] % 2 == 1


def _unpack_counts(packed: str | bytes) -> NDArray[np.int64]:
    """COCO's compressed run lengths: six-bit groups, lowest first; from the fourth on, differences to two before."""
    codes = packed.encode("ascii") if isinstance(packed, str) else packed
    runs: list[int] = []
    value = shift = 0
    for code in codes:
        group = code - 48
        if not 0 <= group < 64:
            raise InputError(f"run lengths with the character {chr(code)!r}, which is not of COCO's alphabet")
        value |= (group & 31) << shift
        shift += 5
        if group & 32:  # more groups follow
            continue
        if group & 16:  # the sign
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value = shift = 0
    if shift:
        raise InputError("run lengths that break off in the middle of a number")
    return np.array(runs, dtype=np.int64)
