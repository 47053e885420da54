"""The only training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from mixlab.backbones.backbone import Backbone
from mixlab.backbones.wrapped import as_backbone
from mixlab.data.given import AnyData, Data, as_data
from mixlab.data.loader import AnyBatch
from mixlab.data.workers import LostWorkerError
from mixlab.errors import InputError, WorkError, check_kind
from mixlab.run import RunDirectory
from mixlab.run.codec import to_json
from mixlab.run.lock import RunLock
from mixlab.signals import StopRequests, WaitingStopped, raising
from mixlab.training.batches import steps
from mixlab.training.building import build_recipe
from mixlab.training.checkpoint import Checkpoint, Checkpoints, export_weights
from mixlab.training.checkpoint_writer import CheckpointWriter
from mixlab.training.config import ModelConfig, TrainConfig
from mixlab.training.distributed import (
    World,
    any_rank,
    describe_workers,
    entries_of_all,
    from_first,
    join_world,
    settle_roots,
)
from mixlab.training.log import Journal, MetricBuffer, NonFiniteLoss, TrainingProgress, forget_after
from mixlab.training.record import RunRecord
from mixlab.training.state import TrainingState
from mixlab.training.stopping import ScoringStopped, Stopped, agreed
from mixlab.training.stored_settings import is_over
from mixlab.training.update import Update, peak_memory_gib

HOST_THREADS = 1  # beside a GPU, which does the work: more would only spin on cores that other processes need


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    step: int
    from_step: int
    metrics: dict[str, float]  # the newest of each
    seconds: float


@dataclass
class Clock:
    """Time since a step, and how much of it went by waiting for data."""

    step: int
    waited: float = 0.0
    start: float = field(default_factory=time.monotonic)

    def seconds(self) -> float:
        return max(time.monotonic() - self.start, 1e-9)


def train(
    config: TrainConfig,
    *,
    data: AnyData,
    run: str | Path,
    device: str | None = None,
    name: str = "",
    then: Callable[[Trainer], None] | None = None,
    backbone: Backbone | None = None,
    notes: Mapping[str, Any] | None = None,
    stop: StopRequests | None = None,
) -> Outcome:
    """Train to the end, resuming where an earlier call with the same directory stopped.

    `data` is a name as for `--data`, a `Source`, a data set, or a mapping of "train" and "val" (`as_data`). `backbone`
    is the network to start from, if `config.model` alone cannot build it; `notes` go into config.json. `then` is called
    at the end on every rank, for example to evaluate what was trained; a later call calls it again. Raises `Stopped`
    after SIGTERM, SIGINT or SIGHUP, with everything saved. `stop` may already listen, also to other signals: an earlier
    request is followed as soon as there is something to save.
    """
    check_kind(config, TrainConfig, "give a recipe, such as mixlab.find_recipe('dino_vit_tiny64')")
    backbone = None if backbone is None else as_backbone(backbone)
    with join_world(device) as world, ExitStack() as stack:
        folder = RunDirectory(run)
        stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        if world.device.type == "cuda":
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(HOST_THREADS)
        if world.is_first:  # to others the directory may not even be visible
            stack.enter_context(folder.kept_if_used())  # not where the data or a setting is wrong
            RunDirectory.create(run)
            stack.enter_context(RunLock(folder.path))
        with StopRequests() if stop is None else nullcontext(stop) as requests:
            given = as_data(data)
            if backbone is not None and backbone.name != config.model.name:
                config = replace(config, model=ModelConfig(name=backbone.name))
            trainer = Trainer(config, data=given, folder=folder, world=world, name=name, backbone=backbone, notes=notes)
            outcome = trainer.train(requests)
        if then is not None:  # all is saved, so a signal from here on ends the process at once
            trainer.stop_if_asked(requests)
            with raising(also=requests.also, even_ignored=True) as handler:
                try:
                    then(trainer)
                except BaseException:
                    if handler.number is None:
                        raise
                    raise Stopped(handler.number, trainer.step) from None  # also where another rank left first
        return outcome


class Trainer:
    def __init__(
        self,
        config: TrainConfig,
        *,
        data: Data,
        folder: RunDirectory,
        world: World,
        name: str,
        backbone: Backbone | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        self.config, self.data, self.folder, self.world, self.name = config, data, folder, world, name
        self.notes = dict(notes or {})
        self.warnings: list[str] = []  # to show once there is progress to show
        self.record = RunRecord(folder, config=config, data=data, world=world)
        self.source = self.record.open_source(self.warnings.append)
        self.loader = config.method.loader(self.source, config, world=world)
        self.steps_per_epoch = len(self.source) // config.batch
        self.total_steps = config.total_steps(self.steps_per_epoch)
        self.epochs = math.ceil(self.total_steps / self.steps_per_epoch)
        if config.precision == "bf16":
            torch.set_float32_matmul_precision("high")
        self.recipe, self.architecture = build_recipe(
            config,
            world=world,
            num_classes=len(self.source.classes),
            total_steps=self.total_steps,
            steps_per_epoch=self.steps_per_epoch,
            given=backbone,
        )
        self.update = Update(self.recipe, config, steps_per_epoch=self.steps_per_epoch, world=world)
        self.state = TrainingState(self.recipe, self.update.optimizer)
        self.scores = config.method.scores(data, self.source, config, world=world, precise=self.update.precise)
        self.watch = config.method.watch()
        self.checkpoints = Checkpoints(folder.path / "checkpoints", keep=config.checkpoint.keep)
        self.writer = CheckpointWriter(self.checkpoints, world=world, sharded=config.sharding == "fsdp")
        self.journal = Journal(None, config.log, settings={})
        self.buffer = MetricBuffer()
        self.metrics: dict[str, float] = {}
        self.step = 0
        self.saved_step: int | None = None
        self.saved_at = time.monotonic()
        self.was_scored = False  # at the step from which it resumes; known to the first rank

    def train(self, stop: StopRequests) -> Outcome:
        start = time.monotonic()
        self.start_or_resume()
        from_step = self.step
        try:
            with self.progress:
                self.run_steps(stop)
            self.finish(time.monotonic() - start)
        except Exception:
            self.writer.settle()
            raise
        finally:
            self.journal.close()
        return Outcome(self.step, from_step, self.metrics, time.monotonic() - start)

    def run_steps(self, stop: StopRequests) -> None:
        """From the current step to the last."""
        batches, from_step = steps(self.loader, self.config.accumulate), self.step
        self.clock = Clock(self.step)
        if self.lacks_scores:
            settle_roots(self.recipe.modules().values())  # no pass was made yet, and a part is scored on its own
            self.score(stop)
        while self.step < self.total_steps:
            position = self.loader.state_dict()
            passes = self.next_passes(batches, stop)
            self.writer.check()
            if any_rank(stop.asked() or self.time_is_up):
                if self.saved_step != self.step:
                    self.save(position)
                self.stop_if_asked(stop)
            metrics = self.update(passes, self.step)
            self.step += 1
            self.buffer.add(self.step, metrics, [batch.indexes for batch in passes])
            self.progress.step(self.step)
            if self.step == from_step + 1:  # now there are moments
                self.check_disk()
                self.writer.prepare(self.state.tensors())
                self.state.numbers()  # what cannot be saved is refused at once

            if self.step % self.config.log.every_steps == 0:
                self.report()
            if self.step % self.config.checkpoint.every_steps == 0 or self.step == self.total_steps:
                self.save(self.loader.state_dict())
            if self.scores_are_due:
                self.score(stop)

    @property
    def time_is_up(self) -> bool:
        """Whether the last checkpoint is older than it may be; the first rank's clock counts."""
        minutes = self.config.checkpoint.every_minutes
        return self.world.is_first and minutes is not None and time.monotonic() - self.saved_at >= 60 * minutes

    @property
    def epoch(self) -> int:
        """Epochs finished; the last may be a short one."""
        return self.epochs if self.step == self.total_steps else self.step // self.steps_per_epoch

    @property
    def scores_are_due(self) -> bool:
        """After an epoch, and before the first: what the untrained network scores."""
        ends_epoch = self.step % self.steps_per_epoch == 0 or self.step == self.total_steps
        return self.scores.wanted if self.step == 0 else ends_epoch and self.scores.due(self.epoch, self.epochs)

    def next_passes(self, batches: Iterator[list[AnyBatch]], stop: StopRequests) -> list[AnyBatch]:
        """The data of one step; none where a signal came first."""
        before = time.monotonic()
        try:
            with stop.waiting():
                return next(batches)
        except WaitingStopped:
            return []
        except LostWorkerError:
            if self.world.size == 1 and self.saved_step != self.step:  # ranks would have to agree
                self.save(self.loader.state_dict())
            self.writer.wait()
            raise
        finally:
            self.clock.waited += time.monotonic() - before

    def stop_if_asked(self, stop: StopRequests) -> None:
        """`Stopped` on every rank, where any was asked to stop, once the checkpoint is on the disk."""
        if any_rank(stop.asked()):
            self.writer.wait()
            raise Stopped(agreed(stop), self.step)

    def start_or_resume(self) -> None:
        """Agree on the settings with what is in the directory, and put back the newest good checkpoint."""
        found: Checkpoint | None = None
        if self.world.is_first:
            self.record.check(self.checkpoints, self.warnings.append)
            self.checkpoints.remove_partial()
            found = self.checkpoints.newest(self.warnings.append)
            if found is None and is_over(self.folder):
                raise InputError(
                    f"{self.folder.path} is trained and its checkpoints are gone, so there is nothing to resume; to "
                    "train it again, choose another --run directory, or remove its weights.safetensors"
                )
        place = from_first((found.step, found.state) if found else None)
        if place is None:
            self._check_warmup()  # before anything is written
        if self.world.is_first:
            step, last = (found.step, found.step) if found else (0, -1)  # the last whose metrics are kept
            forget_after(self.folder, last, self.warnings.append)
            self.record.write(self._about(), self.source, step=step)
            self.journal = Journal(self.folder, self.config.log, settings=to_json(self.config), after=last)
            for row in self.folder.read_metrics():  # what is not measured again
                self.metrics |= {name: value for name, value in row.items() if name != "step"}
            self.was_scored = any("loss" not in row for row in self.folder.read_metrics() if row["step"] == step)
        if place is not None:
            self.step = self.saved_step = place[0]
            self.loader.load_state_dict(place[1]["loader"])
            self.state.load(found.tensors() if found else None, place[1].get("optimizer"))
        self.check_disk()
        self.lacks_scores = self.scores_are_due and not from_first(self.was_scored)
        self.progress = TrainingProgress(
            total=self.total_steps, done=self.step, enabled=self.world.is_first, scores=self.config.method.shown
        )
        for warning in self.warnings:
            self.progress.say(warning, style="yellow")
        self.progress.say(self._greeting())
        if not self.config.data.resident:
            self.progress.say(describe_workers(self.config.data.workers, self.world))

    def check_disk(self) -> None:
        """Refuse to go on where the next checkpoint, as large as it is known to be, has no room."""
        every = self.config.checkpoint.every_steps
        due = min(self.total_steps, (self.step // every + 1) * every)
        if self.world.is_first and self.saved_step != self.total_steps:
            self.checkpoints.check_free(due, self.state.tensors())

    def report(self) -> None:
        """Copy the metrics from the device and log them."""
        try:
            metrics = self.buffer.fetch()
        except NonFiniteLoss as error:
            self.record.note_failure(error.step)
            self.writer.settle()
            raise WorkError(error.explain(self.source.name, self.checkpoints.steps())) from error
        if not metrics:
            return
        seconds = self.clock.seconds()
        metrics |= {
            "epoch": self.step / self.steps_per_epoch,
            "lr": self.update.lr(self.step - 1),
            "weight_decay": self.update.weight_decay(self.step - 1),
            "images_per_s": (self.step - self.clock.step) * self.config.batch / seconds,
            "data_wait": self.clock.waited / seconds,
        }
        self.clock = Clock(self.step)
        if self.world.device.type == "cuda":
            metrics["peak_memory_gib"] = peak_memory_gib(self.world.device)
        self._note(metrics)
        for warning in self.watch.look(self.step, metrics) if self.watch else ():
            self.progress.say(warning, style="yellow")

    def score(self, stop: StopRequests) -> None:
        """Live scores of the exported backbone. A stop interrupts them; a resumed run computes them again."""
        self.report()
        self.writer.wait()  # scoring is long: nothing that was trained may be lost by it
        try:
            found = dict(self.scores(self.recipe, stop.asked))
        except ScoringStopped:
            if self.saved_step != self.step:
                self.save(self.loader.state_dict())
            self.stop_if_asked(stop)
            raise
        self._note(found)
        self.clock = Clock(self.step)  # scoring is not training time

    def save(self, position: dict[str, Any]) -> None:
        """Begin to write a checkpoint of this step; `report` refuses first where the loss is NaN or infinite."""
        self.report()
        state = {"loader": {**position, "skipped": entries_of_all(position["skipped"])}, "config": self.record.content}
        if numbers := self.state.numbers():
            state["optimizer"] = numbers
        self.writer.start(self.step, self.state.tensors(), state)
        self.saved_step, self.saved_at = self.step, time.monotonic()
        self.clock = Clock(self.step)

    def finish(self, seconds: float) -> None:
        self.writer.wait()
        metadata = {"recipe": self.name, "step": str(self.step)}
        export_weights(self.recipe, self.folder.path, is_first=self.world.is_first, metadata=metadata)
        skipped = entries_of_all(self.loader.skipped.reasons)
        if self.world.is_first:
            metrics = {"steps": self.step, "seconds": seconds, **self.metrics}
            self.folder.write_result("training", {"figures": metrics, "skipped": skipped})

    def _check_warmup(self) -> None:
        """Only at the start, so that a run which an older version accepted can be resumed."""
        warmup = self.config.warmup_steps(self.steps_per_epoch)
        if warmup > self.total_steps:
            raise InputError(
                f"a warm-up of {warmup} steps does not fit into a run of {self.total_steps}; add --set "
                f"optim.warmup_steps={self.total_steps // 10}, or another number up to {self.total_steps}"
            )

    def _about(self) -> dict[str, Any]:
        return {
            "recipe": self.name,
            "architecture": self.architecture,
            "steps_per_epoch": self.steps_per_epoch,
            "total_steps": self.total_steps,
            **self.notes,
        }

    def _note(self, metrics: dict[str, float]) -> None:
        self.metrics |= metrics
        self.progress.show(self.step, metrics)
        self.journal.write(self.step, metrics)

    def _greeting(self) -> str:
        total = f"{self.total_steps:,} step{'s' * (self.total_steps > 1)}"
        begun = f"resuming from step {self.step:,} of {self.total_steps:,}" if self.step else f"starting {total}"
        images = f"{len(self.source):,} images in batches of {self.config.batch}"
        what = f"{self.config.model.name} on {self.data}, {images}, in {self.folder.path}"
        return f"{self.config.method.title}: {begun}, {what}"
