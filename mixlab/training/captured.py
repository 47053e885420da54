"""Forward and backward as one CUDA graph: small networks take longer to launch, kernel by kernel, than to run."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mixlab.training.config import Precise, TrainConfig
from mixlab.training.distributed import World
from mixlab.training.recipe import Recipe

WARM_UP = 3  # plain passes first: kernels compile, libraries take their memory


def can_capture(recipe: Recipe, config: TrainConfig, world: World) -> bool:
    """One GPU, one pass a step, and inputs of one shape."""
    alone = world.device.type == "cuda" and world.size == 1 and config.accumulate == 1
    return config.graph and alone and recipe.static and not (config.compile or config.activation_checkpointing)


class CapturedPass:
    """Runs a recipe's pass and leaves gradients on the parameters; replays a capture from the fourth call on.

    Random numbers follow the seed set before the call, as they do in a plain pass.
    """

    def __init__(self, recipe: Recipe, precise: Precise) -> None:
        self.recipe, self.precise = recipe, precise
        self.calls = 0
        self.graph = torch.cuda.CUDAGraph()
        self.inputs: tuple[Tensor, ...] = ()
        self.gradients: list[tuple[nn.Parameter, Tensor]] = []
        self.names: tuple[str, ...] = ()
        self.figures = torch.empty(0)

    def __call__(self, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
        self.calls += 1
        if self.calls <= WARM_UP:
            return run_pass(self.recipe, inputs, self.precise)
        if self.calls == WARM_UP + 1:
            try:
                self._capture(inputs)
            except RuntimeError as error:
                raise RuntimeError(
                    f"this network cannot be captured as a CUDA graph ({error}); set graph=false"
                ) from error
        for ours, given in zip(self.inputs, inputs, strict=True):
            ours.copy_(given)
        self.graph.replay()
        for parameter, gradient in self.gradients:
            parameter.grad = gradient
        return dict(zip(self.names, self.figures.clone().unbind(), strict=True))

    def _capture(self, inputs: tuple[Tensor, ...]) -> None:
        self.inputs = tuple(torch.empty_like(part) for part in inputs)
        self.recipe.network.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):  # other threads may pin memory meanwhile
            figures = run_pass(self.recipe, self.inputs, self.precise)
            self.figures = torch.stack([value.float() for value in figures.values()])
        self.names = tuple(figures)
        trained = self.recipe.network.parameters()
        self.gradients = [(parameter, parameter.grad) for parameter in trained if parameter.grad is not None]


def run_pass(recipe: Recipe, inputs: object, precise: Precise, *, weight: float = 1.0) -> dict[str, Tensor]:
    """Forward and backward; the gradient counts by `weight`."""
    with precise():
        loss, figures = recipe.loss(inputs)
    (loss * weight if weight != 1.0 else loss).backward()
    return {"loss": loss.detach(), **figures}
