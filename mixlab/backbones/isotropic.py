"""ViT, LinearViT, Vim, Mamba-Reg and GatedConv: one class with different mixers and token layouts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.fx import wrap

from mixlab.backbones.backbone import (
    Architecture,
    Backbone,
    FeatureSource,
    Layers,
    LayerShape,
    check_source,
    chosen_layers,
)
from mixlab.backbones.block import Add, AddNorm, Layer, NormKind
from mixlab.backbones.classifier import IsotropicClassifier
from mixlab.backbones.tokens import Features, TokenEmbedding, TokenLayout
from mixlab.errors import InputError
from mixlab.mixers import MIXERS, Grid, MixerConfig, Mixing
from mixlab.ops.precision import at_least_float32
from mixlab.run.codec import from_json, to_json

wrap("at_least_float32")  # one step to torch.fx, which does not know dtypes while it traces


@dataclass(frozen=True, kw_only=True)
class IsotropicConfig:
    """A stack of equal layers on patches of one size."""

    dim: int
    depth: int
    mixer: MixerConfig
    layout: TokenLayout
    norm: NormKind
    mlp_ratio: float = 0.0
    patch: int = 16
    image: int = 224
    position_image: int | None = None  # the image size of the position table, where it is not `image`
    channels: int = 3
    drop_path: float = 0.0  # of the last layer, rising linearly from 0

    def __post_init__(self) -> None:
        for field in ("dim", "depth", "patch", "image", "channels"):
            if getattr(self, field) < 1:
                raise InputError(f"{field} must be at least 1, got {getattr(self, field)}")
        if not 0 <= self.drop_path < 1:
            raise InputError(f"drop_path is a probability below 1, got {self.drop_path}")
        if self.mixer.is_causal and self.layout.place == "front" and self.layout.class_token:
            raise InputError(
                "a class token in front of a causal mixer sees no patch: the same feature for every image; choose "
                'place="back" (the class token after the patches) or place="none" (the mean of the patches)'
            )
        for size in (self.image, self.position_image or self.image):
            if size % self.patch:
                near = max(size // self.patch, 1) * self.patch
                raise InputError(f"{size}px is not a multiple of patch {self.patch}; try {near}")


def config_from_json(values: Mapping[str, Any]) -> IsotropicConfig:
    """The config in an `Isotropic.architecture()`; fields that are left out take their defaults."""
    return from_json(IsotropicConfig, values, kinds={MixerConfig: MIXERS})


class Isotropic(Backbone):
    """Patches and extra tokens through equal layers, then a norm; the summary is what the token layout defines."""

    def __init__(self, config: IsotropicConfig, name: str = "isotropic") -> None:
        super().__init__()
        self.config, self.name = config, name
        self.dim, self.num_layers, self.channels = config.dim, config.depth, config.channels
        self.image, self.layout = config.image, config.layout
        self.family, self.is_causal = config.mixer.kind, config.mixer.is_causal
        self.embed = TokenEmbedding(
            dim=config.dim,
            patch=config.patch,
            channels=config.channels,
            position_image=config.position_image or config.image,
            layout=config.layout,
        )
        rates = [config.drop_path * index / max(config.depth - 1, 1) for index in range(config.depth)]
        self.layers = nn.ModuleList(
            Layer(
                dim=config.dim,
                depth=config.depth,
                mixer=config.mixer,
                norm=config.norm,
                mlp_ratio=config.mlp_ratio,
                drop_path=rate,
            )
            for rate in rates
        )
        self.final_norm: AddNorm | Add = AddNorm(config.dim, config.norm)

    @property
    def blocks(self) -> Sequence[nn.Module]:
        return list(self.layers)

    def forward(self, images: Tensor) -> Tensor:
        tokens, _ = self.tokens(images)
        return self.layout.summary(tokens)

    def tokens(self, images: Tensor) -> tuple[Tensor, Grid]:
        """All tokens after the final norm (B, L, D), and the grid of the patches among them."""
        branch, stream, grid = self.start(images)
        for layer in self.layers:
            branch, stream = layer(branch, stream, grid)
        return self.final_norm(branch, stream)[1], grid

    def features(
        self, images: Tensor, layers: Layers = 1, source: FeatureSource = "stream"
    ) -> Iterator[tuple[int, Features]]:
        check_source(source)
        wanted = chosen_layers(layers, self.num_layers)
        branch, stream, grid = self.start(images)
        for index, layer in self._first(wanted[-1] + 1):
            if source == "branch":
                mixed, stream = layer.mix(branch, stream, grid)
                branch, stream = layer.feed(mixed, stream)
                chosen = self.final_norm.normalise(mixed) if index in wanted else None
            else:  # as a whole: checkpointed, compiled and sharded layers are whole modules
                branch, stream = layer(branch, stream, grid)
                chosen = self.final_norm(branch, stream)[1] if index in wanted else None
            if chosen is not None:
                yield index, self.layout.split(chosen, grid)

    def mixings(self, images: Tensor, layers: Layers = None) -> Iterator[tuple[int, Mixing]]:
        wanted = chosen_layers(layers, self.num_layers)
        branch, stream, grid = self.start(images)
        for index, layer in self._first(wanted[-1] + 1):
            if index in wanted:
                yield index, layer.mixing(branch, stream, grid)
            branch, stream = layer(branch, stream, grid)

    def architecture(self) -> Architecture:
        return {"name": self.name, "config": to_json(self.config)}

    def fresh(self) -> "Isotropic":
        return Isotropic(self.config, name=self.name)

    def layer_shapes(self) -> list[LayerShape]:
        return [LayerShape(self.dim, self.config.patch)] * self.num_layers

    def with_classifier(self, num_classes: int) -> IsotropicClassifier:
        """A linear classifier on the summary; the backbone in it is this one, not a copy."""
        return IsotropicClassifier(self, num_classes)

    def name_in_classifier(self, name: str) -> str:
        return f"backbone.{name}"

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        for _, layer in self._first(self.num_layers):
            layer.grad_checkpointing = enable

    def set_input_size(self, image: int | None = None, patch: int | None = None) -> None:
        """Make it for another image side or patch size: positions and patch projection are resampled."""
        image, patch = image or self.config.image, patch or self.config.patch
        self.config = replace(self.config, image=image, patch=patch, position_image=None)
        self.image = image
        self.embed.resize(image // patch, patch)

    def keep_layers(self, depth: int, *, norm: bool = True) -> None:
        """Remove the layers after the first `depth` and, with `norm=False`, the final norm."""
        self.config, self.num_layers = replace(self.config, depth=depth), depth
        self.layers = self.layers[:depth]
        if not norm:
            self.final_norm = Add()

    def no_weight_decay(self) -> set[str]:
        """Vectors, tokens, positions, and what a mixer stacks over its directions: A_log, skip, biases and norms."""
        stacked = ("A_log", "skip", "dt_bias", "conv_bias", "norm_weight")
        return super().no_weight_decay() | self._named(stacked) | self.token_names()

    def token_names(self) -> set[str]:
        return self._named(("embed.tokens", "embed.token_positions", "embed.positions.table"))

    def _named(self, endings: tuple[str, ...]) -> set[str]:
        return {name for name, _ in self.named_parameters() if name.endswith(endings)}

    def _first(self, depth: int) -> Iterator[tuple[int, Layer]]:
        return enumerate(cast("Iterable[Layer]", self.layers[:depth]))

    def start(self, images: Tensor) -> tuple[Tensor, Tensor, Grid]:
        """An empty branch beside the embedded tokens, which begin the stream."""
        tokens, grid = self.embed(images)
        return torch.zeros_like(tokens), at_least_float32(tokens), grid
