"""A `torch.utils.data.Dataset`, a list or a Hugging Face `datasets.Dataset` as a source."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mixlab.errors import InputError, few

from .decode import UnreadableImage, to_tensor, to_three_channels, upright_rgb
from .source import ImageSource, evenly_spaced

_TRIES = 100  # samples that may fail before one shows what they are
_MANY = 10_000  # samples whose labels take a while to read
_LABELS = ("targets", "labels", "_labels")  # where torchvision's data sets keep theirs
_IMAGE_COLUMNS, _LABEL_COLUMNS = ("image", "img"), ("label", "labels")


class DatasetSource(ImageSource):
    """A source from any data set with `len()` and `[index]`: of images, (image, label) pairs, or mappings of both.

    An image is a PIL image, which is turned upright by its EXIF orientation as a file is, or pixels in uint8: a tensor
    (3, H, W), an array (H, W, 3), grey as a tensor (1, H, W), an array (H, W, 1), or (H, W). A label is a number, a
    name, or a tensor of one number. A sample that raises an exception is unreadable: it is skipped, counted and named,
    like a damaged file. `name` is the name of the set in measurements; without it they have
    a fingerprint.

    `image` and `label` are the keys, or columns, of samples that are mappings. Labels are read from `labels`, a column,
    or where torchvision's sets keep them; otherwise every sample is read once. `classes` are the class names.
    """

    names_are_numbers = True

    def __init__(
        self,
        dataset: Any,
        *,
        name: str = "",
        image: str | None = None,
        label: str | None = None,
        labels: Sequence[Any] | None = None,
        classes: Sequence[str] = (),
    ) -> None:
        self.dataset, self.title = dataset, name
        self.kind = name or type(dataset).__name__  # in the names of samples
        self.num_images = _length(dataset, self.kind)
        self._first, sample = self._first_readable()
        self.image_key, self.label_key = _keys(dataset, sample, image, label)
        _to_image(self._parts(sample)[0], self.name(self._first))  # a wrong kind is refused here, not skipped later
        self.is_labelled = labels is not None or self._parts(sample)[1] is not None
        self._given_labels, self._given_classes = labels, tuple(classes)
        self._broken: dict[int, str] = {}  # samples that could not be read for their labels

    def __len__(self) -> int:
        return self.num_images

    def name(self, index: int) -> str:
        return f"{self.kind}[{self.check(index)}]"

    def load(self, index: int) -> Tensor:
        name = self.name(index)
        if index in self._broken:
            raise UnreadableImage(name, self._broken[index])
        try:
            return _to_image(self._parts(self.dataset[index])[0], name)
        except Exception as error:  # whatever the data set itself raises
            raise UnreadableImage(name, _reason(error)) from error

    def label(self, index: int) -> int:
        return self._numbered[0][self.check(index)]

    def labels(self) -> Tensor:
        return torch.tensor(self._numbered[0], dtype=torch.int64)

    @property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]  # read when they are first asked for
        return self._numbered[1]

    @cached_property
    def _numbered(self) -> tuple[list[int], tuple[str, ...]]:
        """The class number of every sample, -1 for none, and the names of the classes."""
        if not self.is_labelled:
            return [-1] * len(self), ()
        found = [_plain_label(value, index, self.kind) for index, value in enumerate(self._raw_labels())]
        names = self._given_classes or _known_classes(self.dataset, self.label_key)
        there = sorted({label for label in found if label != -1}, key=lambda label: (isinstance(label, str), label))
        if names and all(isinstance(label, int) for label in there):
            numbers: dict[int | str, int] = {number: number for number in range(len(names))}
        else:
            names = names or tuple(map(str, there))
            numbers = {label: names.index(str(label)) for label in there if str(label) in names}
        if unknown := [label for label in there if label not in numbers]:
            raise InputError(
                f"{self.kind} has labels that are not among its {len(names)} classes ({few(names)}): {few(unknown)}; "
                "DatasetSource(..., classes=[...]) names them all"
            )
        numbered = [numbers.get(label, -1) for label in found]
        for index in self._broken:
            numbered[index] = 0  # of no class; any one will do, since it is never shown
        return numbered, names

    def _raw_labels(self) -> Sequence[Any]:
        known = self._given_labels if self._given_labels is not None else _known_labels(self.dataset, self.label_key)
        if known is not None and len(known) == len(self):
            if self._given_labels is not None or self._agree(known):
                return known
        elif self._given_labels is not None:
            raise InputError(f"{len(self._given_labels)} labels were given for {len(self)} samples; give one for each")
        if len(self) > _MANY:
            warnings.warn(
                f"{self.kind}: {len(self):,} samples are read once for their labels; "
                "DatasetSource(..., labels=[...]) avoids it",
                stacklevel=2,
            )
        return list(self._read_labels())

    def _read_labels(self) -> Iterator[Any]:
        for index in range(len(self)):
            try:
                yield self._parts(self.dataset[index])[1]
            except Exception as error:
                self._broken[index] = _reason(error)
                yield -1

    def _agree(self, known: Sequence[Any]) -> bool:
        """Whether some samples have these labels: a transform may change them."""
        for index in evenly_spaced(len(self), 4):
            try:
                said = self._parts(self.dataset[index])[1]
            except Exception:
                continue
            if _plain_label(said, index, self.kind) != _plain_label(known[index], index, self.kind):
                return False
        return True

    def _parts(self, sample: Any) -> tuple[Any, Any]:
        """Image and label of a sample; None for no label."""
        if isinstance(sample, Mapping):
            return sample[self.image_key], sample[self.label_key] if self.label_key else None
        if isinstance(sample, tuple | list):
            return (*sample, None)[:2]
        return sample, None

    def _first_readable(self) -> tuple[int, Any]:
        reasons = []
        for index in range(min(len(self), _TRIES)):
            try:
                return index, self.dataset[index]
            except Exception as error:
                reasons.append(_reason(error))
        raise InputError(
            f"none of the first {len(reasons)} samples of {self.kind} can be read: {reasons[0]}; "
            "check the data set by its [0]"
        )


def _length(dataset: Any, kind: str) -> int:
    try:
        length = len(dataset)
    except TypeError:
        length = -1
    if length < 0 or not hasattr(dataset, "__getitem__"):
        raise InputError(
            f"a {kind} cannot be used as data: give a name, a Source, or a data set with len() and [index]; a stream "
            "has neither, so put it into a list or write it to files first"
        )
    if not length:
        raise InputError(f"the data set {kind} is empty; give at least one image")
    return length


def _keys(dataset: Any, sample: Any, image: str | None, label: str | None) -> tuple[str, str | None]:
    """The keys of image and label in samples that are mappings; a Hugging Face set says which columns they are."""
    if not isinstance(sample, Mapping):
        return "", None
    kinds = {key: type(kind).__name__ for key, kind in getattr(dataset, "features", {}).items()}
    for key in (image, label):
        if key is not None and key not in sample:
            raise InputError(f"samples have no {key!r}; they have {', '.join(map(str, sample))}")
    images = [key for key in sample if kinds.get(key) == "Image"] or [key for key in _IMAGE_COLUMNS if key in sample]
    labels = [key for key in sample if kinds.get(key) == "ClassLabel"] or [k for k in _LABEL_COLUMNS if k in sample]
    if image is None and len(images) != 1:
        raise InputError(
            f"which of {', '.join(map(str, sample))} is the image is not clear; pass DatasetSource(..., image=KEY)"
        )
    if label is None and len(labels) > 1:
        raise InputError(f"which of {', '.join(labels)} is the label is not clear; pass DatasetSource(..., label=KEY)")
    return image or images[0], label or (labels[0] if labels else None)


def _known_labels(dataset: Any, key: str | None) -> Sequence[Any] | None:
    """Labels that can be had without reading samples."""
    if isinstance(dataset, torch.utils.data.Subset):
        whole = _known_labels(dataset.dataset, key)
        return None if whole is None else [whole[int(index)] for index in dataset.indices]
    if key is not None and key in getattr(dataset, "column_names", ()):
        return list(dataset[key])
    for attribute in _LABELS if key is None else ():
        found = getattr(dataset, attribute, None)
        if isinstance(found, Sequence | Tensor | np.ndarray) and len(found) == len(dataset):
            return found.tolist() if isinstance(found, Tensor | np.ndarray) else found
    return None


def _known_classes(dataset: Any, key: str | None) -> tuple[str, ...]:
    if isinstance(dataset, torch.utils.data.Subset):
        return _known_classes(dataset.dataset, key)
    if key is not None:
        names = getattr(getattr(dataset, "features", {}).get(key), "names", None)
    else:
        names = getattr(dataset, "classes", None)
    return tuple(map(str, names)) if isinstance(names, Sequence) and not isinstance(names, str) else ()


def _plain_label(value: Any, index: int, kind: str) -> int | str:
    """A number, a name, or -1 for none."""
    if isinstance(value, Tensor | np.ndarray | np.generic) and np.prod(value.shape) == 1:
        value = value.item()
    if value is None:
        return -1
    if isinstance(value, int | str):
        return max(int(value), -1) if isinstance(value, int) else value
    about = f"of shape {tuple(value.shape)}" if hasattr(value, "shape") else repr(value)[:40]
    raise InputError(
        f"the label of {kind}[{index}] is a {type(value).__name__} {about}; give a class as a number or a name, or "
        "DatasetSource(..., labels=[...])"
    )


def _to_image(value: Any, name: str) -> Tensor:
    """uint8 (3, H, W)."""
    if isinstance(value, Image.Image):
        return to_tensor(upright_rgb(value))
    if not isinstance(value, np.ndarray | Tensor):
        raise InputError(f"{name} is a {type(value).__name__}, not an image; give PIL images or uint8 tensors")
    if value.dtype not in (np.uint8, torch.uint8):
        raise InputError(
            f"{name} holds {value.dtype}, and pixels are uint8 from 0 to 255: mixlab crops and normalises by itself. "
            "Leave out ToTensor and Normalize, or use torchvision's PILToTensor"
        )
    found = to_three_channels(value)
    if found is None or not found.numel():
        wanted = "(3, H, W), or (1, H, W)" if isinstance(value, Tensor) else "(H, W, 3), or (H, W)"
        raise InputError(f"{name} has the shape {tuple(value.shape)}; give {wanted} for grey")
    return found


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
