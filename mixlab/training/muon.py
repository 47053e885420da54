"""Muon (Jordan et al. 2024): momentum whose matrices are made orthogonal, so that all directions learn at one pace.

For linear layers between the first and the last (`Recipe.muon_weights`); everything else has AdamW. Updates have the
root mean square of AdamW's (Liu et al. 2025), so both share a learning rate and a weight decay. torch's own takes one
matrix at a time, and whole ones alone; here those of one shape go together, and ranks with shards gather each for a
moment. It is the slow twin of the tests.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from mixlab.training.sharded import local, part_of, whole_from

MOMENTUM = 0.95  # with Nesterov's look ahead
ITERATIONS = 5
# x <- a x + b x^3 + c x^5: from 0 to 1 the steepest at 0 of those that stay near 1 (Jordan et al.)
QUINTIC = (3.4445, -4.7750, 2.0315)
ADAMW_RMS = 0.2  # of an update of AdamW, over the learning rate


class Muon(AdamW):
    """AdamW, but for the groups with `muon`."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        every = self.param_groups
        self.param_groups = [group for group in every if not group["muon"]]
        try:
            loss = super().step(closure)
        finally:
            self.param_groups = every
        for group in every:
            if group["muon"]:
                self._step_matrices(group)
        return loss

    def _step_matrices(self, group: dict[str, Any]) -> None:
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        if not parameters:
            return
        weights = [local(parameter) for parameter in parameters]
        gradients = [local(parameter.grad) for parameter in parameters]
        momenta = [local(self._momentum(parameter)) for parameter in parameters]
        torch._foreach_mul_(momenta, MOMENTUM)
        torch._foreach_add_(momenta, gradients)
        ahead = torch._foreach_add(gradients, momenta, alpha=MOMENTUM)
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        by_shape = defaultdict(list)
        for index, parameter in enumerate(parameters):
            by_shape[parameter.shape].append(index)
        for shape, indexes in by_shape.items():
            updates = orthogonal(torch.stack([whole_from(ahead[index], parameters[index]) for index in indexes]))
            updates = updates.to(weights[indexes[0]].dtype)
            own = [part_of(update, parameters[index]) for index, update in zip(indexes, updates, strict=True)]
            rate = group["lr"] * ADAMW_RMS * max(shape) ** 0.5
            torch._foreach_add_([weights[index] for index in indexes], own, alpha=-rate)

    def _momentum(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        found: Tensor = state["momentum"]
        return found


def orthogonal(matrices: Tensor) -> Tensor:
    """U V^T of each U S V^T (n, rows, columns), roughly: singular values end between 0.7 and 1.2.

    By a polynomial in the matrix, in products alone: bfloat16 is enough for it on a GPU.
    """
    x = matrices.to(torch.bfloat16 if matrices.is_cuda else matrices.dtype)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    a, b, c = QUINTIC
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def linear_weights(network: nn.Module, inside: type[nn.Module]) -> set[str]:
    """Names of the weights of linear layers that lie inside modules of a kind."""
    return {
        ".".join(part for part in (start, name, "weight") if part)
        for start, outer in network.named_modules()
        if isinstance(outer, inside)
        for name, module in outer.named_modules()
        if isinstance(module, nn.Linear)
    }
