"""Sources of images: folders, and the parser of source names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mixlab.errors import InputError

from .decode import SUFFIXES, Reduction, decode_fitted, decode_pixels, decode_reduced, printable, to_tensor
from .folder_index import PathTable, list_images
from .given import PREFIX, Data, GivenData
from .index_file import digest_of
from .photographs import photograph_place
from .registered import open_registered
from .shapes import parse_shapes
from .shards import TarShards
from .source import ImageSource, check_split, part_of
from .source_names import nearest_place

SPLIT_FOLDERS = {"train": ("train", "training"), "val": ("val", "validation", "valid", "test")}
IMAGE_FOLDERS = ("images", "image", "imgs", "JPEGImages")
MASK_FOLDERS = ("masks", "mask", "gt", "GT", "ground_truth")
HELD_OUT_OF = "heldout:"  # before a source: its training images alone, a fifth of them as validation images
LABEL_FOLDERS = ("annotations", "labels", "SegmentationClass")  # ADE20K, COCO and Pets; VOC, by its two names


class ImageFolder(ImageSource):
    """All images below a folder, or one image file. Sub-folders are classes, unless images lie in the folder itself.

    Of images beside their masks (`images_beside_masks`) the images alone are read, and have no classes.
    """

    def __init__(self, root: str | Path, *, split: str | None = None, cache: str | Path | None = None) -> None:
        root = _part(Path(root), split)
        images = images_beside_masks(root)
        if images is not None:
            root = _part(images, split)
        self.root = root if root.is_dir() else root.parent
        self.paths = list_images(root, cache=cache) if root.is_dir() else PathTable.of([root.name])
        if not self.paths:
            raise FileNotFoundError(f"{self.root} holds no images; {_instead(self.root)}")
        folders = [self.paths.folders[number].split("/", 1)[0] for number in self.paths.run_folders.tolist()]
        if images is not None or "" in folders:
            self._run_labels = np.full(len(folders), -1)
        else:
            levels = sorted(set(folders))
            self.classes = tuple(map(printable, levels))
            numbers = {name: number for number, name in enumerate(levels)}
            self._run_labels = np.array([numbers[name] for name in folders])

    def __len__(self) -> int:
        return len(self.paths)

    def load(self, index: int) -> Tensor:
        return to_tensor(decode_pixels(self.root / self.paths[self.check(index)]))

    def load_fitted(self, index: int, size: int, fit: str) -> tuple[Tensor, tuple[int, int]]:
        image, own = decode_fitted(self.root / self.paths[self.check(index)], size, fit)
        return to_tensor(image), own

    def load_reduced(self, index: int, reduction: Reduction) -> tuple[NDArray[np.uint8], tuple[int, int]]:
        return decode_reduced(self.root / self.paths[self.check(index)], reduction)

    def label(self, index: int) -> int:
        return int(self._run_labels[self.paths.run_of(self.check(index))])

    def labels(self) -> Tensor:
        return torch.from_numpy(np.repeat(self._run_labels, self.paths.run_lengths()))

    def name(self, index: int) -> str:
        return printable(self.paths[self.check(index)])

    def names(self) -> Iterator[str]:
        return map(printable, self.paths)

    def digest(self) -> str:
        return digest_of(["folder", *self.classes], [*self.paths.arrays(), self._run_labels])


def parse_source(name: Data, *, split: str = "train", cache: str | Path | None = None) -> ImageSource:
    """A source from its name: `shapes[:size=64,n=2000,seed=0]`, a folder, an image file, `wds:PATTERN`, or
    photographs that come with mixlab: `photo` is a portrait, `photo:cat` another, `photo:all` are all.

    A folder with a sub-folder for the split (train; val, validation, valid, test) means that sub-folder. One that has
    a sub-folder for the other split alone means that one: `labelled_splits` then cuts it in two. `NAME:REST` is what a
    plugin registered under that name (`register_source`). Of images beside masks only the images are read. What
    `as_data` made of objects is taken as it is. `heldout:SOURCE` is SOURCE without its validation images, for tuning:
    `split` of its training images.
    """
    check_split(split)
    if isinstance(name, GivenData):
        return name.part(split)
    if name.startswith(HELD_OUT_OF):
        return _held_out(name, split, cache)
    if shapes := parse_shapes(name, split=split):
        return shapes
    if (own := open_registered(name, split)) is not None:
        return own
    if name.startswith("wds:"):
        return TarShards(name.removeprefix("wds:"), cache=cache)
    if (photographs := photograph_place(name)) is not None:
        return ImageFolder(photographs)
    folder = Path(name).expanduser()
    if folder.is_file() and folder.suffix.lower() in SUFFIXES:
        return ImageFolder(folder)
    if not folder.is_dir() and name.startswith(PREFIX):
        raise InputError(
            f"{name} was given in Python and cannot be opened by its name; give the same data set in Python again"
        )
    if not folder.is_dir():
        word, colon, _ = name.partition(":")
        plugin = f"; for a source {word!r} of a plugin, write `mixlab --import PLUGIN ...`" if colon else ""
        raise FileNotFoundError(
            f"{name!r} is not a data source: not 'shapes', 'wds:PATTERN', an existing folder or an image file; "
            f"{nearest_place(name)}{plugin}"
        )
    return ImageFolder(folder, split=split, cache=cache)


def _held_out(name: str, split: str, cache: str | Path | None) -> ImageSource:
    """A part of the training images of what stands behind `heldout:`; its validation images are never opened."""
    inner = name.removeprefix(HELD_OUT_OF)
    train = parse_source(inner, split="train", cache=cache)
    if isinstance(train, ImageFolder) and train.root.name in SPLIT_FOLDERS["val"]:
        raise InputError(f"{name} would tune on {train.root}, which is for validation; give a folder with train/")
    part = part_of(train, split, name=name)
    part.is_own_split = split == "val"
    return part


def child(place: Path, *names: str) -> Path | None:
    """The first of these folders that exists."""
    return next((place / name for name in names if (place / name).is_dir()), None)


def images_beside_masks(place: Path) -> Path | None:
    """The images of a folder that also has their masks; None where it lacks either."""
    images = child(place, *IMAGE_FOLDERS)
    return images if child(place, *MASK_FOLDERS, *LABEL_FOLDERS) else None


def _instead(folder: Path) -> str:
    """What to do about a folder without images."""
    packed = sorted(file.name for file in folder.iterdir() if file.name.endswith((".tar", ".tar.gz", ".tgz", ".zip")))
    if packed:
        return f"it has {len(packed):,} archives such as {packed[0]}: unpack each into a folder of its name"
    return f"known suffixes are {' '.join(sorted(SUFFIXES))}"


def _part(folder: Path, split: str | None) -> Path:
    """The sub-folder for the split, or for the only split there is, or the folder itself."""
    if split is None:
        return folder
    if own := child(folder, *SPLIT_FOLDERS[split]):
        return own
    (other,) = (child(folder, *names) for kind, names in SPLIT_FOLDERS.items() if kind != split)
    if other is None:
        return folder
    known = {name for names in SPLIT_FOLDERS.values() for name in names}
    is_class = any(entry.is_dir() and entry.name not in known and entry.name[0] != "." for entry in folder.iterdir())
    return folder if split == "train" and is_class else other  # among classes, "test" may be one of them
