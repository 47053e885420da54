"""Forward and backward as one CUDA graph: small networks take longer to launch, kernel by kernel, than to run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mixlab.errors import WorkError
from mixlab.training.config import TrainConfig
from mixlab.training.distributed import World
from mixlab.training.optim import gradients
from mixlab.training.precision import Precise
from mixlab.training.recipe import Recipe

WARM_UP = 3  # plain steps first: kernels compile, libraries take their memory


def can_capture(recipe: Recipe, config: TrainConfig, world: World) -> bool:
    """One GPU, and inputs of one shape."""
    alone = world.device.type == "cuda" and world.size == 1
    return config.graph and alone and recipe.static and not (config.compile or config.activation_checkpointing)


@dataclass(frozen=True)
class Capture:
    """One pass as a graph: a replay reads `inputs` and writes `gradients` and `figures`, in place."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    parameters: list[nn.Parameter]
    gradients: list[Tensor]
    names: tuple[str, ...]
    figures: Tensor

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

    Random numbers follow the seed set before the call, as they do in a plain pass.
    """

    def __init__(self, recipe: Recipe, precise: Precise) -> None:
        self.recipe, self.precise = recipe, precise
        self.steps = 0
        self.capture: Capture | None = None
        self.sums: list[Tensor] = []  # of gradients over the passes of a step

    def __call__(self, inputs: tuple[Tensor, ...], *, index: int = 0, num_passes: int = 1) -> dict[str, Tensor]:
        """Pass `index` of a step's; the step's gradient is the mean over its passes."""
        self.steps += index == 0
        if self.steps <= WARM_UP:
            return run_pass(self.recipe, inputs, self.precise, weight=1 / num_passes)
        if self.capture is None:
            self.capture = capture_pass(self.recipe, inputs, self.precise)
        self.capture.replay(inputs)
        gradients = self._mean(self.capture.gradients, index, num_passes)
        for parameter, gradient in zip(self.capture.parameters, gradients, strict=True):
            parameter.grad = gradient
        return dict(zip(self.capture.names, self.capture.figures.clone().unbind(), strict=True))

    def _mean(self, gradients: list[Tensor], index: int, num_passes: int) -> list[Tensor]:
        if num_passes == 1:
            return gradients
        if index == 0:
            self.sums = list(torch._foreach_mul(gradients, 1 / num_passes))
        else:
            torch._foreach_add_(self.sums, gradients, alpha=1 / num_passes)
        return self.sums


def capture_pass(recipe: Recipe, inputs: tuple[Tensor, ...], precise: Precise) -> Capture:
    """Record forward and backward for inputs of these shapes; nothing has run yet when it returns."""
    graph, inputs = torch.cuda.CUDAGraph(), tuple(torch.empty_like(part) for part in inputs)
    recipe.network.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # the capture takes memory of its own
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may pin memory meanwhile
            figures = run_pass(recipe, inputs, precise)
            values = torch.stack([value.float() for value in figures.values()])
    except RuntimeError as error:
        recipe.network.zero_grad(set_to_none=True)
        raise WorkError(f"this network cannot be captured as a CUDA graph ({error}); set graph=false") from error
    parameters = [part for part in recipe.network.parameters() if part.grad is not None]
    return Capture(graph, inputs, parameters, gradients(parameters), tuple(figures), values)


def run_pass(recipe: Recipe, inputs: object, precise: Precise, *, weight: float = 1.0) -> dict[str, Tensor]:
    """Forward and backward; the gradient counts by `weight`."""
    with precise():
        loss, figures = recipe.loss(inputs)
    (loss * weight if weight != 1.0 else loss).backward()
    return {"loss": loss.detach(), **figures}


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype}"
