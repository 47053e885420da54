"""Batches of features without end, from any step on: read from a table, or made afresh from augmented images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from mixlab.backbones.backbone import Backbone
from mixlab.data.loader import Loader
from mixlab.data.sample_order import SampleOrder
from mixlab.data.source import ImageSource
from mixlab.errors import InputError
from mixlab.evaluation.feature_plan import FeaturePlan
from mixlab.evaluation.feature_table import FeatureTable
from mixlab.evaluation.views import ProbeCrops
from mixlab.training.distributed import World, gather_rows


class FeatureStream(ABC):
    """Step s gives the same batch in every run, whatever came before and however many ranks there are."""

    num_images: int
    batch: int  # over all ranks
    unreadable: dict[str, str]

    @property
    def steps_per_epoch(self) -> int:
        return self.num_images // self.batch

    @abstractmethod
    def steps(self, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Features (B, F) and labels (B,) of the global batch of step `start` and of all after it."""


class CachedStream(FeatureStream):
    """Rows of a table in a shuffled order; each rank reads the whole batch."""

    def __init__(self, table: FeatureTable, *, batch: int, seed: int, device: torch.device) -> None:
        self.table, self.device = table.to(device), device
        self.num_images, self.batch, self.unreadable = len(table), batch, table.unreadable
        self.order = SampleOrder(len(table), batch, seed)

    def steps(self, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        epoch, step = divmod(start, self.steps_per_epoch)
        while True:
            for indexes in self.order.batches(epoch, step * self.batch):
                yield self.table.rows(indexes, self.device)
            epoch, step = epoch + 1, 0


class AugmentedStream(FeatureStream):
    """Random crops of images through the frozen backbone; each rank makes its part, and all get the whole."""

    def __init__(
        self,
        source: ImageSource,
        *,
        backbone: Backbone,
        plan: FeaturePlan,
        crops: ProbeCrops,
        batch: int,
        seed: int,
        load_size: int,
        world: World,
        precise: Callable[[], AbstractContextManager[None]],
        workers: int = 0,
        resident: bool = False,
    ) -> None:
        if batch % world.size:
            near = max(batch // world.size, 1) * world.size
            raise InputError(f"a batch of {batch} cannot be shared by {world.size} ranks; try {near}")
        self.backbone, self.plan, self.crops, self.world, self.precise = backbone, plan, crops, world, precise
        self.num_images, self.batch = len(source), batch
        self.loader = Loader(
            source,
            batch_size=batch // world.size,
            size=load_size,
            seed=seed,
            rank=world.rank,
            world_size=world.size,
            num_workers=workers,
            skip_limit=1.0,
            pin_memory=world.device.type == "cuda" and not resident,
            resident_on=world.device if resident else None,
        )
        self.unreadable = self.loader.skipped.reasons

    def steps(self, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        epoch, step = divmod(start, self.steps_per_epoch)
        position = {"epoch": epoch, "samples": step * self.batch, "skipped": self.unreadable}
        self.loader.load_state_dict({**self.loader.state_dict(), **position})
        self.unreadable = self.loader.skipped.reasons
        step = start
        while True:
            for batch in self.loader:
                self._check_full(len(batch.indexes))
                batch = batch.to(self.world.device)
                with torch.no_grad(), self.precise():
                    images = self.crops(batch, self.backbone, step=step, world=self.world)
                    features = self.plan.extract(self.backbone, images)
                yield gather_rows(features), gather_rows(batch.labels)
                step += 1
            epoch += 1
            if step != epoch * self.steps_per_epoch:  # a batch without any image is not given out
                self._check_full(0)

    def _check_full(self, found: int) -> None:
        """Unreadable images are replaced by the next readable one, if there is one near."""
        wanted = self.batch // self.world.size
        if found < wanted:
            raise InputError(
                f"a batch of {wanted} has {found} images, {len(self.unreadable)} in all cannot be read, such as "
                f"{next(iter(self.unreadable), 'none')}; repair or remove them"
            )
