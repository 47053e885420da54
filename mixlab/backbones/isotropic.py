"""ViT, LinearViT, Vim, Mamba-Reg, PlainMamba, LocalVim, GatedConv: one class, different mixers and token layouts."""

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
from mixlab.backbones.block import Add, AddNorm, Layer, NormKind, undecayed
from mixlab.backbones.classifier import IsotropicClassifier
from mixlab.backbones.positions import PositionResize, resize_positions
from mixlab.backbones.tokens import Features, TokenEmbedding, TokenLayout, check_side
from mixlab.errors import InputError
from mixlab.mixers import MIXERS, Grid, MixerConfig, Mixing
from mixlab.mixers.mixer import check_mixer, check_sizes
from mixlab.ops.add_norm.op import Branch, whole
from mixlab.ops.precision import at_least_float32
from mixlab.plugins import is_ours
from mixlab.run.codec import from_json, to_json

wrap("resize_positions")
wrap("whole")
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
    stride: int | None = None  # pixels from one patch to the next, where patches overlap
    image: int = 224
    position_image: int | None = None  # the image size of the position table, where it is not `image`
    position_resize: PositionResize = "dino"
    channels: int = 3
    drop_path: float = 0.0  # of the last layer, rising linearly from 0
    norm_eps: float | None = None  # of the layers' norms, where it is not that of the kind
    layer_scans: tuple[tuple[str, ...], ...] = ()  # the scans of each layer's mixer, from the first on and again
    neck: int = 0  # with spread registers: the summary is all of them side by side, each narrowed by so much
    stem_convs: int = 0  # convolutions behind the first of a stem that halves the image; without, patches are cut
    local_layers: tuple[int, ...] = ()  # layers that end in a depthwise convolution
    rotary: bool = False  # turn the stream by its positions before every layer
    crop_share: float = 0.875  # of each side, that the centre crop of an evaluation keeps

    def __post_init__(self) -> None:
        for field in ("dim", "depth", "patch", "image", "channels"):
            if getattr(self, field) < 1:
                raise InputError(f"{field} must be at least 1, got {getattr(self, field)}")
        check_sizes(self.mixer)
        if self.mlp_ratio < 0:
            raise InputError(f"mlp_ratio must be 0 (no MLP) or above, got {self.mlp_ratio}")
        if not 0 <= self.drop_path < 1:
            raise InputError(f"drop_path is a probability below 1, got {self.drop_path}")
        if self.mixer.is_causal and self.layout.place == "front" and self.layout.class_token:
            raise InputError(
                "a class token in front of a causal mixer sees no patch: the same feature for every image; choose "
                'place="back" (the class token after the patches) or place="none" (the mean of the patches)'
            )
        for size in (self.image, self.position_image or self.image):
            check_side(size, patch=self.patch, stride=self.step)
        if self.neck and (self.layout.place != "spread" or self.dim % self.neck):
            raise InputError(
                f'neck {self.neck} needs place="spread" and a width that it divides, '
                f"got {self.layout.place} and {self.dim}"
            )
        if not 0 <= self.stem_convs <= 64:
            raise InputError(f"stem_convs is 0 (no stem) to 64, got {self.stem_convs}")
        if self.stem_convs and (self.patch % 2 or self.step % 2):
            raise InputError(f"a stem halves the image: patch {self.patch} and stride {self.step} must be even")
        if self.rotary and (self.layout.place != "none" or self.dim % 4):
            raise InputError(f"rotary positions are for patches of a width that 4 divides, got {self.dim} channels")
        if self.layer_scans and not hasattr(self.mixer, "scans"):
            raise InputError(f"a {self.mixer.kind} mixer has no scans; leave layer_scans empty")

    @property
    def step(self) -> int:
        """Pixels from one patch to the next."""
        return self.stride or self.patch

    @property
    def pads(self) -> bool:
        """Whether an image that the patches do not cover is padded with zeros: PlainMamba and LocalVim do so."""
        return bool(self.stem_convs or self.rotary) and self.step == self.patch

    @property
    def pool_size(self) -> None:
        """None, as for timm's transformers: features are tokens, not a map."""
        return None

    @property
    def first_conv(self) -> str:
        return "embed.stem.0" if self.stem_convs else "embed.project"

    @property
    def position_side(self) -> int:
        return ((self.position_image or self.image) - self.patch) // self.step + 1

    def mixer_of(self, layer: int) -> MixerConfig:
        if not self.layer_scans:
            return self.mixer
        return replace(self.mixer, scans=self.layer_scans[layer % len(self.layer_scans)])  # type: ignore[call-arg]


def config_from_json(values: Mapping[str, Any], *, where: str = "config") -> IsotropicConfig:
    """The config in an `Isotropic.architecture()`; fields that are left out take their defaults."""
    return from_json(IsotropicConfig, values, kinds={MixerConfig: MIXERS}, where=where)


class Isotropic(Backbone):
    """Patches and extra tokens through equal layers, then a norm; the summary is what the token layout defines."""

    def __init__(self, config: IsotropicConfig, name: str = "isotropic") -> None:
        super().__init__()
        self.config, self.name = config, name
        self.num_layers, self.channels = config.depth, config.channels
        self.image, self.layout, self.crop_share = config.image, config.layout, config.crop_share
        self.family, self.is_causal = config.mixer.family or config.mixer.kind, config.mixer.is_causal
        self.embed = TokenEmbedding(
            dim=config.dim,
            patch=config.patch,
            stride=config.step,
            channels=config.channels,
            position_side=config.position_side,
            layout=config.layout,
            stem_convs=config.stem_convs,
            pads=config.pads,
            position_resize=config.position_resize,
        )
        rates = [config.drop_path * index / max(config.depth - 1, 1) for index in range(config.depth)]
        self.layers = nn.ModuleList(
            Layer(
                dim=config.dim,
                depth=config.depth,
                mixer=config.mixer_of(index),
                norm=config.norm,
                norm_eps=config.norm_eps,
                mlp_ratio=config.mlp_ratio,
                drop_path=rate,
                local_conv=index in config.local_layers,
            )
            for index, rate in enumerate(rates)
        )
        first = cast(Layer, self.layers[0]).mixer
        if not is_ours(type(first)):
            check_mixer(first, config.dim, config.layout.num_extra)
        self.final_norm: AddNorm | Add = AddNorm(config.dim, config.norm)
        self.rotary = Rotary(config.dim, config.position_side) if config.rotary else None
        self.neck = RegisterNeck(config.dim, config.layout.num_registers, config.neck) if config.neck else None
        self.dim = config.dim if self.neck is None else self.neck.dim

    @property
    def layer_modules(self) -> Sequence[nn.Module]:
        return list(self.layers)

    def forward(self, images: Tensor) -> Tensor:
        tokens, _ = self.tokens(images)
        return self.summary(tokens)

    def summary(self, tokens: Tensor) -> Tensor:
        """The summary (B, D) of a sequence (B, L, D) after the final norm."""
        if self.neck is None:
            return self.layout.summary(tokens)
        return self.neck([tokens[:, row] for row in self.layout.summary_rows(tokens.shape[1] - self.layout.num_extra)])

    def split(self, tokens: Tensor, grid: Grid) -> Features:
        """A sequence (B, L, D) after the final norm, by roles."""
        return replace(self.layout.split(tokens, grid), summary=self.summary(tokens))

    def tokens(self, images: Tensor) -> tuple[Tensor, Grid]:
        """All tokens after the final norm (B, L, D), and the grid of the patches among them."""
        branch, stream, grid = self.start(images)
        for layer in self.layers:
            branch, stream = layer(*self.turned(branch, stream, grid), grid)
        return self.final_norm(branch, stream)[1], grid

    def features(
        self, images: Tensor, layers: Layers = 1, source: FeatureSource = "stream", *, norm: bool = True
    ) -> Iterator[tuple[int, Features]]:
        check_source(source)
        wanted = chosen_layers(layers, self.num_layers)
        last, split = (self.final_norm, self.split) if norm else (Add(), self.layout.split)
        branch, stream, grid = self.start(images)
        for index, layer in self._first(wanted[-1] + 1):
            branch, stream = self.turned(branch, stream, grid)
            if source == "branch":
                mixed, stream = layer.mix(branch, stream, grid)
                branch, stream = layer.feed(mixed, stream, grid)
                chosen = last.normalise(whole(mixed)) if index in wanted else None
            else:  # as a whole: checkpointed, compiled and sharded layers are whole modules
                branch, stream = layer(branch, stream, grid)
                chosen = last(branch, stream)[1] if index in wanted else None
            if chosen is not None:
                yield index, split(chosen, grid)

    def mixings(self, images: Tensor, layers: Layers = None) -> Iterator[tuple[int, Mixing]]:
        for index, found in self.features_and_mixings(images, features=[], mixings=layers):
            yield index, cast("Mixing", found)

    def features_and_mixings(
        self, images: Tensor, *, features: Layers, mixings: Layers
    ) -> Iterator[tuple[int, Features | Mixing]]:
        featured, mixed = (chosen_layers(layers, self.num_layers) for layers in (features, mixings))
        last = max(featured + mixed, default=-1)
        branch, stream, grid = self.start(images)
        for index, layer in self._first(last + 1):
            branch, stream = self.turned(branch, stream, grid)
            mixing = layer.mixing(branch, stream, grid) if index in mixed else None
            if index < last or index in featured:
                branch, stream = layer(branch, stream, grid)
            if index in featured:
                yield index, self.split(self.final_norm(branch, stream)[1], grid)
            if mixing is not None:
                yield index, mixing

    def architecture(self) -> Architecture:
        return {"name": self.name, "config": to_json(self.config)}

    def fresh(self) -> "Isotropic":
        return Isotropic(self.config, name=self.name)

    def layer_shapes(self) -> list[LayerShape]:
        return [LayerShape(self.config.dim, self.config.step)] * self.num_layers

    def with_classifier(self, num_classes: int) -> IsotropicClassifier:
        """A linear classifier on the summary; the backbone in it is this one, not a copy."""
        return IsotropicClassifier(self, num_classes)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        for _, layer in self._first(self.num_layers):
            layer.grad_checkpointing = enable

    def set_input_size(self, image: int | None = None, patch: int | None = None) -> None:
        """Make it for another image side or patch size: positions and patch projection are resampled."""
        image, patch = image or self.config.image, patch or self.config.patch
        config = replace(self.config, image=image, patch=patch, position_image=None)
        self.embed.resize(config.position_side, patch)
        if self.rotary is not None:
            self.rotary.resize(config.position_side)
        self.config, self.image = config, image

    def keep_layers(self, depth: int, *, norm: bool = True) -> None:
        """Remove the layers after the first `depth` and, with `norm=False`, the final norm."""
        self.config, self.num_layers = replace(self.config, depth=depth), depth
        self.layers = self.layers[:depth]
        if not norm:
            self.final_norm = Add()

    def no_weight_decay(self) -> set[str]:
        """Vectors, tokens, positions, and what a mixer stacks over its directions: A_log, skip, biases and norms."""
        return undecayed(self) | self.token_names()

    def token_names(self) -> set[str]:
        learned = ("embed.tokens", "embed.token_positions", "embed.positions.table")
        return {name for name, _ in self.named_parameters() if name in learned}

    def turned(self, branch: Branch, stream: Tensor, grid: Grid) -> tuple[Branch, Tensor]:
        """What a layer is given: branch and stream, turned by their positions in a rotary backbone."""
        if self.rotary is None:
            return branch, stream
        branch = whole(branch)
        return torch.zeros_like(branch), self.rotary(branch + stream, grid)

    def _first(self, depth: int) -> Iterator[tuple[int, Layer]]:
        return enumerate(cast("Iterable[Layer]", self.layers[:depth]))

    def start(self, images: Tensor) -> tuple[Branch, Tensor, Grid]:
        """An empty branch beside the embedded tokens, which begin the stream."""
        tokens, grid = self.embed(images)
        return torch.zeros_like(tokens), at_least_float32(tokens), grid


class RegisterNeck(nn.Module):
    """All registers side by side, narrowed by a projection that they share, then a norm (Mamba-Reg)."""

    def __init__(self, dim: int, num_registers: int, reduce: int) -> None:
        super().__init__()
        self.dim = num_registers * dim // reduce
        self.project = nn.Linear(dim, dim // reduce, bias=False) if reduce > 1 else None
        self.norm = nn.RMSNorm(self.dim, eps=1e-5) if reduce > 1 else None
        if self.project is not None:
            nn.init.trunc_normal_(self.project.weight, std=0.02)

    def forward(self, registers: Sequence[Tensor]) -> Tensor:
        """(B, D) each -> (B, n D / reduce)."""
        if self.project is None or self.norm is None:
            return torch.cat(list(registers), dim=-1)
        return self.norm(torch.cat([self.project(register) for register in registers], dim=-1))


class Rotary(nn.Module):
    """Turns pairs of channels by angles that grow with the row (first half) and the column (second half) of a patch."""

    cos: Tensor
    sin: Tensor

    def __init__(self, dim: int, side: int, trained_side: int = 14) -> None:
        super().__init__()
        self.side = side
        frequencies = 10_000 ** (-4 * torch.arange(dim // 4) / dim)
        angles = torch.arange(side) * trained_side / side * frequencies[:, None]  # (D / 4, side)
        rows = angles.mT.repeat_interleave(2, dim=-1)  # (side, D / 2)
        turns = torch.cat(
            [rows[:, None].expand(-1, side, -1), rows[None].expand(side, -1, -1)], dim=-1
        )  # (side, side, D)
        self.register_buffer("cos", turns.cos().flatten(0, 1))
        self.register_buffer("sin", turns.sin().flatten(0, 1))

    def resize(self, side: int) -> None:
        """Keep the turns of another square grid instead."""
        tables = (resize_positions(t[None], self.side, (side, side), "exact")[0] for t in (self.cos, self.sin))
        self.cos, self.sin = tables
        self.side = side

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        cos, sin = (resize_positions(t[None], self.side, grid, "exact") for t in (self.cos, self.sin))
        first, second = tokens.unflatten(-1, (-1, 2)).unbind(-1)
        return tokens * cos + torch.stack([-second, first], dim=-1).flatten(-2) * sin
