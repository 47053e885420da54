"""torch.compile for recipes: one compilation for all layers of a stack."""

from __future__ import annotations

import torch
from timm.layers import DropPath
from torch import Tensor, nn

from mixlab.backbones.block import Layer
from mixlab.training.recipe import Recipe


class TensorDropPath(nn.Module):
    """Stochastic depth whose rate is a tensor: to the compiler, layers that differ only in their rate are one."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.register_buffer("keep", torch.tensor(1.0 - rate), persistent=False)
        self.keep: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        kept = torch.rand(x.shape[0], *[1] * (x.ndim - 1), device=x.device) < self.keep
        return x * (kept / self.keep).to(x.dtype)


def compile_recipe(recipe: Recipe, *, backend: str = "inductor") -> None:
    """Compile each layer of a stack by itself; networks that are no stack as a whole."""
    for module in recipe.modules().values():
        layers = [child for child in module.modules() if isinstance(child, Layer)]
        for layer in layers:
            rate = layer.drop_path.drop_prob if isinstance(layer.drop_path, DropPath) else 0.0
            layer.drop_path = TensorDropPath(rate)
            layer.compile(dynamic=False, backend=backend)
        if not layers and any(True for _ in module.parameters()):
            module.compile(dynamic=False, backend=backend)
