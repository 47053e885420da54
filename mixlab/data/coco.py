"""COCO's files: instance annotations, their images, and masks as polygons or run lengths."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mixlab.errors import InputError, short

from .decode import MAX_PIXELS, UnreadableImage, decode, printable, to_tensor
from .source import Source, T

Bitmap = NDArray[np.bool_]
_FAR = 2.0**24  # pixels; a point of a polygon further out is damage
_MAX_CROSSINGS = 1 << 24  # rows x edges of a polygon at once: bounds the working memory


@dataclass(frozen=True)
class CocoObject:
    """One annotation: a box (left, top, width, height) and a segmentation as the file has it."""

    category: int
    box: tuple[float, float, float, float]
    segmentation: Any
    is_crowd: bool
    area: float | None = None  # where the file says it


@dataclass(frozen=True)
class CocoImage:
    number: int
    file_name: str
    height: int
    width: int
    objects: list[CocoObject] = field(default_factory=list)

    def read(self, root: Path) -> Tensor:
        """The image, uint8 (3, H, W); `UnreadableImage` where its size differs from the annotations."""
        image = decode(root / self.file_name)
        if image.size != (self.width, self.height):
            raise UnreadableImage(
                root / self.file_name,
                f"the image is {image.width} x {image.height}, its annotations say {self.width} x {self.height}",
            )
        return to_tensor(image)

    def bitmaps(self, objects: Sequence[CocoObject], root: Path) -> list[Bitmap]:
        """The masks of some of its objects; `UnreadableImage` where one is damaged."""
        try:
            return [decode_segmentation(item.segmentation, self.height, self.width) for item in objects]
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise UnreadableImage(root / self.file_name, f"its annotations hold {error}") from error


def read_coco(path: str | Path) -> tuple[list[CocoImage], dict[int, str]]:
    """The images of an instances file in its order, and the names of its categories, whose numbers may have gaps.

    Everything but segmentations is checked here, so that no image or object is left out without a word.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON ({error}); is the file complete?") from error
    parts = ("images", "annotations", "categories")
    missing = [part for part in parts if not isinstance(content, dict) or not isinstance(content.get(part), list)]
    if missing:
        raise InputError(f"{path} has no list {missing[0]!r}; a COCO instances file has {', '.join(parts)}")
    images: dict[int, CocoImage] = {}
    categories: dict[int, str] = {}
    for part, add in (("images", _add_image), ("categories", _add_category), ("annotations", _add_object)):
        for place, entry in enumerate(content[part]):
            try:
                add(entry, images, categories)
            except KeyError as error:
                raise InputError(f"{path}: {part}[{place}] lacks {error}; {_NEEDED}") from error
            except (TypeError, ValueError, OverflowError) as error:
                raise InputError(f"{path}: {part}[{place}] {error}; correct it. {_NEEDED}") from error
    return list(images.values()), categories


_NEEDED = "images need id, file_name, height and width, annotations need image_id, category_id and bbox"
_Images = dict[int, CocoImage]
_Categories = dict[int, str]


def _add_image(entry: Any, images: _Images, categories: _Categories) -> None:
    number, height, width = (_whole(entry, name) for name in ("id", "height", "width"))
    name = _field(entry, "file_name")
    if not isinstance(name, str) or not name:
        raise InputError(f"has file_name {_short(name)}, which is not text")
    if number in images:
        raise InputError(f"has id {number}, as {images[number].file_name} has")
    if height < 1 or width < 1 or height * width > MAX_PIXELS:
        raise InputError(f"is {width} x {height} pixels; images have 1 to {MAX_PIXELS:,}")
    images[number] = CocoImage(number, name, height, width)


def _add_category(entry: Any, images: _Images, categories: _Categories) -> None:
    number, name = _whole(entry, "id"), _field(entry, "name")
    if number in categories:
        raise InputError(f"has id {number}, as {categories[number]} has")
    categories[number] = printable(name)


def _add_object(entry: Any, images: _Images, categories: _Categories) -> None:
    number, category, box = _whole(entry, "image_id"), _whole(entry, "category_id"), _field(entry, "bbox")
    if number not in images:
        raise InputError(f"has image_id {number}, which no image has")
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_finite, box)):
        raise InputError(f"(of {images[number].file_name}) has bbox {_short(box)}, not four finite numbers")
    left, top, width, height = map(float, box)
    if width < 0 or height < 0:
        raise InputError(
            f"(of {images[number].file_name}) has bbox {_short(box)}, whose width or height is negative; it is left, "
            "top, width, height"
        )
    area, crowd = entry.get("area"), entry.get("iscrowd")
    if area is not None and not (_is_finite(area) and area >= 0):
        raise InputError(f"(of {images[number].file_name}) has area {_short(area)}, not a finite number from 0 on")
    if crowd not in (None, 0, 1):
        raise InputError(f"(of {images[number].file_name}) has iscrowd {_short(crowd)}, neither 0 nor 1")
    images[number].objects.append(
        CocoObject(
            category=category,
            box=(left, top, width, height),
            segmentation=entry.get("segmentation"),
            is_crowd=bool(crowd),
            area=area,
        )
    )


def _field(entry: Any, name: str) -> Any:
    if not isinstance(entry, dict):
        raise InputError(f"is {_short(entry)}, not an object with fields")
    return entry[name]


def _whole(entry: Any, name: str) -> int:
    """A whole number, also as text or as 3.0."""
    value = _field(entry, name)
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or isinstance(value, bool) or (isinstance(value, float) and value != number):
        raise InputError(f"has {name} {_short(value)}, not a whole number")
    if abs(number) >= 2**63:
        raise InputError(f"has {name} {_short(value)}, which is too large")
    return number


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18  # NaN is not


def _short(value: Any) -> str:
    return printable(short(value))


class CocoSource(Source[T]):
    """An instances file with at least one image, and the folder of its images, which lies near."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.images, self.categories = read_coco(file)
        if not self.images:
            raise InputError(f"{file} lists no images; give a file with some")
        part = file.stem.removeprefix("instances_")
        parents = (file.parent, file.parent.parent)
        folders = (parent / name for parent in parents for name in ("images", part, f"images/{part}", "."))
        found = (folder for folder in folders if any(_is_file(folder / im.file_name) for im in self.images[:10]))
        root = next(found, None)
        if root is None:
            raise FileNotFoundError(
                f"{file} names images such as {self.images[0].file_name}, which are not in images/ or {part}/ beside "
                f"it; unpack {part}.zip there"
            )
        self.root = root

    def __len__(self) -> int:
        return len(self.images)

    def name(self, index: int) -> str:
        return printable(self.images[index].file_name)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # such as a name that is too long
        return False


def coco_files(place: Path) -> list[Path]:
    """The instances files of a folder."""
    found = sorted(place.glob("instances*.json")) + sorted((place / "annotations").glob("instances*.json"))
    return [file for file in found if file.is_file()]


def need_coco_files(place: Path) -> list[Path]:
    """The file itself, or those of a folder, which must have some."""
    files = [place] if place.is_file() else coco_files(place)
    if not files:
        raise FileNotFoundError(
            f"{place} has no instances*.json, nor has its folder annotations; unpack annotations_trainval2017.zip "
            "there, or give the file itself"
        )
    return files


def decode_segmentation(segmentation: Any, height: int, width: int) -> Bitmap:
    """COCO's three spellings of a mask, (height, width): polygons, run lengths as a list, run lengths as a string."""
    if isinstance(segmentation, list):
        mask = np.zeros((height, width), dtype=bool)
        for polygon in segmentation:
            mask |= fill_polygon(polygon_points(polygon), height, width)
        return mask
    if isinstance(segmentation, dict) and "counts" in segmentation:
        counts = segmentation["counts"]
        runs = _unpack_counts(counts) if isinstance(counts, str | bytes) else np.asarray(counts, dtype=np.int64)
        if list(segmentation.get("size", ())) != [height, width]:
            raise InputError(f"run lengths of size {segmentation.get('size')} for an image of {[height, width]}")
        if runs.ndim != 1 or ((runs < 0) | (runs > height * width)).any() or runs.sum() != height * width:
            raise InputError(f"run lengths that cover {runs.sum()} of {height * width} pixels")
        inside = np.arange(len(runs)) % 2 == 1  # runs alternate, the first is background, down the columns
        return np.repeat(inside, runs).reshape(width, height).T
    raise InputError("a segmentation that is neither polygons nor run lengths")


def polygon_points(polygon: Any) -> NDArray[np.float64]:
    """The points (n, 2) of a polygon as a file has it."""
    values = np.asarray(polygon)
    if values.ndim != 1 or values.dtype.kind not in "iuf" or len(values) % 2 or len(values) < 6:
        raise InputError(f"a polygon of {values.size} numbers is not a list of three or more finite points")
    if not (np.abs(values.astype(np.float64)) <= _FAR).all():
        raise InputError("a polygon with points that are not finite, or far outside of any image")
    return values.reshape(-1, 2).astype(np.float64)


def fill_polygon(points: NDArray[np.float64], height: int, width: int) -> Bitmap:
    """Pixels whose centre lies inside a polygon (n, 2) of (x, y), by the even-odd rule."""
    x0, y0 = points.T
    x1, y1 = np.roll(points, -1, axis=0).T
    centres = np.arange(height)[:, None] + 0.5
    flips = np.zeros((height, width + 1), dtype=np.int64)
    at_once = max(1, _MAX_CROSSINGS // height)
    for part in (slice(first, first + at_once) for first in range(0, len(points), at_once)):
        low, high = np.minimum(y0[part], y1[part]), np.maximum(y0[part], y1[part])
        rows, edges = np.nonzero((low <= centres) & (centres < high))  # of (height, edges)
        edges += part.start
        share = (centres[rows, 0] - y0[edges]) / (y1 - y0)[edges]
        x = x0[edges] + share * (x1 - x0)[edges]
        columns = np.clip(np.ceil(x - 0.5), 0, width).astype(np.int64)
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
        if shift > 60:
            raise InputError("run lengths with a number of more than 60 bits")
        if group & 32:  # more groups follow
            continue
        if group & 16:  # the sign
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value = shift = 0
    if shift:
        raise InputError("run lengths that end in the middle of a number")
    return np.array(runs, dtype=np.int64)


def box_as_coco(box: Sequence[float]) -> list[float]:
    """Left, top, width, height from left, top, right, bottom."""
    left, top, right, bottom = box
    return [left, top, right - left, bottom - top]


def encode_mask(mask: Tensor) -> dict[str, Any]:
    """A bool mask (H, W) as COCO's packed run lengths: down the columns, background first."""
    pixels = np.concatenate([[False], mask.numpy().T.ravel()])
    starts = np.flatnonzero(pixels[1:] != pixels[:-1])
    runs = np.diff(np.concatenate([[0], starts, [mask.numel()]]))
    return {"size": list(mask.shape), "counts": _pack_runs(runs.tolist())}


def _pack_runs(runs: Sequence[int]) -> str:
    """Groups of five bits, lowest first, with a flag for more; from the fourth run on, differences to two before."""
    text = []
    for place, run in enumerate(runs):
        value = run - runs[place - 2] if place > 2 else run
        more = True
        while more:
            group = value & 31
            value >>= 5
            more = value != (-1 if group & 16 else 0)  # the sign is the last group's highest bit
            text.append(chr(48 + group + (32 if more else 0)))
    return "".join(text)
