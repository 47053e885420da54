"""Images with objects: boxes, classes and masks, from COCO's files or drawn."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from mixlab.errors import InputError, counted, few

from .coco import (
    CocoImage,
    CocoObject,
    CocoSource,
    box_as_coco,
    decode_segmentation,
    encode_mask,
    need_coco_files,
    polygon_points,
)
from .decode import printable
from .given import Data, GivenData
from .registered import is_registered, open_registered_with
from .shapes import Shapes, parse_shapes
from .source import SPLITS, Source, Subset, check_split, part_of
from .source_names import nearest_place


class Objects(NamedTuple):
    """N objects of one image. Boxes are left, top, right, bottom in pixels; edges, not pixel centres."""

    boxes: Tensor  # float (N, 4)
    classes: Tensor  # int64 (N,)
    masks: Tensor  # bool (N, H, W)


class AnnotatedImage(ABC):
    """What is known of an image and its objects. Files are read and masks are decoded when they are asked for."""

    number: int  # COCO's number of the image
    name: str
    size: tuple[int, int]  # height, width

    @property
    @abstractmethod
    def has_objects(self) -> bool:
        """Whether there are any to learn from."""

    @property
    @abstractmethod
    def image(self) -> Tensor:
        """uint8 (3, H, W); `UnreadableImage` where the file is damaged."""

    @abstractmethod
    def objects(self) -> Objects:
        """Those that are learnt from: no crowds; `UnreadableImage` where a mask is damaged."""

    @abstractmethod
    def annotations(self) -> list[dict[str, Any]]:
        """All objects, crowds too, as COCO's entries without numbers of their own."""


ObjectSource: TypeAlias = Source[AnnotatedImage]


class CocoObjects(CocoSource[AnnotatedImage]):
    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self.class_ids = tuple(sorted(self.categories))
        self.classes = tuple(self.categories[number] for number in self.class_ids)
        self.class_of = {number: place for place, number in enumerate(self.class_ids)}
        for image in self.images:
            for item in image.objects:
                if item.category not in self.class_of:
                    raise InputError(
                        f"{file}: an object of {image.file_name} is of category {item.category}, "
                        "which the file's categories do not list; add it there"
                    )

    def load(self, index: int) -> AnnotatedImage:
        return _CocoAnnotatedImage(self.images[index], self)


class ShapeObjects(ObjectSource):
    """The embedded scenes. COCO's numbers count from 1."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes, self.classes = shapes, shapes.classes
        self.class_ids = tuple(range(1, len(self.classes) + 1))

    def __len__(self) -> int:
        return len(self.shapes)

    def name(self, index: int) -> str:
        return self.shapes.name(index)

    def load(self, index: int) -> AnnotatedImage:
        return _DrawnAnnotatedImage(self.shapes, index)


class _CocoAnnotatedImage(AnnotatedImage):
    """Objects thinner than a pixel are not learnt from."""

    def __init__(self, about: CocoImage, source: CocoObjects) -> None:
        self._about, self._source = about, source
        self.number, self.name, self.size = about.number, printable(about.file_name), (about.height, about.width)

    @property
    def has_objects(self) -> bool:
        return any(_is_learnt(item, self._about) for item in self._about.objects)

    @property
    def image(self) -> Tensor:
        return self._about.read(self._source.root)

    def objects(self) -> Objects:
        items = [item for item in self._about.objects if _is_learnt(item, self._about)]
        masks = np.zeros((len(items), *self.size), dtype=bool)
        for number, bitmap in enumerate(self._about.bitmaps(items, self._source.root)):
            masks[number] = bitmap
        return Objects(
            torch.tensor([_inside(item, self._about) for item in items], dtype=torch.float32).reshape(-1, 4),
            torch.tensor([self._source.class_of[item.category] for item in items], dtype=torch.int64),
            torch.from_numpy(masks),
        )

    def annotations(self) -> list[dict[str, Any]]:
        return [self._entry(item) for item in self._about.objects]

    def _entry(self, item: CocoObject) -> dict[str, Any]:
        """As the file has it, with what COCO's own tools need and a file may leave out."""
        left, top, width, height = item.box
        frame = [[left, top, left, top + height, left + width, top + height, left + width, top]]
        segmentation = item.segmentation or frame
        self._check(segmentation)
        return {
            "image_id": self.number,
            "category_id": item.category,
            "bbox": list(item.box),
            "area": width * height if item.area is None else item.area,
            "iscrowd": int(item.is_crowd),
            "segmentation": segmentation,
        }

    def _check(self, segmentation: Any) -> None:
        """COCO's tools are C and trust what they are given."""
        try:
            if isinstance(segmentation, list):
                for polygon in segmentation:
                    polygon_points(polygon)
            else:
                decode_segmentation(segmentation, *self.size)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise InputError(f"{self._source.file}: an annotation of {self.name} holds {error}; correct it") from error


class _DrawnAnnotatedImage(AnnotatedImage):
    def __init__(self, shapes: Shapes, index: int) -> None:
        self._shapes, self._index = shapes, index
        self.number, self.name, self.size = index + 1, shapes.name(index), (shapes.size, shapes.size)

    @property
    def has_objects(self) -> bool:
        return True  # the main object is always there

    @property
    def image(self) -> Tensor:
        return self._shapes.load(self._index)

    def objects(self) -> Objects:
        scene = self._shapes.scene(self._index)
        return Objects(scene.boxes, scene.classes, scene.instances)

    def annotations(self) -> list[dict[str, Any]]:
        return [
            {
                "image_id": self.number,
                "category_id": int(kind) + 1,
                "bbox": box_as_coco(box.tolist()),
                "area": float(mask.sum()),
                "iscrowd": 0,
                "segmentation": encode_mask(mask),
            }
            for box, kind, mask in zip(*self.objects(), strict=True)
        ]


def parse_objects(name: Data, *, split: str = "train", keep_empty: bool = True) -> ObjectSource:
    """A source from its name: `shapes[:size=64,n=2000,seed=0]`, a COCO folder, or an instances file.

    A folder holds instances*.json, perhaps in annotations/, for each split or for all images. Without one for
    validation, every fifth image is held out. `keep_empty=False` leaves images without objects out. A damaged mask of a
    validation image is refused at once: a score of fewer images would be another score.
    """
    check_split(split)
    if isinstance(name, GivenData):
        source: ObjectSource = name.part_with(split, AnnotatedImage, "detection")
    elif shapes := parse_shapes(name, split=split):
        return ShapeObjects(shapes)
    elif is_registered(name):
        source = open_registered_with(name, split, AnnotatedImage, "detection")
    else:
        source = _open_coco(name, split)
        if split == "val":
            for index in range(len(source)):
                source.load(index).annotations()
    if keep_empty:
        return source
    full = [index for index in range(len(source)) if source.load(index).has_objects]
    if not full:
        raise InputError(
            f"{name}: none of its {len(source)} images has an object to learn from; give "
            "annotations with masks or boxes"
        )
    empty = [source.load(index) for index in sorted(set(range(len(source))) - set(full))]
    lost = [image.name for image in empty if any(not entry.get("iscrowd") for entry in image.annotations())]
    if lost:
        warnings.warn(
            f"{name}: {counted(lost, 'image is', 'images are')} left out, as all their objects are thinner than a "
            f"pixel or have no mask: {few(lost)}",
            stacklevel=2,
        )
    return source if len(full) == len(source) else Subset(source, full)


def instances_file(source: ObjectSource) -> dict[str, Any]:
    """All images and their objects as the content of a COCO instances file."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for index in range(len(source)):
        sample = source.load(index)
        height, width = sample.size
        images.append({"id": sample.number, "file_name": sample.name, "height": height, "width": width})
        annotations += sample.annotations()
    return {
        "images": images,
        "annotations": [{**entry, "id": number} for number, entry in enumerate(annotations, start=1)],  # 0 means none
        "categories": [
            {"id": number, "name": name} for number, name in zip(source.class_ids, source.classes, strict=True)
        ],
    }


def scale_boxes(boxes: Tensor, *, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Boxes (N, 4) of an image of size `old` (height, width) in the same image at size `new`."""
    across, down = new[1] / old[1], new[0] / old[0]
    return boxes * boxes.new_tensor([across, down, across, down])


def _open_coco(name: str, split: str) -> ObjectSource:
    place = Path(name).expanduser()
    if not place.exists():
        raise FileNotFoundError(
            f"{name!r} is not a source of objects: neither 'shapes' nor an existing folder or file; "
            f"{nearest_place(name)}"
        )
    files = need_coco_files(place)
    named = {file: [which for which in SPLITS if which in file.stem] for file in files}
    own = {which: [file for file in files if named[file] == [which]] for which in SPLITS}
    if own["val"] and own[split]:
        return CocoObjects(own[split][0])
    alone = [] if own["val"] or place.is_file() else sorted(place.glob("val*/")) + sorted(place.glob("images/val*/"))
    if own["train"] and alone:
        raise FileNotFoundError(
            f"{alone[0]} has no instances_{alone[0].name}.json: unpack annotations_trainval2017.zip again; or move it "
            "away, and every fifth training image is held out"
        )
    shared = [file for file in files if file not in own["train"] + own["val"]]  # trainval is shared, too
    if own["val"] and not shared:
        raise FileNotFoundError(
            f"{own['val'][0]} is for validation, and {place} has no file to train on; add instances_train.json, or "
            "call the file instances.json: then every fifth image is held out"
        )
    return part_of(CocoObjects((own["train"] or shared)[0]), split, name=name)


def _is_learnt(item: CocoObject, about: CocoImage) -> bool:
    left, top, right, bottom = _inside(item, about)
    return not item.is_crowd and bool(item.segmentation) and right - left >= 1 and bottom - top >= 1


def _inside(item: CocoObject, about: CocoImage) -> tuple[float, float, float, float]:
    """Left, top, right, bottom, as far as it lies in the image."""
    left, top, width, height = item.box
    x0, x1 = (min(max(edge, 0.0), about.width) for edge in (left, left + width))
    y0, y1 = (min(max(edge, 0.0), about.height) for edge in (top, top + height))
    return x0, y0, x1, y1
