"""One optimiser step, whatever the recipe: every pass forward and backward, clip, step, averages. Never waits."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from mixlab.data.loader import AnyBatch
from mixlab.training.captured import CapturedPass, can_capture, run_pass
from mixlab.training.config import TrainConfig
from mixlab.training.distributed import World
from mixlab.training.optim import build_adamw, clip_each_, cosine, gradients, learning_rate, parameter_groups, set_rates
from mixlab.training.precision import autocast
from mixlab.training.recipe import BatchPart, Recipe, seed_all


class Update:
    """Owns the optimiser. Rates depend on the step alone."""

    def __init__(self, recipe: Recipe, config: TrainConfig, *, steps_per_epoch: int, world: World) -> None:
        self.recipe, self.config, self.world = recipe, config, world
        self.steps_per_epoch = steps_per_epoch
        self.total_steps = config.total_steps(steps_per_epoch)
        self.precise = autocast(config.precision, world.device)
        recipe.network.train()
        groups = parameter_groups(recipe.network, recipe.no_weight_decay(), recipe.lr_shares())
        self.optimizer = build_adamw(groups, config.optim)
        self.captured = CapturedPass(recipe, self.precise) if can_capture(recipe, config, world) else None

    def __call__(self, passes: Sequence[AnyBatch], step: int) -> dict[str, Tensor]:
        """Train on one global batch. Returns figures that are still on the device."""
        set_rates(self.optimizer, lr=self.lr(step), weight_decay=self.weight_decay(step))
        figures = [self._forward_backward(batch, step, index, len(passes)) for index, batch in enumerate(passes)]
        part = self._part(step, 0, len(passes))
        self.recipe.before_update(part)
        norm = clip_each_(gradients(self.recipe.network.parameters()), self.config.optim.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        mean = figures[0]
        if len(figures) > 1:
            mean = {name: torch.stack([part[name] for part in figures]).mean() for name in mean}
        return {**mean, "grad_norm": norm, **self.recipe.after_update(part)}

    def lr(self, step: int) -> float:
        optim = self.config.optim
        peak = optim.lr * self.config.batch / optim.lr_batch
        return learning_rate(
            step,
            peak=peak,
            end=optim.min_lr,
            start=optim.warmup_start * peak,
            warmup=self.config.warmup_steps(self.steps_per_epoch),
            total=self.total_steps,
            decay=optim.decay,
            drops=tuple(epoch * self.steps_per_epoch for epoch in optim.drop_epochs),
        )

    def weight_decay(self, step: int) -> float:
        optim = self.config.optim
        return cosine(step, start=optim.weight_decay, end=optim.weight_decay_end, total=self.total_steps)

    def _part(self, step: int, index: int, num_passes: int) -> BatchPart:
        return BatchPart(
            step=step,
            epoch=step // self.steps_per_epoch,
            index=index * self.world.size + self.world.rank,
            num_parts=num_passes * self.world.size,
            seed=self.config.seed,
        )

    def _forward_backward(self, batch: AnyBatch, step: int, index: int, num_passes: int) -> dict[str, Tensor]:
        part = self._part(step, index, num_passes)
        seed_all(part.seed, part.step, part.index)  # for drop path and the like
        inputs = self.recipe.prepare(batch.to(self.world.device), part)
        if self.captured is not None:
            return self.captured(inputs, index=index, num_passes=num_passes)
        with _gradients_stay_here(self.recipe, unless=index == num_passes - 1):
            return run_pass(self.recipe, inputs, self.precise, weight=1 / num_passes)


def _gradients_stay_here(recipe: Recipe, *, unless: bool) -> AbstractContextManager[None]:
    """Ranks exchange gradients once a step, with its last pass."""
    if isinstance(recipe.run, DistributedDataParallel) and not unless:
        return recipe.run.no_sync()
    return nullcontext()
