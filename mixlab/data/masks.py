"""Images with a mask: foreground and background, or a class for every pixel. One form for every format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .coco import read_coco_with_images
from .decode import decode, fit_box, open_image, read_orientation, to_pil, to_tensor, turn_upright
from .folder_index import find_images
from .mask_values import BACKGROUND, FOREGROUND, IGNORE, Mask
from .shapes import SHAPE_CLASSES, Shapes
from .source import Source
from .unreadable import UnreadableImage

MaskReader = Callable[[Image.Image], Mask]


@dataclass(frozen=True)
class MaskedImage:
    """An image uint8 (3, H, W) and its mask uint8 (H, W) of class numbers; 255 is not counted.

    Of foreground masks 0 is the background and 1 the foreground.
    """

    image: Tensor
    mask: Tensor
    name: str

    def fitted(self, size: int, fit: str = "squash") -> MaskedImage:
        """Both at size x size: the image bicubic, the mask by the nearest pixel. `fit` as in `fit_image`."""
        box = fit_box((self.image.shape[-1], self.image.shape[-2]), fit)
        image = to_pil(self.image).resize((size, size), Image.Resampling.BICUBIC, box=box)
        mask = Image.fromarray(self.mask.numpy()).resize((size, size), Image.Resampling.NEAREST, box=box)
        return MaskedImage(to_tensor(image), torch.from_numpy(np.array(mask)), self.name)


MaskSource: TypeAlias = Source[MaskedImage]


class PairedMasks(MaskSource):
    """Files of two folders with the same stem (and sub-folder), and a rule that reads the mask files.

    `every_image` expects a mask for each image: one without is named in `unpaired`.
    """

    def __init__(
        self, images: Path, masks: Path, read_mask: MaskReader, *, every_image: bool, classes: tuple[str, ...] = ()
    ) -> None:
        image_files, mask_files = _by_stem(images), _by_stem(masks)
        self.pairs = [(images / image_files[s], masks / mask_files[s]) for s in sorted(image_files.keys() & mask_files)]
        if not self.pairs:
            raise FileNotFoundError(
                f"no file in {images} ({len(image_files)} images) has a partner with the same name in {masks} "
                f"({len(mask_files)} masks); name them alike, as in cat.jpg and cat.png"
            )
        alone = [str(masks / mask_files[stem]) for stem in sorted(mask_files.keys() - image_files)]
        if every_image:  # otherwise only part of the images is annotated, by design
            alone += [str(images / image_files[stem]) for stem in sorted(image_files.keys() - mask_files)]
        self.classes, self.unpaired = classes, tuple(alone)
        self._root, self._read_mask = images, read_mask

    def __len__(self) -> int:
        return len(self.pairs)

    def name(self, index: int) -> str:
        return self.pairs[index][0].relative_to(self._root).as_posix()

    def load(self, index: int) -> MaskedImage:
        image_path, mask_path = self.pairs[index]
        image = decode(image_path)
        stored = open_image(mask_path, name=str(mask_path))
        try:
            mask = self._read_mask(stored)
        except (ValueError, OSError, SyntaxError) as error:
            raise UnreadableImage(mask_path, str(error)) from error
        mask = _match_size(mask, image.size, image_path, mask_path)
        return MaskedImage(to_tensor(image), torch.from_numpy(mask), self.name(index))


class CocoMasks(MaskSource):
    """COCO instances merged: any object is foreground, crowd regions are ignored where no object covers them."""

    def __init__(self, annotations: Path) -> None:
        content, self._root = read_coco_with_images(annotations)
        self.images = content.images

    def __len__(self) -> int:
        return len(self.images)

    def name(self, index: int) -> str:
        return self.images[index].file_name

    def load(self, index: int) -> MaskedImage:
        about = self.images[index]
        image = about.read(self._root)
        mask = np.full((about.height, about.width), BACKGROUND, dtype=np.uint8)
        try:
            for item in sorted(about.objects, key=lambda item: not item.is_crowd):  # crowds first, objects over them
                mask[item.bitmap(about.height, about.width)] = IGNORE if item.is_crowd else FOREGROUND
        except (ValueError, TypeError, OverflowError) as error:
            raise UnreadableImage(self._root / about.file_name, f"its annotations hold {error}") from error
        return MaskedImage(image, torch.from_numpy(mask), about.file_name)


class ShapesMasks(MaskSource):
    """The embedded set with its foreground masks, or with its label maps: the ground, and ten kinds of shape."""

    def __init__(self, shapes: Shapes, *, kind: Literal["foreground", "semantic"] = "foreground") -> None:
        self.shapes, self.kind = shapes, kind
        self.classes = ("ground", *SHAPE_CLASSES) if kind == "semantic" else ()

    def __len__(self) -> int:
        return len(self.shapes)

    def name(self, index: int) -> str:
        return self.shapes.name(index)

    def load(self, index: int) -> MaskedImage:
        scene = self.shapes.scene(index)
        return MaskedImage(scene.image, getattr(scene, self.kind), self.name(index))


def unpaired_note(source: Source[Any], most: int = 3) -> str | None:
    """A sentence on the files that are left out because their partner is missing, or None."""
    if not source.unpaired:
        return None
    named = ", ".join(source.unpaired[:most]) + (", ..." if len(source.unpaired) > most else "")
    return f"{len(source.unpaired)} files have no partner of the same name and are left out: {named}"


def _by_stem(folder: Path) -> dict[str, str]:
    """Relative path without suffix -> relative path; of two files with one stem the first by name counts."""
    stems: dict[str, str] = {}
    for path in find_images(folder):
        stems.setdefault(str(PurePosixPath(path).with_suffix("")), path)
    return stems


def _match_size(mask: Mask, size: tuple[int, int], image_path: Path, mask_path: Path) -> Mask:
    """The mask at the image's (width, height): turned as the camera says, or scaled if the shape is the same."""
    width, height = size
    if mask.shape == (height, width):
        return mask
    if mask.shape == (width, height):  # drawn on the pixels as stored, before the EXIF rotation
        turned = turn_upright(Image.fromarray(mask), read_orientation(open_image(image_path, name=str(image_path))))
        if turned.size == size:
            return np.array(turned)
    if abs(mask.shape[1] * height - mask.shape[0] * width) <= 0.01 * mask.shape[0] * width:
        return np.array(Image.fromarray(mask).resize(size, Image.Resampling.NEAREST))
    raise UnreadableImage(
        mask_path, f"the mask is {mask.shape[1]} x {mask.shape[0]}, its image is {width} x {height}: another shape"
    )
