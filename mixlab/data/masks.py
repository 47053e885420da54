"""Images with a mask: foreground and background, or a class for every pixel; what the pixels of each format mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from mixlab.errors import InputError, counted, few

from .coco import CocoSource
from .decode import (
    UnreadableImage,
    decode,
    open_image,
    printable,
    read_orientation,
    to_tensor,
    turn_upright,
)
from .folder_index import list_images
from .shapes import SHAPE_CLASSES, Shapes
from .source import Source

BACKGROUND, FOREGROUND, IGNORE = 0, 1, 255
Mask = NDArray[np.uint8]
Values = NDArray[np.int64]  # never negative, at most 65535

# The 50 of ADE20K's 150 labels that are stuff; the other 100 are the "things" of the 2017 Places instance challenge
# (CSAILVision/placeschallenge, instancesegmentation).
ADE_STUFF = (1, 2, 3, 4, 5, 6, 7, 10, 12, 14, 17, 18, 22, 26, 27, 29, 30, 35, 41, 47, 49, 52, 53, 55, 60, 61, 62, 64,
             69, 78, 80, 85, 92, 95, 97, 100, 101, 102, 106, 107, 110, 114, 115, 118, 123, 129, 132, 141, 142,
             146)  # fmt: skip
ADE_THINGS = frozenset(range(1, 151)) - frozenset(ADE_STUFF)


def read_values(image: Image.Image) -> Values:
    """Pixel values (H, W) of a mask file: palette indexes, grey of any depth, or colours that are all grey."""
    if image.mode in ("RGB", "RGBA", "LA", "PA"):
        channels = np.asarray(image.convert("RGBA"))
        colour, alpha = channels[..., :3], channels[..., 3]
        if (colour == colour[0, 0]).all() and alpha.min() != alpha.max():
            return alpha.astype(np.int64)  # a cut-out: the mask is the transparency
        if (colour != colour[..., :1]).any():
            raise InputError("the mask is in colour; save it as grey values or with a palette")
        return colour[..., 0].astype(np.int64)
    values = np.asarray(image)
    if values.dtype.kind not in "biu" or values.ndim != 2:
        raise InputError(f"the mask has mode {image.mode}; save it as grey values or with a palette")
    values = values.astype(np.int64)
    if values.min(initial=0) < 0 or values.max(initial=0) > 65535:
        raise InputError(f"the mask has values from {values.min()} to {values.max()}; save it with 8 or 16 bits")
    return values


def plain_mask(image: Image.Image, foreground: str = "auto") -> Mask:
    """Masks of people's own: 0 is background.

    `auto` takes two values (0 and any other), 0/128/255 with 128 to be ignored, label numbers in a palette image, or
    many grey levels (cut at half), and refuses the rest. `nonzero` and `half` are the plain rules.
    """
    values = read_values(image)
    top = 65535 if values.max(initial=0) > 255 else 255
    if foreground == "nonzero":
        return (values > 0).astype(np.uint8)
    if foreground == "half":
        return (values * 2 > top).astype(np.uint8)
    found = _found(values)
    labels = set(found.tolist()) - {0}
    if labels <= {128, 255} or labels <= {128 * 257, 65535}:
        return np.where(values == 0, BACKGROUND, np.where(values == top, FOREGROUND, IGNORE)).astype(np.uint8)
    if len(labels) == 1 or (image.mode == "P" and max(labels) < 255):
        return (values > 0).astype(np.uint8)
    if len(labels) > 32:  # a soft edge, or traces of JPEG
        return (values * 2 > top).astype(np.uint8)
    raise InputError(
        f"values {few(found)} are neither 0/255, 0/128/255 nor a soft mask; "
        "name the format (voc:DIR, ade:DIR, pets:DIR) or the rule (masks:DIR:foreground=nonzero or half)"
    )


def imagenet_s_mask(image: Image.Image) -> Mask:
    """ImageNet-S: class = R + 256 G; 0 is background, 1000 is ignored, all classes are foreground."""
    if image.mode not in ("RGB", "RGBA"):
        raise InputError(f"an ImageNet-S mask is an RGB file, this one has mode {image.mode}")
    channels = np.asarray(image).astype(np.int64)
    values = channels[..., 0] + 256 * channels[..., 1]
    _refuse_outside(values, range(1001), "ImageNet-S has 0 to 919, and 1000")
    return _merge(values, background=[0], ignore=1000)


def voc_mask(image: Image.Image) -> Mask:
    """PASCAL VOC: 0 is background, 1 to 20 are foreground, 255 (the drawn border) is ignored."""
    values = _voc_indexes(np.asarray(image)) if image.mode == "RGB" else read_values(image)
    _refuse_outside(values, (*range(21), 255), "PASCAL VOC has 0 to 20, and 255")
    return _merge(values, background=[0], ignore=255)


def pets_mask(image: Image.Image) -> Mask:
    """Oxford Pets trimaps: 1 is foreground, 2 is background, 3 (the border) is ignored."""
    values = read_values(image)
    _refuse_outside(values, (1, 2, 3), "an Oxford Pets trimap has 1, 2 and 3")
    return _merge(values, background=[2], ignore=3)


def ade_mask(image: Image.Image, things: frozenset[int] = ADE_THINGS) -> Mask:
    """ADE20K: 0 (unlabelled) is ignored, things are foreground, stuff (wall, sky, road, ...) is background."""
    values = read_values(image)
    if things == ADE_THINGS:
        _refuse_outside(values, range(151), "ADE20K has 0 to 150; for other labels say which are things")
    return _merge(values, background=list(set(_found(values).tolist()) - things), ignore=0)


def voc_palette() -> NDArray[np.uint8]:
    """VOC's 256 colours (256, 3): the bits of the index, dealt in turn to R, G and B from the highest bit down."""
    index = np.arange(256)
    colours = np.zeros((256, 3), dtype=np.int64)
    for place in range(3):
        for channel in range(3):
            colours[:, channel] |= (index >> (3 * place + channel) & 1) << (7 - place)
    return colours.astype(np.uint8)


def _voc_indexes(colours: NDArray[np.uint8]) -> Values:
    palette = voc_palette().astype(np.int64) @ np.array([1 << 16, 1 << 8, 1])
    packed = colours.astype(np.int64) @ np.array([1 << 16, 1 << 8, 1])
    order = np.argsort(palette)
    place = order[np.searchsorted(palette, packed, sorter=order).clip(max=255)]
    if (palette[place] != packed).any():
        raise InputError("the mask holds colours that are not in PASCAL VOC's palette")
    return place.astype(np.int64)


def _merge(values: Values, *, background: list[int], ignore: int) -> Mask:
    meaning = np.full(65536, FOREGROUND, dtype=np.uint8)
    meaning[background] = BACKGROUND
    meaning[ignore] = IGNORE
    return meaning[values]


def _found(values: Values) -> Values:
    """The distinct values, in order; much faster than np.unique on an image."""
    return np.flatnonzero(np.bincount(values.ravel()))


def _refuse_outside(values: Values, known: Sequence[int], rule: str) -> None:
    unknown = np.setdiff1d(_found(values), known)
    if len(unknown):
        raise InputError(f"values {few(unknown)} are unknown: {rule}")


MaskReader = Callable[[Image.Image], Mask]


@dataclass(frozen=True)
class MaskedImage:
    """An image uint8 (3, H, W) and its mask uint8 (H, W) of class numbers; 255 is ignored.

    In foreground masks, 0 is the background and 1 the foreground.
    """

    image: Tensor
    mask: Tensor
    name: str


MaskSource: TypeAlias = Source[MaskedImage]


class PairedMasks(MaskSource):
    """Files of two folders with the same stem (and sub-folder), and a rule that reads the mask files.

    `every_image` expects a mask for each image: one without is named in `unpaired`.
    """

    def __init__(
        self, images: Path, masks: Path, read_mask: MaskReader, *, every_image: bool, classes: tuple[str, ...] = ()
    ) -> None:
        (image_files, more_images), (mask_files, more_masks) = _by_stem(images), _by_stem(masks)
        self.pairs = [(images / image_files[s], masks / mask_files[s]) for s in sorted(image_files.keys() & mask_files)]
        if not self.pairs:
            raise FileNotFoundError(
                f"no file in {images} ({len(image_files)} images) has a partner with the same name in {masks} "
                f"({len(mask_files)} masks); name them alike, as in cat.jpg and cat.png"
            )
        alone = [printable(masks / mask_files[stem]) for stem in sorted(mask_files.keys() - image_files)]
        if every_image:  # otherwise only part of the images is annotated, by design
            alone += [printable(images / image_files[stem]) for stem in sorted(image_files.keys() - mask_files)]
        alone += [
            printable(folder / path) for folder, more in ((images, more_images), (masks, more_masks)) for path in more
        ]
        self.classes, self.unpaired = classes, tuple(alone)
        self._root, self._read_mask = images, read_mask

    def __len__(self) -> int:
        return len(self.pairs)

    def name(self, index: int) -> str:
        return printable(self.pairs[index][0].relative_to(self._root).as_posix())

    def load(self, index: int) -> MaskedImage:
        image_path, mask_path = self.pairs[index]
        image = decode(image_path)
        stored = open_image(mask_path, name=str(mask_path))
        try:
            mask = self._read_mask(stored)
        except Exception as error:  # as of any decoder, see `decode`
            raise UnreadableImage(mask_path, str(error)) from error
        mask = _match_size(mask, image.size, image_path, mask_path)
        return MaskedImage(to_tensor(image), torch.from_numpy(mask), self.name(index))


class CocoMasks(CocoSource[MaskedImage]):
    """COCO instances merged: any object is foreground, crowd regions are ignored where no object covers them."""

    def load(self, index: int) -> MaskedImage:
        about = self.images[index]
        image = about.read(self.root)
        mask = np.full((about.height, about.width), BACKGROUND, dtype=np.uint8)
        objects = sorted(about.objects, key=lambda item: not item.is_crowd)  # crowds first, objects over them
        for item, bitmap in zip(objects, about.bitmaps(objects, self.root), strict=True):
            mask[bitmap] = IGNORE if item.is_crowd else FOREGROUND
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


def unpaired_note(source: Source[Any]) -> str | None:
    """A sentence about the files that are left out because their image or mask is missing, or None."""
    lost = source.unpaired
    files, are = counted(lost, "file has", "files have"), "is" if len(lost) == 1 else "are"
    return f"{files} no counterpart of the same name and {are} left out: {few(lost)}" if lost else None


def _by_stem(folder: Path) -> tuple[dict[str, str], list[str]]:
    """Relative path without suffix -> relative path; of two files with one stem the second by name is left over."""
    stems: dict[str, str] = {}
    paths = list_images(folder)
    for path in paths:
        stems.setdefault(str(PurePosixPath(path).with_suffix("")), path)
    kept = set(stems.values())
    return stems, [path for path in paths if path not in kept]


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
