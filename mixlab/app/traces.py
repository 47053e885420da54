"""Features and mixings of one picture, cached: every question after the first only reads them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from mixlab.analysis.matrices import mean_matrix
from mixlab.app.byte_cache import ByteCache
from mixlab.app.jobs import Progress
from mixlab.app.pictures import Picture, seen_picture
from mixlab.backbones.tokens import Features
from mixlab.choices import Fit
from mixlab.errors import InputError
from mixlab.evaluation.target import Target
from mixlab.mixers import Mixing

MAX_TOKENS = 4096  # a matrix of so many is 64 MB


@dataclass(frozen=True, eq=False)
class Sight:
    """A picture as one model sees it."""

    subject: Target
    picture: Picture
    fit: Fit
    size: int  # pixels on the side of a square
    multiple: int  # of the sides of a picture in its own shape

    @property
    def key(self) -> tuple[str, str, str]:
        return self.subject.label, self.picture.id, self.fit

    def images(self) -> Tensor:
        pixels = torch.from_numpy(seen_picture(self.picture.pixels, self.size, self.fit, self.multiple))
        return self.subject.backbone.preprocess(pixels.permute(2, 0, 1)[None])


class Traces:
    """Features and mixings of all layers, and matrices of heads, by model and picture: up to `max_bytes` of them."""

    def __init__(self, max_bytes: int) -> None:
        self._cache: ByteCache[Any] = ByteCache(max_bytes, size=num_bytes)

    def features(self, sight: Sight, progress: Progress) -> list[Features]:
        """Features after every layer."""
        run = sight.subject.backbone.features
        return self._by_layer("features", sight, lambda images: run(images, layers=None), progress)

    def mixings(self, sight: Sight, progress: Progress) -> list[Mixing]:
        """The mixing of every layer."""
        return self._by_layer("mixings", sight, sight.subject.backbone.mixings, progress)

    def matrix(self, sight: Sight, *, layer: int, head: int | None, progress: Progress) -> Tensor:
        """The matrix (L, L) of one head, signed; or, without a head, the mean of |matrix| over heads."""
        mixing = self.mixings(sight, progress)[layer]
        length = mixing.values.shape[2]
        if length > MAX_TOKENS:
            raise InputError(
                f"layer {layer} of {sight.subject.label} mixes {length} tokens; matrices are shown up to "
                f"{MAX_TOKENS}: choose a later layer"
            )

        def compute() -> Tensor:
            if head is not None:
                return mixing.matrix(slice(head, head + 1))[0, 0].float().cpu().clone()
            return mean_matrix(mixing, progress).cpu()

        return self._cache.get_or_make(("matrix", *sight.key, layer, head), compute)

    def _by_layer(
        self, what: str, sight: Sight, run: Callable[[Tensor], Iterator[tuple[int, Any]]], progress: Progress
    ) -> list[Any]:
        def compute() -> list[Any]:
            found = []
            for layer, part in run(sight.images()):
                found.append(_on_host(part) if isinstance(part, Features) else part)
                progress(layer + 1, sight.subject.backbone.num_layers, f"{what} of {sight.subject.label}")
            return found

        return self._cache.get_or_make((what, *sight.key), compute)


def _on_host(features: Features) -> Features:
    return Features(
        summary=features.summary.float().cpu(),
        registers=features.registers.float().cpu(),
        patches=features.patches.float().cpu(),
        grid=features.grid,
        front=None if features.front is None else features.front.float().cpu(),
    )


def num_bytes(value: Any) -> int:
    """The memory behind tensors, alone or in lists of features or mixings; shared storage counts once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in _tensors(value)}
    return sum(storages.values())


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
        return
    parts = value if isinstance(value, list) else [getattr(value, part.name) for part in fields(value)]
    for part in parts:
        if isinstance(part, Tensor | Features | Mixing):
            yield from _tensors(part)
