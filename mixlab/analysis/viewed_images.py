"""The images of an analysis, with masks where the source has masks: cropped, resized and in batches."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from mixlab.choices import Fit
from mixlab.data.decode import UnreadableImage, fit_image, to_pil, to_tensor
from mixlab.data.given import AnyData, as_data
from mixlab.data.mask_formats import parse_images_or_masks, parse_masks
from mixlab.data.masks import MaskedImage
from mixlab.data.skipped import SkippedImages
from mixlab.data.source import Source, evenly_spaced
from mixlab.data.workers import check_shared_memory, start_workers, worker_settings
from mixlab.errors import InputError
from mixlab.evaluation.machine import CentreView

_BATCHES_PER_WORKER = 8  # fewer are read before a process has started
_CACHE_BYTES = 2**30  # sets below this stay in memory between networks
_SHOWN = 192  # pixels a side: with patches of 8, a map of 24 x 24


def shown_size(image: int) -> int:
    """Networks made for small images are shown more patches: the largest multiple of their size up to 192 px."""
    return image * max(1, _SHOWN // image)


def view_of(size: int, fit: Fit) -> CentreView:
    """What is seen of an image: "square" is the largest square in its middle, "crop" the centre crop of that, as in
    kNN, "squash" the whole image, aspect ratio not kept."""
    return CentreView(size) if fit == "crop" else CentreView(size, crop_share=1.0, fit=fit)


class ImageBatch(NamedTuple):
    images: Tensor  # uint8 (B, 3, S, S)
    masks: Tensor | None  # uint8 (B, S, S): 0 background, 1 foreground, IGNORE; None where the source has none
    names: list[str]


class ViewedImages:
    """All images of a source, or `num_images` evenly spaced ones, in batches: read again for each network, or kept in
    memory if they are small. They are evenly spaced because sets are sorted by class: the first images would be of few
    classes.

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
        workers: int = 0,  # processes that read
    ) -> None:
        if fit not in get_args(Fit):
            raise InputError(f"fit {fit!r} is unknown; choose 'square', 'crop' (as kNN) or 'squash' (the whole image)")
        if batch < 1 or (num_images is not None and num_images < 1):
            raise InputError(f"batch {batch} and num_images {num_images} must be at least 1")
        given = as_data(data)
        named = isinstance(given, str)
        source = (parse_masks if with_masks else parse_images_or_masks)(given)
        self.source: Source[Any] = source
        self.batch, self.workers = batch, workers
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
        self._kept: dict[int, ImageBatch] = {}  # by number, where they are small
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
        """Those of one rank, with their numbers among all of them; what cannot be read is left out and counted."""
        own = range(rank, -(-self.num_wanted // self.batch), size)
        missing = [number for number in own if number not in self._kept]
        fresh, is_fresh = self._read(missing), set(missing)
        for number in own:
            batch = next(fresh) if number in is_fresh else self._kept[number]  # whatever others have kept meanwhile
            if self._keeps:
                self._kept[number] = batch
            self._counts[number] = len(batch.names)
            if batch.names:
                yield number, batch

    def together(self) -> ImageBatch:
        """All of them as one batch."""
        batches = list(self)
        masks = [batch.masks for batch in batches if batch.masks is not None]
        names = [name for batch in batches for name in batch.names]
        return ImageBatch(torch.cat([batch.images for batch in batches]), torch.cat(masks) if masks else None, names)

    def empty(self) -> InputError:
        """What to raise where none could be read."""
        return InputError(f"{self.choices['data'] or 'the source'} has no readable image. {self.skipped.summary()}")

    def _read(self, numbers: list[int]) -> Iterator[ImageBatch]:
        parts = _Parts(self.source, self.view, self.num_wanted, self.batch)
        workers = min(self.workers, len(numbers) // _BATCHES_PER_WORKER)
        if workers:
            check_shared_memory(self.batch * self.view.size**2 * 4, workers)
        loader: DataLoader[Any] = DataLoader(parts, sampler=numbers, batch_size=None, **worker_settings(workers))
        for batch, errors in start_workers(loader) if workers else map(parts.__getitem__, numbers):
            for error in errors:
                self.skipped.add(error)
            yield batch


class _Parts(Dataset[Any]):
    """Runs in the workers. A source in `num_wanted` equal parts; of each, the first sample that can be read."""

    def __init__(self, source: Source[Any], view: CentreView, num_wanted: int, batch: int) -> None:
        self.source, self.view, self.batch = source, view, batch
        self.starts = [*evenly_spaced(len(source), num_wanted), len(source)]

    def __getitem__(self, number: int) -> tuple[ImageBatch, list[UnreadableImage]]:
        """The batch of that number, with what could not be read beside it."""
        errors: list[UnreadableImage] = []
        ends = self.starts[number * self.batch : (number + 1) * self.batch + 1]
        found = [sample for start, end in pairwise(ends) if (sample := self._first(start, end, errors))]
        if not found:
            return ImageBatch(torch.empty(0, dtype=torch.uint8), None, []), errors
        images, masks, names = zip(*found, strict=True)
        return ImageBatch(torch.stack(images), None if masks[0] is None else torch.stack(masks), list(names)), errors

    def _first(self, start: int, end: int, errors: list[UnreadableImage]) -> tuple[Tensor, Tensor | None, str] | None:
        side, fit, middle = self.view.load_size, self.view.fit, self.view.crop
        for index in range(start, end):
            try:
                sample = self.source.load(index)
            except UnreadableImage as error:
                errors.append(error)
                continue
            if isinstance(sample, MaskedImage):
                fitted = sample.fitted(side, fit)
                return middle(fitted.image), middle(fitted.mask), self.source.name(index)
            image = to_tensor(fit_image(to_pil(sample), size=side, fit=fit))
            return middle(image), None, self.source.name(index)
        return None
