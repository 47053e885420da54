"""The images of an analysis, with masks where the source has masks: cropped, resized and in batches."""

from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from mixlab.analysis.views import View
from mixlab.choices import Fit
from mixlab.data.decode import UnreadableImage, to_pil
from mixlab.data.given import AnyData, as_data
from mixlab.data.mask_formats import parse_images_or_masks, parse_masks
from mixlab.data.masks import MaskedImage
from mixlab.data.skipped import SkippedImages
from mixlab.data.source import Source, evenly_spaced
from mixlab.data.workers import check_shared_memory, start_workers, worker_settings
from mixlab.errors import InputError

Sample = tuple[Tensor, Tensor | None, str]  # image, mask and name
_BATCHES_PER_WORKER = 8  # fewer are read before a process has started
_CACHE_BYTES = 2**30  # sets below this stay in memory between networks
_SHOWN = 192  # pixels a side: with patches of 8, a map of 24 x 24


def shown_size(image: int) -> int:
    """Networks made for small images are shown more patches: the largest multiple of their size up to 192 px."""
    return image * max(1, _SHOWN // image)


class ImageBatch(NamedTuple):
    """Images of one shape."""

    images: Tensor  # uint8 (B, 3, h, w)
    masks: Tensor | None  # uint8 (B, h, w): 0 background, 1 foreground, IGNORE; None where the source has none
    names: list[str]


class ImageList(NamedTuple):
    """Images of any shapes."""

    images: list[Tensor]  # uint8 (3, h, w)
    masks: list[Tensor] | None  # uint8 (h, w)
    names: list[str]


class ViewedImages:
    """All images of a source, or `num_images` evenly spaced ones, in batches: read again for each network, or kept in
    memory if they are small. They are evenly spaced because sets are sorted by class: the first images would be of few
    classes.

    `data` is what the commands take (a folder, `shapes`, ...), whose validation part is read, or a source or data set,
    called `name` in results, or as `as_data` calls it. `View` says what is seen of each. Masks are cut and scaled as
    their images are. With the fit "whole", images differ in shape: a batch has neighbours of one shape.
    """

    def __init__(
        self,
        data: AnyData,
        *,
        size: int,
        fit: Fit = "crop",
        multiple: int | None = None,  # of "whole": pixels of which each side is a multiple, such as a patch
        num_images: int | None = None,
        batch: int = 16,
        name: str = "",
        with_masks: bool = False,  # refuse data without masks
        workers: int = 0,  # processes that read
    ) -> None:
        if fit not in get_args(Fit):
            raise InputError(
                f"fit {fit!r} is unknown; choose 'whole' (in its own shape), 'square', 'crop' (as kNN) or 'squash'"
            )
        if batch < 1 or (num_images is not None and num_images < 1):
            raise InputError(f"batch {batch} and num_images {num_images} must be at least 1")
        given = as_data(data)
        named = isinstance(given, str)
        source = (parse_masks if with_masks else parse_images_or_masks)(given)
        self.source: Source[Any] = source
        self.batch, self.workers = batch, workers
        self.view = View(size, fit, multiple)
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
            "multiple": multiple if fit == "whole" else None,
        }
        self._kept: dict[int, list[ImageBatch]] = {}  # by number, where they are small
        self._counts: dict[int, int] = {}  # images of each batch so far
        self._keeps = self.num_wanted * self.view.size**2 * 4 <= _CACHE_BYTES

    @property
    def num_read(self) -> int:
        """How many there were, in whatever has been gone over."""
        return sum(self._counts.values())

    def __iter__(self) -> Iterator[ImageBatch]:
        none = True
        for _, batch in self.batches():
            yield batch
            none = False
        if none:
            raise self.empty()

    def batches(self, rank: int = 0, size: int = 1) -> Iterator[tuple[int, ImageBatch]]:
        """Those of one rank, with their numbers among all of them, which parts of several shapes share; what cannot be
        read is left out and counted.
        """
        own = range(rank, -(-self.num_wanted // self.batch), size)
        missing = [number for number in own if number not in self._kept]
        fresh, is_fresh = self._read(missing), set(missing)
        for number in own:
            parts = next(fresh) if number in is_fresh else self._kept[number]  # whatever others have kept meanwhile
            if self._keeps:
                self._kept[number] = parts
            self._counts[number] = sum(len(part.names) for part in parts)
            for part in parts:
                yield number, part

    def together(self) -> ImageBatch:
        """All of them as one batch, where they have one shape."""
        batches = list(self)
        if len({batch.images.shape[1:] for batch in batches}) > 1:
            raise InputError("images of several shapes are not one batch; go over the batches, or choose fit 'square'")
        masks = [batch.masks for batch in batches if batch.masks is not None]
        names = [name for batch in batches for name in batch.names]
        return ImageBatch(torch.cat([batch.images for batch in batches]), torch.cat(masks) if masks else None, names)

    def one_by_one(self) -> ImageList:
        """All of them, each in its own shape."""
        batches = list(self)
        masks = [mask for batch in batches if batch.masks is not None for mask in batch.masks]
        names = [name for batch in batches for name in batch.names]
        return ImageList([image for batch in batches for image in batch.images], masks or None, names)

    def empty(self) -> InputError:
        """What to raise where none could be read."""
        return InputError(f"{self.choices['data'] or 'the source'} has no readable image. {self.skipped.summary()}")

    def _read(self, numbers: list[int]) -> Iterator[list[ImageBatch]]:
        parts = _Parts(self.source, self.view, self.num_wanted, self.batch)
        workers = min(self.workers, len(numbers) // _BATCHES_PER_WORKER)
        if workers:
            check_shared_memory(self.batch * self.view.size**2 * 4, workers)
        loader: DataLoader[Any] = DataLoader(parts, sampler=numbers, batch_size=None, **worker_settings(workers))
        for found, errors in start_workers(loader) if workers else map(parts.__getitem__, numbers):
            for error in errors:
                self.skipped.add(error)
            yield found


class _Parts(Dataset[Any]):
    """Runs in the workers. A source in `num_wanted` equal parts; of each, the first sample that can be read."""

    def __init__(self, source: Source[Any], view: View, num_wanted: int, batch: int) -> None:
        self.source, self.view, self.batch = source, view, batch
        self.starts = [*evenly_spaced(len(source), num_wanted), len(source)]

    def __getitem__(self, number: int) -> tuple[list[ImageBatch], list[UnreadableImage]]:
        """The batch of that number, parted by shape, with what could not be read beside it."""
        errors: list[UnreadableImage] = []
        ends = self.starts[number * self.batch : (number + 1) * self.batch + 1]
        found = [sample for start, end in pairwise(ends) if (sample := self._first(start, end, errors))]
        return [_stacked(list(alike)) for _, alike in groupby(found, lambda sample: sample[0].shape)], errors

    def _first(self, start: int, end: int, errors: list[UnreadableImage]) -> Sample | None:
        for index in range(start, end):
            try:
                sample = self.source.load(index)
            except UnreadableImage as error:
                errors.append(error)
                continue
            name = self.source.name(index)
            if isinstance(sample, MaskedImage):
                return self.view.of_image(to_pil(sample.image)), self.view.of_mask(sample.mask.numpy()), name
            return self.view.of_image(to_pil(sample)), None, name
        return None


def _stacked(samples: list[Sample]) -> ImageBatch:
    images, masks, names = zip(*samples, strict=True)
    return ImageBatch(torch.stack(images), None if masks[0] is None else torch.stack(masks), list(names))
