"""What a source of images with objects is, and the embedded one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from mixlab.data.shapes import Shapes
from mixlab.evaluation.detection.coco_results import box_as_coco, encode_mask
from mixlab.evaluation.detection.objects import Objects


class ObjectSource(ABC):
    """Numbered images, the objects in them, and the same as COCO's annotations. Cheap to pickle: workers get a copy."""

    classes: tuple[str, ...]
    category_ids: tuple[int, ...]  # COCO's number of each class

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def load(self, index: int) -> tuple[Tensor, Objects]:
        """The image, uint8 (3, H, W), and its objects without crowds; `UnreadableImage` where there is none."""

    def image(self, index: int) -> Tensor:
        """The image alone."""
        return self.load(index)[0]

    @abstractmethod
    def size(self, index: int) -> tuple[int, int]:
        """(height, width), without reading the image."""

    @abstractmethod
    def num_objects(self, index: int) -> int:
        """Without crowds, and without reading the image."""

    @abstractmethod
    def image_id(self, index: int) -> int:
        """COCO's number of the image."""

    @abstractmethod
    def name(self, index: int) -> str:
        """What to call this image in a log."""

    @abstractmethod
    def truth(self, indexes: Iterable[int] | None = None) -> dict[str, Any]:
        """All images, or those given, and their objects, crowds too, as a COCO instances file."""

    def categories(self) -> list[dict[str, Any]]:
        """The classes as COCO lists them."""
        return [{"id": number, "name": name} for number, name in zip(self.category_ids, self.classes, strict=True)]


class ObjectSubset(ObjectSource):
    """Some images of another source."""

    def __init__(self, source: ObjectSource, indexes: Sequence[int]) -> None:
        self.source, self.indexes = source, list(indexes)
        self.classes, self.category_ids = source.classes, source.category_ids

    def __len__(self) -> int:
        return len(self.indexes)

    def load(self, index: int) -> tuple[Tensor, Objects]:
        return self.source.load(self.indexes[index])

    def image(self, index: int) -> Tensor:
        return self.source.image(self.indexes[index])

    def size(self, index: int) -> tuple[int, int]:
        return self.source.size(self.indexes[index])

    def num_objects(self, index: int) -> int:
        return self.source.num_objects(self.indexes[index])

    def image_id(self, index: int) -> int:
        return self.source.image_id(self.indexes[index])

    def name(self, index: int) -> str:
        return self.source.name(self.indexes[index])

    def truth(self, indexes: Iterable[int] | None = None) -> dict[str, Any]:
        chosen = self.indexes if indexes is None else [self.indexes[index] for index in indexes]
        return self.source.truth(chosen)


class ShapeObjects(ObjectSource):
    """The embedded scenes. COCO's numbers count from 1."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes, self.classes = shapes, shapes.classes
        self.category_ids = tuple(range(1, len(self.classes) + 1))

    def __len__(self) -> int:
        return len(self.shapes)

    def load(self, index: int) -> tuple[Tensor, Objects]:
        scene = self.shapes.scene(index)
        return scene.image, Objects(scene.boxes, scene.classes, scene.instances)

    def image(self, index: int) -> Tensor:
        return self.shapes.load(index)

    def size(self, index: int) -> tuple[int, int]:
        return self.shapes.size, self.shapes.size

    def num_objects(self, index: int) -> int:
        return 1  # the main object is always there; counting the others would mean drawing the scene

    def image_id(self, index: int) -> int:
        return index + 1

    def name(self, index: int) -> str:
        return self.shapes.name(index)

    def truth(self, indexes: Iterable[int] | None = None) -> dict[str, Any]:
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for index in range(len(self)) if indexes is None else indexes:
            (height, width), (_, objects) = self.size(index), self.load(index)
            images.append({"id": index + 1, "file_name": self.name(index), "height": height, "width": width})
            for box, kind, mask in zip(*objects, strict=True):
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": index + 1,
                        "category_id": self.category_ids[int(kind)],
                        "bbox": box_as_coco(box.tolist()),
                        "area": float(mask.sum()),
                        "iscrowd": 0,
                        "segmentation": encode_mask(mask),
                    }
                )
        return {"images": images, "annotations": annotations, "categories": self.categories()}
