"""The images of an analysis, with masks where the source has masks: cropped, resized and in batches."""

from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from mixlab.choices import Fit
from mixlab.data.decode import UnreadableImage, fit_image, to_pil, to_tensor
from mixlab.data.given import AnyData, as_data
from mixlab.data.mask_formats import parse_images_or_masks, parse_masks
from mixlab.data.masks import MaskedImage
from mixlab.data.source import SkippedImages, Source, evenly_spaced
from mixlab.errors import InputError
from mixlab.evaluation.machine import CentreView

_CACHE_BYTES = 2**30  # sets below this stay in memory between networks


def view_of(size: int, fit: Fit) -> CentreView:
    """What is seen of an image: "crop" is a centre crop, as in kNN; "squash" the whole image, aspect ratio not kept."""
    return CentreView(size) if fit == "crop" else CentreView(size, crop_share=1.0, fit=fit)


class ImageBatch(NamedTuple):
    images: Tensor  # uint8 (B, 3, S, S)
    masks: Tensor | None  # uint8 (B, S, S): 0 background, 1 foreground, IGNORE; None where the source has none
    names: list[str]


class ViewedImages:
    """All images of a source, or `num_images` evenly spaced ones, in batches: read again for each network, or kept
    where they are small. Sets are sorted by class: the first images would be of few classes.

    `data` is what the commands take (a folder, `shapes`, ...), whose validation part is read, or a source or data set,
    called `name` in results, or as `as_data` calls it. `view_of` says what is seen of each. Masks are cut and scaled as
    their images are.
    """

    def __init__(
        self,
        data: AnyData,
        *,
        size: int,
        fit: Fit = "crop",
        num_images: int | None = None,
        batch: int = 16,
        name: str = "",
        with_masks: bool = False,  # refuse data without masks
    ) -> None:
        if fit not in get_args(Fit):
            raise InputError(f"fit {fit!r} is unknown; choose 'crop' (centre crop) or 'squash' (the whole image)")
        if batch < 1 or (num_images is not None and num_images < 1):
            raise InputError(f"batch {batch} and num_images {num_images} must be at least 1")
        given = as_data(data)
        named = isinstance(given, str)
        source = (parse_masks if with_masks else parse_images_or_masks)(given)
        self.source: Source[Any] = source
        self.batch = batch
        self.view = view_of(size, fit)
        self.num_wanted = min(len(source), num_images or len(source))
        self.skipped = SkippedImages(total=len(source), limit=1.0)
        self.choices: dict[str, Any] = {  # those of a protocol
            "data": str(given) if named or not name else name,
            "split": "val" if named else None,
            "num_images": self.num_wanted if self.num_wanted < len(source) else None,
            "spread": True if self.num_wanted < len(source) else None,
            "image": size,
            "crop_share": self.view.crop_share,
            "fit": fit,
        }
        self._kept: list[ImageBatch] | None = None

    def __iter__(self) -> Iterator[ImageBatch]:
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[ImageBatch] | None = [] if self.num_wanted * self.view.size**2 * 4 <= _CACHE_BYTES else None
        for batch in self._read():
            if kept is not None:
                kept.append(batch)
            yield batch
        self._kept = kept

    def together(self) -> ImageBatch:
        """All of them as one batch."""
        batches = list(self)
        masks = [batch.masks for batch in batches if batch.masks is not None]
        names = [name for batch in batches for name in batch.names]
        return ImageBatch(torch.cat([batch.images for batch in batches]), torch.cat(masks) if masks else None, names)

    def _read(self) -> Iterator[ImageBatch]:
        samples, none = self._samples(), True
        while group := list(islice(samples, self.batch)):
            images, masks, names = zip(*group, strict=True)
            yield ImageBatch(torch.stack(images), None if masks[0] is None else torch.stack(masks), list(names))
            none = False
        if none:
            raise InputError(f"{self.choices['data'] or 'the source'} has no readable image. {self.skipped.summary()}")

    def _samples(self) -> Iterator[tuple[Tensor, Tensor | None, str]]:
        """Image, mask and name of the first sample that can be read in each of `num_wanted` equal parts."""
        side, fit, middle = self.view.load_size, self.view.fit, self.view.crop
        total = len(self.source)
        for start, end in pairwise([*evenly_spaced(total, self.num_wanted), total]):
            for index in range(start, end):
                try:
                    sample = self.source.load(index)
                except UnreadableImage as error:
                    self.skipped.add(error)
                    continue
                if isinstance(sample, MaskedImage):
                    fitted = sample.fitted(side, fit)
                    yield middle(fitted.image), middle(fitted.mask), self.source.name(index)
                else:
                    image = to_tensor(fit_image(to_pil(sample), size=side, fit=fit))
                    yield middle(image), None, self.source.name(index)
                break
