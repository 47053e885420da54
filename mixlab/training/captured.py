"""Forward and backward as one CUDA graph: small networks take longer to launch, kernel by kernel, than to run."""

from __future__ import annotations

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


class CapturedPass:
    """Runs a recipe's passes and leaves gradients on the parameters; from the fourth step on it replays a capture.

    Random numbers follow the seed set before the call, as they do in a plain pass.
    """

    def __init__(self, recipe: Recipe, precise: Precise) -> None:
        self.recipe, self.precise = recipe, precise
        self.steps = 0
        self.graph = torch.cuda.CUDAGraph()
        self.inputs: tuple[Tensor, ...] = ()
        self.parameters: list[nn.Parameter] = []
        self.gradients: list[Tensor] = []  # of the last pass: every replay writes them again
        self.sums: list[Tensor] = []  # over the passes of a step
        self.names: tuple[str, ...] = ()
        self.figures = torch.empty(0)

    def __call__(self, inputs: tuple[Tensor, ...], *, index: int = 0, num_passes: int = 1) -> dict[str, Tensor]:
        """Pass `index` of a step's; the step's gradient is the mean over its passes."""
        self.steps += index == 0
        if self.steps <= WARM_UP:
            return run_pass(self.recipe, inputs, self.precise, weight=1 / num_passes)
        if not self.inputs:
            try:
                self._capture(inputs)
            except RuntimeError as error:
                raise WorkError(
                    f"this network cannot be captured as a CUDA graph ({error}); set graph=false"
                ) from error
        for ours, given in zip(self.inputs, inputs, strict=True):
            ours.copy_(given)
        self.graph.replay()
        for parameter, gradient in zip(self.parameters, self._mean(index, num_passes), strict=True):
            parameter.grad = gradient
        return dict(zip(self.names, self.figures.clone().unbind(), strict=True))

    def _mean(self, index: int, num_passes: int) -> list[Tensor]:
        if num_passes == 1:
            return self.gradients
        if index == 0:
            self.sums = list(torch._foreach_mul(self.gradients, 1 / num_passes))
        else:
            torch._foreach_add_(self.sums, self.gradients, alpha=1 / num_passes)
        return self.sums

    def _capture(self, inputs: tuple[Tensor, ...]) -> None:
        self.inputs = tuple(torch.empty_like(part) for part in inputs)
        self.recipe.network.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # the capture takes memory of its own
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):  # other threads may pin memory meanwhile
            figures = run_pass(self.recipe, self.inputs, self.precise)
            self.figures = torch.stack([value.float() for value in figures.values()])
        self.names = tuple(figures)
        self.parameters = [part for part in self.recipe.network.parameters() if part.grad is not None]
        self.gradients = gradients(self.parameters)


def run_pass(recipe: Recipe, inputs: object, precise: Precise, *, weight: float = 1.0) -> dict[str, Tensor]:
    """Forward and backward; the gradient counts by `weight`."""
    with precise():
        loss, figures = recipe.loss(inputs)
    (loss * weight if weight != 1.0 else loss).backward()
    return {"loss": loss.detach(), **figures}
