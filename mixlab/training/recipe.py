"""The contract between the training loop and a method; and torch.compile for recipes."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from timm.layers import DropPath
from torch import Tensor, nn

from mixlab.backbones.backbone import Backbone
from mixlab.backbones.block import Layer
from mixlab.data.crops import IMAGENET_MEAN, IMAGENET_STD
from mixlab.training.muon import linear_weights


def seed_for(*parts: int) -> int:
    """One 63-bit seed from whole numbers such as (seed, step); other numbers, other seed. But zeros at the end do not
    count: (seed, step) is (seed, step, 0)."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0]) >> 1


def seed_all(*parts: int) -> None:
    """Seed the generators of torch (every device), NumPy and Python."""
    seed = seed_for(*parts)
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)  # `manual_seed` writes down the stack for each absent kind of device
    np.random.seed(seed % 2**32)  # noqa: NPY002  the global generator, for libraries that draw from it
    random.seed(seed)


@dataclass(frozen=True)
class BatchPart:
    """Part `index` of the global batch of a step: each pass of each rank holds one."""

    step: int
    epoch: int
    index: int = 0
    num_parts: int = 1
    seed: int = 0

    def generator(self) -> torch.Generator:
        """The same on every part: draw for the global batch and keep this part's `rows`."""
        return torch.Generator().manual_seed(seed_for(self.seed, self.step))

    def rows(self, num_images: int) -> slice:
        """Those of this part's images in what was drawn for the global batch."""
        return slice(self.index * num_images, (self.index + 1) * num_images)


class Recipe(ABC):
    """A network to train, and how. Nothing here waits for the device."""

    network: nn.Module  # what the optimiser changes
    run: nn.Module  # the same, perhaps wrapped for many devices: what `loss` calls
    exchange: Callable[[], None] | None = None  # averages gradients of ranks after a step's passes, if `run` does not
    static: bool = False  # `loss` sees tensors of the same shapes at every step and decides nothing by their values
    shared: str = ""  # what `loss` exchanges with other ranks, in words: such a pass is no CUDA graph
    head_name: str = "classifier"  # the file of `exported_head`

    def prepare(self, batch: Any, part: BatchPart) -> Any:
        """What `loss` needs of a batch, which the method's loader gave and which is on the device: all choices are made
        here, on the host. A static recipe returns a tuple of tensors."""
        return batch

    @abstractmethod
    def loss(self, inputs: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean loss over this part's samples, and metrics to log (scalars, still on the device)."""

    @abstractmethod
    def exported(self) -> Backbone:
        """The backbone that the run is for."""

    @abstractmethod
    def modules(self) -> dict[str, nn.Module]:
        """Every module with state, by its name in checkpoints; `network` among them."""

    def before_update(self, part: BatchPart) -> None:
        """Between the backward pass and the optimiser; nothing unless a recipe has something to do there."""
        return

    def after_update(self, part: BatchPart) -> dict[str, Tensor]:
        """After the optimiser: moving averages. Returns more metrics to log."""
        return {}

    def no_weight_decay(self) -> set[str]:
        """Names of parameters of `network` that do not decay, beside vectors."""
        return set()

    def muon_weights(self) -> set[str]:
        """Names of the matrices that Muon trains, where `optim.name` says so: never the first or the last layer."""
        return linear_weights(self.network, inside=Backbone)

    def lr_shares(self) -> dict[str, float]:
        """Beginnings of names of parameters of `network` that learn at a share of the learning rate."""
        return {}

    def shard(self, shard: Callable[[nn.Module], None]) -> None:
        """Shard the parameters of every large module across the ranks."""
        for module in self.modules().values():
            shard(module)

    def exported_head(self) -> dict[str, Tensor]:
        """What stands on the backbone and is worth keeping, such as a classifier."""
        return {}


def drop_empty(network: nn.Module) -> None:
    """Parameters without elements get no gradient, which distributed training would wait for."""
    for parameter in network.parameters():
        if parameter.numel() == 0:
            parameter.requires_grad_(False)


def to_pixels_of(backbone: Backbone, images: Tensor) -> Tensor:
    """Images (..., 3, H, W) normalised as ImageNet's, in the pixel scale that the backbone declares."""
    if (backbone.pixel_mean, backbone.pixel_std) == (IMAGENET_MEAN, IMAGENET_STD):
        return images
    ours, theirs = (
        [torch.tensor(part, dtype=images.dtype).to(images.device, non_blocking=True)[:, None, None] for part in scale]
        for scale in ((IMAGENET_MEAN, IMAGENET_STD), (backbone.pixel_mean, backbone.pixel_std))
    )
    return (images * ours[1] + ours[0] - theirs[0]) / theirs[1]


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
    """Compile each layer of a stack separately; other networks as a whole."""
    for module in recipe.modules().values():
        layers = [child for child in module.modules() if isinstance(child, Layer)]
        for layer in layers:
            rate = layer.drop_path.drop_prob if isinstance(layer.drop_path, DropPath) else 0.0
            layer.drop_path = TensorDropPath(rate)
            layer.compile(dynamic=False, backend=backend)
        if not layers and any(True for _ in module.parameters()):
            module.compile(dynamic=False, backend=backend)
