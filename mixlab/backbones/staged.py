"""Backbones in stages: VMamba and its descendants, Mamba-2D, and MambaOut's shape with any mixer in its blocks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

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
from mixlab.backbones.block import undecayed
from mixlab.backbones.staged_classifier import StagedClassifier
from mixlab.backbones.stages import Block, ConvDown, OverlapStem, PatchMerge, PatchStem, PositionStem, Stage
from mixlab.backbones.tokens import Features, TokenLayout, check_images
from mixlab.errors import InputError
from mixlab.mixers import MIXERS, Grid, MixerConfig, Mixing
from mixlab.mixers.mixer import check_sizes
from mixlab.run.codec import from_json, to_json

wrap("check_images")
STEMS = ("patch", "overlap", "positions")
POSITIONS = "stem.positions.table"
OVERLAP_STRIDE = 4  # of a stem of two convolutions that halve the image
DOWNS = {"merge": PatchMerge, "conv": ConvDown}


@dataclass(frozen=True, kw_only=True)
class StagedConfig:
    """Stages of blocks; from one to the next, the grid is halved. The first has a stride of `stem_stride` pixels."""

    dims: tuple[int, ...]
    depths: tuple[int, ...]
    late_mixer: MixerConfig | None = None  # of the last `late_stages`, where it is not `mixer`
    late_stages: int = 2
    mixer: MixerConfig
    scans: tuple[tuple[str, ...], ...] = ()  # of each block's mixer, from the first block on and again
    stem: Literal["patch", "overlap", "positions"] = "overlap"
    stem_stride: int = OVERLAP_STRIDE
    down: Literal["merge", "conv"] = "conv"
    mlp_ratio: float = 0.0
    norm_eps: float = 1e-5
    normed_stream: bool = False  # blocks add to the norm of their input, not to the input
    final_norm_eps: float | None = None  # where it is not `norm_eps`
    pool_first: bool = False  # average, then the final norm, instead of the norm first
    summary_norm: bool = False  # one more norm, of the average
    image: int = 224
    channels: int = 3
    drop_path: float = 0.0  # of the last block, rising linearly from 0

    def __post_init__(self) -> None:
        if not self.dims or len(self.dims) != len(self.depths):
            raise InputError(f"dims {self.dims} and depths {self.depths} must have one entry for each stage")
        sizes = {
            "dims": min(self.dims),
            "depths": min(self.depths),
            "image": self.image,
            "stem_stride": self.stem_stride,
        }
        for name, value in sizes.items():
            if value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")
        for mixer in filter(None, (self.mixer, self.late_mixer)):
            check_sizes(mixer)
        if not 0 <= self.drop_path < 1:
            raise InputError(f"drop_path is a probability below 1, got {self.drop_path}")
        for name, chosen, known in (("stem", self.stem, STEMS), ("down", self.down, DOWNS)):
            if chosen not in known:
                raise InputError(f"unknown {name} {chosen!r}; choose one of {', '.join(known)}")
        if self.stem == "overlap" and self.stem_stride != OVERLAP_STRIDE:
            raise InputError(f"stem_stride {self.stem_stride}: a stem of kind overlap has {OVERLAP_STRIDE}; use patch")
        if self.scans and not hasattr(self.mixer, "scans"):
            raise InputError(f"a {self.mixer.kind} mixer has no scans; leave scans empty")

    @property
    def dim(self) -> int:
        """The width of the last stage."""
        return self.dims[-1]

    @property
    def depth(self) -> int:
        return sum(self.depths)

    @property
    def crop_share(self) -> float:
        return Backbone.crop_share

    @property
    def final_eps(self) -> float:
        return self.final_norm_eps or self.norm_eps

    @property
    def position_side(self) -> int:
        """Of a table of positions: the grid of the first stage."""
        return -(-self.image // self.stem_stride)

    @property
    def pool_size(self) -> tuple[int, int]:
        """The grid of the last stage."""
        side = -(-self.position_side // 2 ** (len(self.dims) - 1))
        return side, side

    @property
    def first_conv(self) -> str:
        return "stem.first" if self.stem == "overlap" else "stem.project"

    def mixer_of(self, stage: int, block: int) -> MixerConfig:
        """The mixer of a block, counted over all stages."""
        if self.late_mixer is not None and stage >= len(self.dims) - self.late_stages:
            return self.late_mixer
        if not self.scans:
            return self.mixer
        return replace(self.mixer, scans=self.scans[block % len(self.scans)])  # type: ignore[call-arg]


# MambaOut's dims and depths, as released
_MAMBAOUT = {
    "femto": ((48, 96, 192, 288), (3, 3, 9, 3)),
    "kobe": ((48, 96, 192, 288), (3, 3, 15, 3)),
    "tiny": ((96, 192, 384, 576), (3, 3, 9, 3)),
    "small": ((96, 192, 384, 576), (3, 4, 27, 3)),
    "base": ((128, 256, 512, 768), (3, 4, 27, 3)),
}


def mambaout_shape(size: str, mixer: MixerConfig) -> StagedConfig:
    """A MambaOut with any mixer in its blocks: `Staged(mambaout_shape("tiny", Mamba2Config()))`."""
    if size not in _MAMBAOUT:
        raise InputError(f"MambaOut has no size {size!r}; choose one of {', '.join(_MAMBAOUT)}")
    dims, depths = _MAMBAOUT[size]
    return StagedConfig(dims=dims, depths=depths, mixer=mixer, norm_eps=1e-6, pool_first=True)


def staged_from_json(values: Mapping[str, Any], *, where: str = "config") -> StagedConfig:
    """The config in a `Staged.architecture()`; fields that are left out take their defaults."""
    return from_json(StagedConfig, values, kinds={MixerConfig: MIXERS}, where=where)


class Staged(Backbone):
    """Layers are the blocks of all stages, in order. Features of the last stage are normalised by the final norm, which
    is made for it alone; those of the others are the stream as it is. The summary is the mean over the grid."""

    def __init__(self, config: StagedConfig, name: str = "staged") -> None:
        super().__init__()
        self.config, self.name = config, name
        self.dim, self.num_layers, self.channels, self.image = config.dim, config.depth, config.channels, config.image
        self.layout = TokenLayout(place="none")
        self.family = config.mixer.family or config.mixer.kind
        self.stem = _stem(config)
        self.stages = nn.ModuleList(_stage(config, number) for number in range(len(config.dims)))
        self.final_norm: nn.Module = nn.LayerNorm(config.dim, config.final_eps)
        self.summary_norm = nn.LayerNorm(config.dim, config.final_eps) if config.summary_norm else nn.Identity()

    @property
    def layer_modules(self) -> Sequence[nn.Module]:
        return [block for stage in self.stages for block in stage.blocks]  # type: ignore[union-attr]

    def forward(self, images: Tensor) -> Tensor:
        return self.summary(self.tokens(images)[0])

    def tokens(self, images: Tensor) -> tuple[Tensor, Grid]:
        """The last stage (B, L, D) as it is averaged, and its grid."""
        x, grid = self.start(images)
        for stage in self.stages:
            x, grid = stage(x, grid)
        return x if self.config.pool_first else self.final_norm(x), grid

    def summary(self, tokens: Tensor) -> Tensor:
        """The summary (B, D) of the last stage."""
        pooled = tokens.mean(1)
        return self.summary_norm(self.final_norm(pooled) if self.config.pool_first else pooled)

    def features(
        self, images: Tensor, layers: Layers = 1, source: FeatureSource = "stream", *, norm: bool = True
    ) -> Iterator[tuple[int, Features]]:
        check_source(source)
        wanted = chosen_layers(layers, self.num_layers)
        x, grid = self.start(images)
        for index, (stage, block) in enumerate(self._first(wanted[-1] + 1)):
            if block is stage.blocks[0]:
                x, grid = stage.enter(x, grid)
            if source == "branch":
                chosen, x = block.mix(x, grid)
                x = block.feed(x + chosen)
            else:  # as a whole: checkpointed, compiled and sharded blocks are whole modules
                x = chosen = block(x, grid)
            if index in wanted:
                yield index, self._split(chosen, grid, norm=norm and stage is self.stages[-1])

    def mixings(self, images: Tensor, layers: Layers = None) -> Iterator[tuple[int, Mixing]]:
        wanted = chosen_layers(layers, self.num_layers)
        x, grid = self.start(images)
        for index, (stage, block) in enumerate(self._first(wanted[-1] + 1)):
            if block is stage.blocks[0]:
                x, grid = stage.enter(x, grid)
            if index in wanted:
                yield index, block.mixing(x, grid)
            x = block(x, grid)

    def architecture(self) -> Architecture:
        return {"name": self.name, "config": to_json(self.config)}

    def fresh(self) -> "Staged":
        return Staged(self.config, name=self.name)

    def layer_shapes(self) -> list[LayerShape]:
        return [
            LayerShape(dim, self.config.stem_stride * 2**number)
            for number, (dim, depth) in enumerate(zip(self.config.dims, self.config.depths, strict=True))
            for _ in range(depth)
        ]

    def with_classifier(self, num_classes: int) -> StagedClassifier:
        """A linear classifier on the summary; the backbone in it is this one, not a copy."""
        return StagedClassifier(self, num_classes)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        for _, block in self._first(self.num_layers):
            block.grad_checkpointing = enable

    def set_input_size(self, image: int | None = None, patch: int | None = None) -> None:
        """Make it for another image side: learned positions are resized, nothing else depends on it."""
        if patch not in (None, self.config.stem_stride):
            raise InputError(f"the stem of {self.name} has a stride of {self.config.stem_stride} pixels, not {patch}")
        self.config = replace(self.config, image=image or self.image)
        self.image = self.config.image
        if isinstance(self.stem, PositionStem):
            self.stem.positions.resize(self.config.position_side)

    def keep_stages(self, number: int, *, norm: bool = True) -> None:
        """Remove the stages after the first `number` and, with `norm=False`, the final norm."""
        config = self.config
        dims, depths = config.dims[:number], config.depths[:number]
        late = max(config.late_stages - (len(config.dims) - number), 0)
        self.config = replace(config, dims=dims, depths=depths, late_stages=late)
        self.stages, self.num_layers = self.stages[:number], self.config.depth
        if not norm:
            self.final_norm = nn.Identity()
        elif self.dim != self.config.dim:
            self.final_norm = nn.LayerNorm(self.config.dim, config.final_eps)
        self.dim = self.config.dim

    def no_weight_decay(self) -> set[str]:
        return undecayed(self) | self.token_names()

    def token_names(self) -> set[str]:
        return {name for name, _ in self.named_parameters() if name == POSITIONS}

    def start(self, images: Tensor) -> tuple[Tensor, Grid]:
        check_images(images, channels=self.channels, patch=1)
        check_covers(images.shape[2], images.shape[3], self.config.stem_stride)
        return self.stem(images)

    def _first(self, num_blocks: int) -> list[tuple[Stage, Block]]:
        pairs = [(stage, block) for stage in self.stages for block in stage.blocks]  # type: ignore[union-attr]
        return pairs[:num_blocks]  # type: ignore[return-value]

    def _split(self, tokens: Tensor, grid: Grid, *, norm: bool) -> Features:
        if not norm:
            return self.layout.split(tokens, grid)
        normed = self.final_norm(tokens)
        summary = self.summary(tokens if self.config.pool_first else normed)
        return replace(self.layout.split(normed, grid), summary=summary)


@wrap
def check_covers(height: int, width: int, patch: int) -> None:
    if min(height, width) < patch:
        raise InputError(f"{height} x {width} pixels are less than one patch of {patch}; give a larger image")


def _stem(config: StagedConfig) -> nn.Module:
    channels, dim, patch = config.channels, config.dims[0], config.stem_stride
    if config.stem == "positions":
        return PositionStem(channels, dim, patch, config.position_side)
    if config.stem == "patch":
        return PatchStem(channels, dim, config.norm_eps, patch)
    return OverlapStem(channels, dim, config.norm_eps)


def _stage(config: StagedConfig, number: int) -> Stage:
    dim, first = config.dims[number], sum(config.depths[:number])
    down = DOWNS[config.down](config.dims[number - 1], dim, config.norm_eps) if number else None
    blocks = [
        Block(
            dim=dim,
            depth=config.depth,
            mixer=config.mixer_of(number, index),
            eps=config.norm_eps,
            mlp_ratio=config.mlp_ratio,
            drop_path=config.drop_path * index / max(config.depth - 1, 1),
            normed_stream=config.normed_stream,
        )
        for index in range(first, first + config.depths[number])
    ]
    return Stage(down, blocks)
