"""Training a grid of heads on a stream of features, stopped and resumed at any step.

Not on `training.loop`: that trains one network by autograd and AdamW. Here one pass of a frozen backbone, or one read
of its cached features, trains hundreds of heads, each with its own learning rate and weight decay, by a gradient that
is written out (`heads`) and never stored; and ranks divide the heads instead of averaging gradients. Checkpoints, stop
signals, the loader and the order of samples are those of all training.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from mixlab.backbones.backbone import Backbone
from mixlab.data.crops import CropKind, MultiCrop
from mixlab.data.loader import Batch
from mixlab.data.packed import PackedBatch, PackedLoader, PackedReader
from mixlab.data.sample_order import SampleOrder
from mixlab.data.source import ImageSource
from mixlab.errors import InputError
from mixlab.evaluation.features import FeaturePlan, FeatureTable
from mixlab.evaluation.machine import Machine, Say
from mixlab.evaluation.probe.heads import LR_BATCH, HeadGrid, collect_heads, spread_heads
from mixlab.run import RunDirectory
from mixlab.signals import StopRequests
from mixlab.training.checkpoint import Checkpoints
from mixlab.training.distributed import World, any_rank, entries_of_all, from_all, from_first, gather_rows
from mixlab.training.log import forget_after
from mixlab.training.loop import Clock
from mixlab.training.precision import Precise, matrix_products
from mixlab.training.recipe import BatchPart, to_pixels_of
from mixlab.training.schedules import cosine
from mixlab.training.stopping import Stopped, agreed

SCORE_ROWS = 2048  # images whose logits are in memory at once
SCORE_EVERY = 10  # epochs
SAVE_EVERY_S = 300.0
PROBE_SCALE = (0.08, 1.0)  # torchvision's RandomResizedCrop, which DINO's probe uses as it comes: bilinear


class ProbeCrops:
    """Random resized crops and flips, the paper's augmentation for probes; choices depend on seed and step alone.

    Images that are squashed to `load_size` before they are cut are resized bicubically: as probes once were.
    """

    def __init__(self, size: int, *, seed: int, load_size: int | None = None) -> None:
        self.size, self.seed, self.load_size = size, seed, load_size
        self.crops = MultiCrop([CropKind(size=size, scale=PROBE_SCALE, bilinear=0.0 if load_size else 1.0)])

    def __call__(self, batch: Batch | PackedBatch, backbone: Backbone, *, step: int, world: World) -> Tensor:
        """This rank's part of a global batch -> what the backbone takes, (B, 3, size, size)."""
        part = BatchPart(step=step, epoch=0, index=world.rank, num_parts=world.size, seed=self.seed)
        drawn = self.crops.draw(batch.sizes, part.generator(), rank=world.rank, world_size=world.size)
        return to_pixels_of(backbone, self.crops(batch.images, drawn)[0][0])


class FeatureStream(ABC):
    """Batches of features without end, from any step on.

    Step s gives the same batch in every run, whatever came before and however many ranks there are.
    """

    num_images: int
    batch: int  # over all ranks
    unreadable: dict[str, str]
    waited: float = 0.0  # seconds, for images to be read

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
        machine: Machine,
        precise: Precise,
        resident: bool = False,
    ) -> None:
        world = machine.world
        if batch % world.size:
            near = max(batch // world.size, 1) * world.size
            raise InputError(f"a batch of {batch} cannot be shared by {world.size} ranks; try {near}")
        self.backbone, self.plan, self.crops, self.world, self.precise = backbone, plan, crops, world, precise
        self.num_images, self.batch = len(source), batch
        self.loader = PackedLoader(
            PackedReader(source, crops.crops.reduction, crops.load_size),
            SampleOrder(len(source), batch // world.size, crops.seed, world.rank, world.size),
            num_workers=machine.workers,
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
            batches = iter(self.loader)
            while (batch := self._next(batches)) is not None:
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

    def _next(self, batches: Iterator[PackedBatch]) -> PackedBatch | None:
        before = time.monotonic()
        try:
            return next(batches, None)
        finally:
            self.waited += time.monotonic() - before

    def _check_full(self, found: int) -> None:
        """Unreadable images are replaced by the next readable one, if there is one near."""
        wanted = self.batch // self.world.size
        if found < wanted:
            raise InputError(
                f"a batch of {wanted} has {found} images, {len(self.unreadable)} in all cannot be read, such as "
                f"{next(iter(self.unreadable), 'none')}; repair or remove them"
            )


class ProbeTrainer:
    """Trains the heads of a grid on a stream of features and scores them on a table.

    The folder holds checkpoints/ and metrics.jsonl; a second call resumes from there.
    """

    def __init__(
        self,
        grid: HeadGrid,
        stream: FeatureStream,
        val: FeatureTable,
        *,
        epochs: int,
        folder: Path,
        say: Say = lambda text: None,
        exact: bool = False,
        save_every_s: float = SAVE_EVERY_S,
    ) -> None:
        if epochs < 1:
            raise InputError(f"{epochs} epochs train nothing; give at least 1")
        self.grid, self.stream, self.val, self.epochs = grid, stream, val, epochs
        self.world, self.say, self.exact = grid.world, say, exact
        self.save_every_s = save_every_s
        self.run = RunDirectory.create(folder)
        self.checkpoints = Checkpoints(folder / "checkpoints", keep=2)
        self.total_steps = epochs * stream.steps_per_epoch
        self.step = 0

    def train(self, stop: StopRequests, progress: Callable[[int], None] = lambda count: None) -> None:
        """From wherever an earlier call stopped to the end. Raises `Stopped` after a signal, with everything saved."""
        self._resume()
        progress(self.step)
        saved_at = time.monotonic()
        batches = self.stream.steps(self.step)
        clock: Clock | None = None
        with matrix_products(exact=self.exact):
            while self.step < self.total_steps:
                features, labels = next(batches)
                losses = self.grid.step(features, labels, lr_scale=self._lr_scale())
                self.step += 1
                clock = clock or self._clock()  # the first step waits for processes to start
                progress(1)
                saved = False
                if self.step % self.stream.steps_per_epoch == 0:
                    epoch = self.step // self.stream.steps_per_epoch
                    last = epoch == self.epochs
                    if last or epoch % SCORE_EVERY == 0:
                        self._note(epoch, losses, clock)
                        clock = self._clock()  # scoring is not training time
                    if saved := from_first(last or time.monotonic() - saved_at >= self.save_every_s):
                        self._save()
                        saved_at = time.monotonic()
                if any_rank(stop.asked()):
                    if not saved:
                        self._save()
                    raise Stopped(agreed(stop), self.step)

    def score(self) -> tuple[Tensor, Tensor]:
        """Which images each head of the grid gets right, bool (heads, n), and which heads are finite, (heads,)."""
        device = self.world.device
        with matrix_products(exact=self.exact):
            right = [
                (self.grid.predict(features) == labels).cpu()
                for features, labels in self.val.blocks(SCORE_ROWS, device)
            ]
        everyone = from_all((self.grid.own_heads, torch.cat(right, dim=1), self.grid.finite()))
        correct = torch.zeros(len(self.grid.heads), len(self.val), dtype=torch.bool)
        finite = torch.zeros(len(self.grid.heads), dtype=torch.bool)
        for heads, rows, sound in everyone:
            correct[heads], finite[heads] = rows, sound
        return correct, finite

    def _lr_scale(self) -> float:
        """A cosine over epochs, as DINO's probe has it: every step of an epoch has one rate."""
        epoch = self.step // self.stream.steps_per_epoch
        return cosine(epoch, start=1.0, end=0.0, total=self.epochs) * self.stream.batch / LR_BATCH

    def _resume(self) -> None:
        found = None
        if self.world.is_first:
            self.checkpoints.remove_partial()
            found = self.checkpoints.newest(self.say)
            forget_after(self.run, found.step if found else 0, self.say)
        place = from_first((found.step, found.state) if found else None)
        if place is None:
            return
        self.step = place[0]
        self.stream.unreadable.update(place[1]["unreadable"])
        spread_heads(self.grid, dict(found.tensors()) if found else {})
        self.say(f"resuming from step {self.step:,} of {self.total_steps:,}")

    def _save(self) -> None:
        unreadable = entries_of_all(self.stream.unreadable)
        heads = collect_heads(self.grid)
        if self.world.is_first:
            self.checkpoints.save(self.step, heads, {"unreadable": unreadable})

    def _clock(self) -> Clock:
        return Clock(self.step, waited=self.stream.waited)

    def _note(self, epoch: int, losses: Tensor, clock: Clock) -> None:
        """Scores, and the speed since the clock's step, where that is not this one."""
        lowest = min((float(part.min()) for part in from_all(losses.cpu()) if len(part)), default=float("nan"))
        speed, seconds = {}, clock.seconds()  # the losses have come from the device: all before them is done
        if self.step > clock.step:
            speed = {
                "images_per_s": (self.step - clock.step) * self.stream.batch / seconds,
                "data_wait": (self.stream.waited - clock.waited) / seconds,
            }
        correct, finite = self.score()
        if self.world.is_first:
            best = correct[finite].float().mean(1).max() if finite.any() else torch.tensor(0.0)
            scores = {"lowest_loss": lowest, "best_top1": float(best)}
            self.run.append_metrics({"step": self.step, "epoch": epoch, **scores, **speed})
