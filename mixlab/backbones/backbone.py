"""What training, evaluation and analysis rely on, whoever wrote the backbone."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Literal, get_args

from torch import Tensor, nn

from mixlab.backbones.hub import HubMixin
from mixlab.backbones.tokens import Features, TokenLayout
from mixlab.errors import InputError
from mixlab.mixers import Mixing

Source = Literal["stream", "branch"]
Layers = int | Sequence[int] | None


class Backbone(HubMixin, nn.Module, ABC):
    """Images in, a summary feature out; and lazily, layer by layer, what happens between."""

    name: str
    dim: int  # D, the width of the summary
    num_layers: int
    channels: int
    layout: TokenLayout
    pixel_mean: tuple[float, ...] = (0.485, 0.456, 0.406)  # ImageNet's, in [0, 1]
    pixel_std: tuple[float, ...] = (0.229, 0.224, 0.225)

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Images (B, 3, H, W) -> summary features (B, D)."""

    @abstractmethod
    def features(self, images: Tensor, layers: Layers = 1, source: Source = "stream") -> Iterator[tuple[int, Features]]:
        """Yield (layer, features) for the last `layers` (a number), for those listed, or for all (None).

        `stream`: the residual stream after the layer; `branch`: the mixer's output alone. Both after the final norm.
        """

    @abstractmethod
    def mixings(self, images: Tensor, layers: Layers = None) -> Iterator[tuple[int, Mixing]]:
        """Yield (layer, mixing), one layer in memory at a time."""

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that are not decayed: all vectors, and whatever a backbone adds."""
        return {name for name, parameter in self.named_parameters() if parameter.ndim < 2}


def chosen_layers(layers: Layers, depth: int) -> list[int]:
    """Resolve a choice of layers to rising indices; negative ones count from the end."""
    if layers is None:
        return list(range(depth))
    if isinstance(layers, int):
        if not 1 <= layers <= depth:
            raise InputError(f"cannot take the last {layers} of {depth} layers; choose 1 to {depth}")
        return list(range(depth - layers, depth))
    for index in layers:
        if not -depth <= index < depth:
            raise InputError(f"there is no layer {index} among {depth}; choose {-depth} to {depth - 1}")
    return sorted({index % depth for index in layers})


def check_source(source: str) -> None:
    if source not in get_args(Source):
        raise InputError(f"unknown source {source!r} of features; choose one of {', '.join(get_args(Source))}")
