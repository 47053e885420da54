"""COCO's instances as objects to learn from."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mixlab.data.coco import CocoImage, CocoObject, decode_segmentation, read_coco
from mixlab.data.decode import decode, to_tensor
from mixlab.data.unreadable import UnreadableImage
from mixlab.errors import InputError
from mixlab.evaluation.detection.object_source import ObjectSource
from mixlab.evaluation.detection.objects import Objects


class CocoObjects(ObjectSource):
    """An instances file and the folder of its images. Objects thinner than a pixel are not learnt from."""

    def __init__(self, annotations: Path, images: Path) -> None:
        self.file, self.root = annotations, images
        content = read_coco(annotations)
        self.images = content.images
        if not self.images:
            raise InputError(f"{annotations} lists no images; give a file with some")
        self.category_ids = tuple(sorted(content.categories))
        self.classes = tuple(content.categories[number] for number in self.category_ids)
        self._by_id = {image.number: image for image in self.images}
        self._class_of = {number: place for place, number in enumerate(self.category_ids)}
        for image in self.images:
            for item in image.objects:
                if item.category not in self._class_of:
                    raise InputError(
                        f"{annotations}: an object of {image.file_name} is of category {item.category}, "
                        "which the file's categories do not list; add it there"
                    )

    def __len__(self) -> int:
        return len(self.images)

    def load(self, index: int) -> tuple[Tensor, Objects]:
        about = self.images[index]
        image, items = self.image(index), self._learnt(about)
        masks = np.zeros((len(items), about.height, about.width), dtype=bool)
        try:
            for number, item in enumerate(items):
                masks[number] = item.bitmap(about.height, about.width)
        except (ValueError, TypeError, OverflowError) as error:
            raise UnreadableImage(self.root / about.file_name, f"its annotations hold {error}") from error
        objects = Objects(
            torch.tensor([_inside(item, about) for item in items], dtype=torch.float32).reshape(-1, 4),
            torch.tensor([self._class_of[item.category] for item in items], dtype=torch.int64),
            torch.from_numpy(masks),
        )
        return image, objects

    def image(self, index: int) -> Tensor:
        about = self.images[index]
        image = decode(self.root / about.file_name)
        if image.size != (about.width, about.height):
            raise UnreadableImage(
                self.root / about.file_name,
                f"the image is {image.width} x {image.height}, its annotations say {about.width} x {about.height}",
            )
        return to_tensor(image)

    def size(self, index: int) -> tuple[int, int]:
        return self.images[index].height, self.images[index].width

    def num_objects(self, index: int) -> int:
        return len(self._learnt(self.images[index]))

    def image_id(self, index: int) -> int:
        return self.images[index].number

    def name(self, index: int) -> str:
        return self.images[index].file_name

    def truth(self, indexes: Iterable[int] | None = None) -> dict[str, Any]:
        """The file as it is, with what COCO's own tools need and a file may leave out."""
        content = json.loads(self.file.read_text(encoding="utf-8"))
        kept = self._by_id.keys() if indexes is None else {self.image_id(index) for index in indexes}
        annotations = []
        for number, entry in enumerate(content["annotations"], start=1):  # numbered anew: COCO's tools take 0 for none
            if entry["image_id"] not in kept:
                continue
            left, top, width, height = entry["bbox"]
            frame = [[left, top, left, top + height, left + width, top + height, left + width, top]]
            segmentation = entry.get("segmentation") or frame
            self._check(segmentation, entry["image_id"])
            extra = {"area": width * height, "iscrowd": 0}
            annotations.append({**extra, **entry, "segmentation": segmentation, "id": number})
        images = [image for image in content["images"] if image["id"] in kept]
        return {"images": images, "annotations": annotations, "categories": self.categories()}

    def _check(self, segmentation: Any, image_id: int) -> None:
        """COCO's tools are C and trust what they are given."""
        about = self._by_id[image_id]
        try:
            if isinstance(segmentation, list):
                for polygon in segmentation:
                    if not isinstance(polygon, list) or len(polygon) % 2 or len(polygon) < 6:
                        raise InputError("a polygon that is not a list of three or more points")
                    if not all(isinstance(value, int | float) and math.isfinite(value) for value in polygon):
                        raise InputError("a polygon with points that are not numbers")
            else:
                decode_segmentation(segmentation, about.height, about.width)
        except (ValueError, TypeError, OverflowError) as error:
            raise InputError(f"{self.file}: an annotation of {about.file_name} holds {error}; correct it") from error

    def _learnt(self, about: CocoImage) -> list[CocoObject]:
        kept = []
        for item in about.objects:
            left, top, right, bottom = _inside(item, about)
            if not item.is_crowd and item.segmentation and right - left >= 1 and bottom - top >= 1:
                kept.append(item)
        return kept


def _inside(item: CocoObject, about: CocoImage) -> tuple[float, float, float, float]:
    """Left, top, right, bottom, as far as it lies in the image."""
    left, top, width, height = item.box
    x0, x1 = (min(max(edge, 0.0), about.width) for edge in (left, left + width))
    y0, y1 = (min(max(edge, 0.0), about.height) for edge in (top, top + height))
    return x0, y0, x1, y1
