"""Features for probes and kNN: the last blocks, pooled by one or more strategies, in one forward pass.

Features of one image lie in one row: pool by pool, and within a pool layer by layer, the last one last. The last n
layers of a pool are then neighbours, and what a head reads is one slice of the row, or two.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mixlab.backbones.backbone import Backbone, FeatureSource, check_source
from mixlab.backbones.room import check_room
from mixlab.backbones.tokens import Features
from mixlab.choices import OUTPUT
from mixlab.errors import InputError
from mixlab.ops.precision import at_least_float32

STRATEGIES = ("cls", "mean", "max", "cls+mean", "cls+max")  # Dino-Mamba, Table 6; cls is the summary token or tokens
REGISTERS = "registers"  # each register by itself
LIGHT_WIDTH = 1536  # Dino-Mamba, Table 1: 1.5 M parameters with 1,000 classes
_SHARE_OF_MEMORY = 0.4  # of a GPU's free memory that features may take


class HeadInput(NamedTuple):
    """What one head reads: of each of the last `blocks` layers, what `strategy` says."""

    blocks: int
    strategy: str

    def __str__(self) -> str:
        return f"{self.blocks} x {self.strategy}"


@dataclass(frozen=True)
class FeaturePlan:
    """Which features to take so that every input can be cut from them."""

    inputs: tuple[HeadInput, ...]
    source: FeatureSource
    pools: tuple[tuple[str, tuple[int, ...]], ...]  # name, and the width of each layer it is taken from

    @classmethod
    def build(
        cls, backbone: Backbone, inputs: Sequence[HeadInput], *, source: FeatureSource, image: int
    ) -> FeaturePlan:
        """Widths are found by one blank image of `image` px, so that any backbone will do."""
        check_source(source)
        inputs = tuple(dict.fromkeys(inputs))
        if not inputs:
            raise InputError(f"no features to probe; choose blocks and strategies among {', '.join(STRATEGIES)}")
        blocks = {pool: 0 for head in inputs for pool in head.strategy.split("+")}
        for head in inputs:
            for pool in head.strategy.split("+"):
                blocks[pool] = max(blocks[pool], head.blocks)
        check_room(backbone, image)
        blank = next(backbone.parameters()).new_zeros(1, backbone.channels, image, image)
        with torch.no_grad():
            found = _pooled(backbone, blank, blocks, source)
        return cls(inputs, source, tuple((pool, tuple(part.shape[1] for part in found[pool])) for pool in blocks))

    @property
    def width(self) -> int:
        """F, all features of an image."""
        return sum(sum(widths) for _, widths in self.pools)

    @torch.no_grad()
    def extract(self, backbone: Backbone, images: Tensor) -> Tensor:
        """Images as the backbone takes them (B, 3, H, W) -> features (B, F)."""
        found = _pooled(backbone, images, {pool: len(widths) for pool, widths in self.pools}, self.source)
        return torch.cat([at_least_float32(part) for pool, _ in self.pools for part in found[pool]], dim=1)

    def take(self, features: Tensor, head: HeadInput) -> Tensor:
        """What a head reads of features (B, F)."""
        parts = [features[:, part] for part in self.slices(head)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def slices(self, head: HeadInput) -> list[slice]:
        """The columns of one input, in the order in which its head reads them."""
        ends, end = {}, 0
        for pool, widths in self.pools:
            end += sum(widths)
            ends[pool] = (end, widths)
        found = []
        for pool in head.strategy.split("+"):
            end, widths = ends[pool]
            found.append(slice(end - sum(widths[len(widths) - head.blocks :]), end))
        return found

    def width_of(self, head: HeadInput) -> int:
        return sum(part.stop - part.start for part in self.slices(head))


def published_source(backbone: Backbone) -> FeatureSource:
    """Which features the published probes of such a backbone read: Dino-Mamba's the branch, all others the stream."""
    from_dino_mamba = backbone.family == "mamba2" and backbone.layout.place in ("middle", "spread")
    return "branch" if from_dino_mamba else "stream"


def head_inputs(backbone: Backbone, blocks: Sequence[int], strategies: Sequence[str]) -> tuple[HeadInput, ...]:
    """Every number of blocks with every strategy; `output` and `registers` as they apply."""
    for number in blocks:
        if not 1 <= number <= backbone.num_layers:
            raise InputError(
                f"cannot read the last {number} of {backbone.num_layers} blocks of {backbone.name}; "
                f"choose 1 to {backbone.num_layers}"
            )
    found = []
    for strategy in strategies:
        if strategy == OUTPUT:
            found.append(HeadInput(1, OUTPUT))
        elif strategy == REGISTERS:
            number = backbone.layout.num_registers
            if not number:
                raise InputError(f"{backbone.name} has no registers; choose among {', '.join(STRATEGIES)}")
            found += [HeadInput(n, f"register_{index}") for n in blocks for index in range(number)]
        elif strategy not in STRATEGIES:
            known = ", ".join((*STRATEGIES, OUTPUT, REGISTERS))
            raise InputError(f"strategy {strategy!r} does not exist; choose among {known}")
        elif "cls" in strategy and not backbone.layout.has_summary_token:
            raise InputError(
                f"{backbone.name} has no class token, so {strategy!r} would be the mean; choose mean, max or {OUTPUT}"
            )
        else:
            found += [HeadInput(n, strategy) for n in blocks]
    return tuple(dict.fromkeys(found))


def possible_strategies(backbone: Backbone) -> tuple[str, ...]:
    """The paper's strategies as far as the backbone has them; without a class token, its own output instead."""
    if backbone.layout.has_summary_token:
        return STRATEGIES
    return (OUTPUT, *(strategy for strategy in STRATEGIES if "cls" not in strategy))


def light_blocks(backbone: Backbone) -> int:
    """As many blocks as a light head of Table 1 reads: a width of 1,536 or the next below."""
    return max(1, min(LIGHT_WIDTH // backbone.dim, backbone.num_layers))


def is_light_as_dinos(backbone: Backbone) -> bool:
    """Whether the light head is DINO's for ViT-B: class token and mean of the patches of the last block."""
    reads_stream = published_source(backbone) == "stream" and backbone.layout.has_summary_token
    return reads_stream and 2 * backbone.dim == LIGHT_WIDTH


def heavy_blocks(backbone: Backbone) -> int:
    """Four blocks, or eight for the widths of tiny and base (Dino-Mamba, Table 1)."""
    return min(8 if backbone.dim in (256, 768) else 4, backbone.num_layers)


def _pooled(
    backbone: Backbone, images: Tensor, blocks: dict[str, int], source: FeatureSource
) -> dict[str, list[Tensor]]:
    """The last layers of each pool, each (B, D)."""
    found: dict[str, list[Tensor]] = {pool: [] for pool in blocks}
    depth = max((number for pool, number in blocks.items() if pool != OUTPUT), default=0)
    if depth:
        for place, (_, features) in enumerate(backbone.features(images, layers=depth, source=source)):
            for pool, number in blocks.items():
                if pool != OUTPUT and depth - place <= number:
                    found[pool].append(_pool(features, pool))
    if OUTPUT in blocks:
        found[OUTPUT].append(backbone(images))
    return found


def _pool(features: Features, pool: str) -> Tensor:
    match pool.partition("_"):
        case ("cls", _, _):
            return features.summary
        case ("mean", _, _):
            return features.patches.mean((1, 2))
        case ("max", _, _):
            return features.patches.amax((1, 2))
        case ("register", _, index):
            return features.registers[:, int(index)]
    raise InputError(f"there is no pooling {pool!r}")


class FeatureTable:
    """n rows of F features: shards on the disk, or one tensor on a device.

    `numbers` are the images' numbers in their source, `labels` their classes.
    """

    def __init__(
        self, parts: Sequence[NDArray[np.generic]], rows: NDArray[np.int64], unreadable: dict[str, str] | None = None
    ) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts])
        self.numbers = torch.from_numpy(rows[:, 0].copy())
        self.labels = torch.from_numpy(rows[:, 1].copy())
        self.unreadable = unreadable or {}
        self._whole: Tensor | None = None

    @classmethod
    def from_tensors(cls, features: Tensor, labels: Tensor) -> FeatureTable:
        """A table of features (n, F) that stay where they are."""
        rows = torch.stack([torch.arange(len(labels)), labels.cpu()], dim=1).numpy()
        table = cls([np.empty((0, 0), dtype=np.float32)], rows)
        table._whole = features
        return table

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._parts)

    def every(self, step: int, first: int) -> FeatureTable:
        """Each `step`-th row from `first` on: one rank's share."""
        if step == 1:
            return self
        if self._whole is not None:
            return FeatureTable.from_tensors(self._whole[first::step], self.labels[first::step])
        rows = torch.from_numpy(self._stored(np.arange(first, len(self), step)))
        return FeatureTable.from_tensors(rows, self.labels[first::step])

    def to(self, device: torch.device) -> FeatureTable:
        """Move the features to the GPU if they fit; otherwise they are read from disk."""
        if device.type == "cuda" and self._whole is None:
            free, _ = torch.cuda.mem_get_info(device)
            if self.nbytes < _SHARE_OF_MEMORY * free:
                self._whole = self._copied(device)
        return self

    def all(self) -> Tensor:
        """Every row, (n, F), as stored."""
        return self._whole if self._whole is not None else self._copied(torch.device("cpu"))

    def _copied(self, device: torch.device) -> Tensor:
        """One copy, shard by shard: the disk's pages are shared by all ranks of a machine."""
        first = torch.from_numpy(np.empty(0, dtype=self._parts[0].dtype))
        whole = torch.empty(int(self._ends[-1]), self._parts[0].shape[1], dtype=first.dtype, device=device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a map of a file may not be written to, and is not
            for part, end in zip(self._parts, self._ends.tolist(), strict=True):
                whole[end - len(part) : end] = torch.from_numpy(part)
        return whole

    def rows(self, indexes: NDArray[np.int64], device: torch.device) -> tuple[Tensor, Tensor]:
        """Features (B, F) in float32 and labels (B,) of some rows, on the device."""
        labels = self.labels[indexes].to(device, non_blocking=True)
        if self._whole is not None:
            there = torch.from_numpy(indexes).to(self._whole.device, non_blocking=True)
            return self._whole[there].to(device).float(), labels
        return torch.from_numpy(self._stored(indexes)).to(device, non_blocking=True).float(), labels

    def _stored(self, indexes: NDArray[np.int64]) -> NDArray[np.generic]:
        """Some rows from the disk, as stored."""
        shards = np.searchsorted(self._ends, indexes, side="right")
        found = np.empty((len(indexes), self._parts[0].shape[1]), dtype=self._parts[0].dtype)
        for shard in np.unique(shards):
            chosen = shards == shard
            start = self._ends[shard] - len(self._parts[shard])
            found[chosen] = self._parts[shard][indexes[chosen] - start]
        return found

    def block(self, first: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """`size` rows from `first` on, or as many as there are."""
        if self._whole is not None:
            few = slice(first, first + size)
            return self._whole[few].to(device).float(), self.labels[few].to(device)
        return self.rows(np.arange(first, min(first + size, len(self))), device)

    def blocks(self, size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """All rows in order, `size` at a time."""
        for first in range(0, len(self), size):
            yield self.block(first, size, device)
