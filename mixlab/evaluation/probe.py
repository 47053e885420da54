"""Linear probing: a whole grid of heads trained together on a frozen backbone, stopped and resumed at any step."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mixlab.errors import InputError
from mixlab.evaluation.feature_table import FeatureTable
from mixlab.evaluation.head_grid import LR_BATCH, HeadGrid
from mixlab.evaluation.head_sharing import collect_heads, spread_heads
from mixlab.evaluation.probe_streams import FeatureStream
from mixlab.run import RunDirectory
from mixlab.run.codec import differences
from mixlab.run.directory import read_json, write_json
from mixlab.training.checkpoint import Checkpoints
from mixlab.training.distributed import any_rank, from_all, from_first
from mixlab.training.log import forget_after
from mixlab.training.optim import cosine
from mixlab.training.precision import matrix_products
from mixlab.training.stopping import Stopped, StopRequests

SCORE_ROWS = 2048  # images whose logits are in memory at once
SAVE_EVERY_S = 300.0

Say = Callable[[str], None]


class Probe:
    """Trains the heads of a grid on a stream of features and scores them on a table.

    The folder holds settings.json, checkpoints/ and metrics.jsonl; the same settings again go on from there.
    """

    def __init__(
        self,
        grid: HeadGrid,
        stream: FeatureStream,
        val: FeatureTable,
        *,
        epochs: int,
        folder: Path,
        settings: dict[str, Any],
        say: Say = lambda text: None,
        exact: bool = False,
        score_every: int = 10,
        save_every_s: float = SAVE_EVERY_S,
    ) -> None:
        if epochs < 1:
            raise InputError(f"{epochs} epochs train nothing; give at least 1")
        self.grid, self.stream, self.val, self.epochs = grid, stream, val, epochs
        self.world, self.say, self.exact = grid.world, say, exact
        self.score_every, self.save_every_s = score_every, save_every_s
        self.run = RunDirectory.create(folder)
        self.settings = settings
        self.checkpoints = Checkpoints(folder / "checkpoints", keep=2)
        self.total_steps = epochs * stream.steps_per_epoch
        self.step = 0

    def train(self, stop: StopRequests, progress: Callable[[int], None] = lambda count: None) -> None:
        """From wherever an earlier call stopped to the end. Raises `Stopped` after a signal, with everything saved."""
        self._resume()
        progress(self.step)
        saved_at = time.monotonic()
        batches = self.stream.steps(self.step)
        with matrix_products(exact=self.exact):
            while self.step < self.total_steps:
                features, labels = next(batches)
                losses = self.grid.step(features, labels, lr_scale=self._lr_scale())
                self.step += 1
                progress(1)
                if any_rank(stop.number is not None):
                    self._save()
                    raise Stopped(max(from_all(stop.number or 0)), self.step)
                if self.step % self.stream.steps_per_epoch:
                    continue
                epoch = self.step // self.stream.steps_per_epoch
                last = epoch == self.epochs
                if last or (self.score_every and epoch % self.score_every == 0):
                    self._note(epoch, losses)
                if from_first(last or time.monotonic() - saved_at >= self.save_every_s):
                    self._save()
                    saved_at = time.monotonic()

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
            self._agree()
            self.checkpoints.remove_partial()
            found = self.checkpoints.newest(self.say)
            forget_after(self.run, found.step if found else 0)
        place = from_first((found.step, found.state) if found else None)
        if place is None:
            return
        self.step = place[0]
        self.stream.unreadable.update(place[1]["unreadable"])
        spread_heads(self.grid, dict(found.tensors()) if found else {})
        self.say(f"going on from step {self.step:,} of {self.total_steps:,}")

    def _agree(self) -> None:
        file = self.run.path / "settings.json"
        if not file.is_file():
            write_json(file, self.settings)
            return
        changed = differences(read_json(file), self.settings)
        if changed:
            listed = "; ".join(f"{key} was {old!r}, is {new!r}" for key, (old, new) in changed.items())
            raise InputError(
                f"{self.run.path} holds a probe with other settings ({listed}); give the same ones to go on, "
                "or another --name"
            )

    def _save(self) -> None:
        unreadable = {path: why for part in from_all(self.stream.unreadable) for path, why in part.items()}
        heads = collect_heads(self.grid)
        if self.world.is_first:
            self.checkpoints.save(self.step, heads, {"unreadable": unreadable})

    def _note(self, epoch: int, losses: Tensor) -> None:
        correct, finite = self.score()
        lowest = min((float(part.min()) for part in from_all(losses.cpu()) if len(part)), default=float("nan"))
        if self.world.is_first:
            best = correct[finite].float().mean(1).max() if finite.any() else torch.tensor(0.0)
            self.run.append_metrics(
                {"step": self.step, "epoch": epoch, "lowest_loss": lowest, "best_top1": float(best)}
            )
