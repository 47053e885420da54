"""One optimiser step, whatever the recipe: every pass forward and backward, clip, step, averages. Never waits.

On a GPU a pass is one CUDA graph where it can be: kernel launches often take longer than the kernels. Of several ranks
each captures its own; `Recipe.exchange` averages their gradients after the last.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mixlab.data.loader import AnyBatch
from mixlab.errors import InputError, WorkError
from mixlab.training.config import TrainConfig
from mixlab.training.distributed import World
from mixlab.training.exchange import StatisticsExchange
from mixlab.training.kept_scans import KeptScans
from mixlab.training.log import TAKEN
from mixlab.training.optim import build_optimizer, clip_each_, gradients, parameter_groups, set_rates
from mixlab.training.precision import Precise, autocast
from mixlab.training.recipe import BatchPart, Recipe, seed_all
from mixlab.training.schedules import Course, check_schedule, cosine, learning_rate

After = Callable[[], dict[str, Tensor]]
WARM_UP = 3  # plain steps before a capture: kernels compile, libraries take their memory, which shows what is left


class Update:
    """Owns the optimiser. Rates depend on the step alone."""

    def __init__(self, recipe: Recipe, config: TrainConfig, *, steps_per_epoch: int, world: World) -> None:
        self.recipe, self.config, self.world = recipe, config, world
        self.steps_per_epoch = steps_per_epoch
        self.total_steps = config.total_steps(steps_per_epoch)
        self.precise = autocast(config.precision, world.device)
        recipe.network.train()
        muon = recipe.muon_weights() if config.optim.name == "muon" else set()
        groups = parameter_groups(recipe.network, recipe.no_weight_decay(), recipe.lr_shares(), muon)
        self.optimizer = build_optimizer(groups, config.optim)
        self.course = course_of(config, steps_per_epoch)
        check_schedule(self.course, config.optim.decay)
        self.exchange_statistics = StatisticsExchange(recipe.network) if world.size > 1 else None
        self.kept_scans = KeptScans(recipe.network) if _chooses_scans(recipe, config, world) else None
        self.steps = 0
        self.captured: CapturedPass | None = None
        if world.device.type == "cuda" and config.graph is not False:
            why = reason_against_capture(recipe, config, world)
            if why is None:
                alone = world.size == 1 and config.accumulate == 1  # the gradient of a pass is that of the step
                after = self.clip if alone else None
                self.captured = CapturedPass(recipe, self.precise, must=config.graph is True, after=after)
            else:
                warnings.warn(f"passes are launched kernel by kernel, not as a CUDA graph: {why}", stacklevel=2)

    def __call__(self, passes: Sequence[AnyBatch], step: int) -> dict[str, Tensor]:
        """Train on one global batch. Returns metrics that are still on the device."""
        set_rates(self.optimizer, lr=self.lr(step), weight_decay=self.weight_decay(step))
        with self._choosing_scans(len(passes)):
            metrics = [self._forward_backward(batch, step, index, len(passes)) for index, batch in enumerate(passes)]
        self.steps += 1
        if self.recipe.exchange is not None:
            self.recipe.exchange()
        norm = {} if "grad_norm" in metrics[0] else self.clip()
        part = self._part(step, 0, len(passes))
        self.recipe.before_update(part)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.exchange_statistics is not None:
            self.exchange_statistics()
        mean = metrics[0]
        if len(metrics) > 1:
            mean = {name: torch.stack([part[name] for part in metrics]).mean() for name in mean}
        return {**mean, **norm, **self.recipe.after_update(part)}

    @contextmanager
    def _choosing_scans(self, num_passes: int) -> Iterator[None]:
        """Around the passes of a step: the first two are watched, and one more is plain before a capture."""
        if self.kept_scans is None or self.steps >= WARM_UP:
            yield
        elif self.steps < WARM_UP - 1:
            with self.kept_scans.watching(num_passes):
                yield
        else:
            self.kept_scans.keep(free_bytes=torch.cuda.mem_get_info(self.world.device)[0])
            yield

    def clip(self) -> dict[str, Tensor]:
        """Each gradient by its own norm; a capture has it where it can."""
        return {"grad_norm": clip_each_(gradients(self.recipe.network.parameters()), self.config.optim.clip)}

    def lr(self, step: int) -> float:
        return learning_rate(step, self.course, self.config.optim.decay)

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
        seed_all(part.seed, part.step, 1 + part.index)  # for drop path and the like; not the draws of `part.generator`
        inputs = self.recipe.prepare(batch.to(self.world.device), part)
        if self.captured is not None:
            return self.captured(inputs, index=index, num_passes=num_passes)
        with _gradients_stay_here(self.recipe, unless=index == num_passes - 1):
            return run_pass(self.recipe, inputs, self.precise, weight=1 / num_passes)


def course_of(config: TrainConfig, steps_per_epoch: int) -> Course:
    """What the schedule of a run knows of it."""
    optim = config.optim
    peak = optim.lr * config.batch / optim.lr_batch
    return Course(
        peak=peak,
        end=optim.min_lr,
        start=optim.warmup_start * peak,
        warmup=config.warmup_steps(steps_per_epoch),
        total=config.total_steps(steps_per_epoch),
        drops=tuple(epoch * steps_per_epoch for epoch in optim.drop_epochs),
        steps_per_epoch=steps_per_epoch,
    )


def _gradients_stay_here(recipe: Recipe, *, unless: bool) -> AbstractContextManager[None]:
    """Ranks exchange gradients once a step, with its last pass."""
    if isinstance(recipe.run, DistributedDataParallel) and not unless:
        return recipe.run.no_sync()
    return nullcontext()


def reason_against_capture(recipe: Recipe, config: TrainConfig, world: World) -> str | None:
    """Why the passes of a run cannot be one CUDA graph; None where they can."""
    if not recipe.static:
        return f"the shapes of a batch change from step to step in {config.method.title}"
    if world.size > 1 and config.sharding == "fsdp":
        return "sharding=fsdp gathers weights during a pass"
    if world.size > 1 and (shared := recipe.shared or _shared_norms(recipe.network)):
        return f"processes exchange {shared} during a pass"
    if config.compile:
        return "compile=true"
    if config.activation_checkpointing:
        return "activation_checkpointing=true"
    return None


def _chooses_scans(recipe: Recipe, config: TrainConfig, world: World) -> bool:
    """Whether a run finds out by itself in which layers scans are kept: not if later passes may take more memory."""
    recorded = not (config.compile or config.activation_checkpointing)  # which keep nothing, or must not change
    return config.keep_scans is None and world.device.type == "cuda" and recorded and recipe.static


def _shared_norms(network: nn.Module) -> str:
    return "batch statistics" if any(isinstance(part, nn.SyncBatchNorm) for part in network.modules()) else ""


@dataclass(frozen=True)
class Capture:
    """One pass as a graph: a replay reads `inputs` and writes `gradients` and `metrics` (logged values) in place."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    parameters: list[nn.Parameter]
    gradients: list[Tensor]
    names: tuple[str, ...]
    metrics: Tensor

    def replay(self, inputs: tuple[Tensor, ...]) -> None:
        for ours, given in zip(self.inputs, inputs, strict=True):
            if given.shape != ours.shape or given.dtype != ours.dtype:  # copy_ would spread a batch of one over all
                raise WorkError(
                    f"a pass captured for {_kind(ours)} was given {_kind(given)}; "
                    "give batches of one size and type, or set graph=false"
                )
            ours.copy_(given)
        self.graph.replay()


class CapturedPass:
    """Runs a recipe's passes and leaves gradients on the parameters; from the fourth step on it replays a capture.

    Random numbers follow the seed set before the call, as they do in a plain pass. A pass that cannot be captured runs
    as a plain one from then on, unless it `must` be. `after` is captured with it: it may change gradients in place,
    and gives more metrics.
    """

    def __init__(self, recipe: Recipe, precise: Precise, *, must: bool = True, after: After | None = None) -> None:
        self.recipe, self.precise, self.must, self.after = recipe, precise, must, after
        self.steps = 0
        self.failed = False
        self.capture: Capture | None = None
        self.sums: list[Tensor] = []  # of gradients over the passes of a step

    def __call__(self, inputs: tuple[Tensor, ...], *, index: int = 0, num_passes: int = 1) -> dict[str, Tensor]:
        """Pass `index` of a step's; the step's gradient is the mean over its passes."""
        self.steps += index == 0
        if self.steps > WARM_UP and self.capture is None and not self.failed:
            try:
                self.capture = capture_pass(self.recipe, inputs, self.precise, self.after)
            except WorkError as error:
                if self.must:
                    raise
                self.failed = True
                warnings.warn(f"{error}; passes are launched kernel by kernel", stacklevel=2)
        if self.capture is None:
            return run_pass(self.recipe, inputs, self.precise, weight=1 / num_passes)
        self.capture.replay(inputs)
        gradients = self._mean(self.capture.gradients, index, num_passes)
        for parameter, gradient in zip(self.capture.parameters, gradients, strict=True):
            parameter.grad = gradient
        return dict(zip(self.capture.names, self.capture.metrics.clone().unbind(), strict=True))

    def _mean(self, gradients: list[Tensor], index: int, num_passes: int) -> list[Tensor]:
        if num_passes == 1:
            return gradients
        if index == 0:
            self.sums = list(torch._foreach_mul(gradients, 1 / num_passes))
        else:
            torch._foreach_add_(self.sums, gradients, alpha=1 / num_passes)
        return self.sums


def capture_pass(recipe: Recipe, inputs: tuple[Tensor, ...], precise: Precise, after: After | None = None) -> Capture:
    """Record forward, backward and `after` for inputs of these shapes; nothing has run yet when it returns."""
    graph, inputs = torch.cuda.CUDAGraph(), tuple(torch.empty_like(part) for part in inputs)
    recipe.network.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # the capture takes memory of its own
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may pin memory meanwhile
            metrics = run_pass(recipe, inputs, precise) | (after() if after is not None else {})
            values = torch.stack([value.float() for value in metrics.values()])
    except RuntimeError as error:
        recipe.network.zero_grad(set_to_none=True)
        raise WorkError(f"this network cannot be captured as a CUDA graph ({error}); set graph=false") from error
    parameters = [part for part in recipe.network.parameters() if part.grad is not None]
    return Capture(graph, inputs, parameters, gradients(parameters), tuple(metrics), values)


def peak_memory_gib(device: torch.device) -> float:
    """The most memory of a GPU that was taken. What a graph holds counts as reserved, not as allocated."""
    return torch.cuda.max_memory_reserved(device) / 2**30


def checked(found: Any, recipe: str) -> tuple[Tensor, dict[str, Tensor]]:
    """What `Recipe.loss` gave, refused by what is wrong with it; by shapes alone, so that nothing waits."""
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[1], dict):
        raise InputError(f"{recipe}.loss gives a {type(found).__name__}; return the loss and a dict of metrics")
    if taken := [name for name in found[1] if name in TAKEN]:
        raise InputError(f"{recipe}.loss gives a metric {taken[0]!r}, which the log has already; choose another name")
    for name, value in {"loss": found[0], **found[1]}.items():
        if not isinstance(value, Tensor) or value.ndim:
            what = (
                f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            )
            raise InputError(f"{recipe}.loss gives {what} as {name!r}; return a tensor without axes, such as a mean")
    if not found[0].requires_grad:
        raise InputError(f"{recipe}.loss depends on no parameter; compute it from self.run(...), without detach()")
    return found


def run_pass(recipe: Recipe, inputs: object, precise: Precise, *, weight: float = 1.0) -> dict[str, Tensor]:
    """Forward and backward; the gradient counts by `weight`."""
    with precise():
        loss, metrics = checked(recipe.loss(inputs), type(recipe).__name__)
    (loss * weight if weight != 1.0 else loss).backward()
    return {"loss": loss.detach(), **metrics}


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype}"
