"""Backbones in stages: VMamba, LocalVMamba, EfficientVMamba, and MambaOut's shape with any mixer in its blocks."""

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
from mixlab.backbones.stages import Block, ConvDown, OverlapStem, PatchMerge, PatchStem, Stage
from mixlab.backbones.tokens import Features, TokenLayout, check_images
from mixlab.errors import InputError
from mixlab.mixers import MIXERS, Grid, MixerConfig, Mixing
from mixlab.run.codec import from_json, to_json

wrap("check_images")
STEM_STRIDE = 4
STEMS = {"patch": PatchStem, "overlap": OverlapStem}
DOWNS = {"merge": PatchMerge, "conv": ConvDown}


@dataclass(frozen=True, kw_only=True)
class StagedConfig:
    """Stages of blocks; from one to the next, the grid is halved. The first has a stride of 4 pixels."""

    dims: tuple[int, ...]
    depths: tuple[int, ...]
    late_mixer: MixerConfig | None = None  # of the last `late_stages`, where it is not `mixer`
    late_stages: int = 2
    mixer: MixerConfig
    scans: tuple[tuple[str, ...], ...] = ()  # of each block's mixer, from the first block on and again
    stem: Literal["patch", "overlap"] = "overlap"
    down: Literal["merge", "conv"] = "conv"
    mlp_ratio: float = 0.0
    norm_eps: float = 1e-5
    pool_first: bool = False  # average, then the final norm, instead of the norm first
    image: int = 224
    channels: int = 3
    drop_path: float = 0.0  # of the last block, rising linearly from 0

    def __post_init__(self) -> None:
        if not self.dims or len(self.dims) != len(self.depths):
            raise InputError(f"dims {self.dims} and depths {self.depths} must have one entry for each stage")
        for name, value in {"dims": min(self.dims), "depths": min(self.depths), "image": self.image}.items():
            if value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")
        if not 0 <= self.drop_path < 1:
            raise InputError(f"drop_path is a probability below 1, got {self.drop_path}")
        for name, chosen, known in (("stem", self.stem, STEMS), ("down", self.down, DOWNS)):
            if chosen not in known:
                raise InputError(f"unknown {name} {chosen!r}; choose one of {', '.join(known)}")
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
    def first_conv(self) -> str:
        return "stem.first" if self.stem == "overlap" else "stem.project"

    def mixer_of(self, stage: int, block: int) -> MixerConfig:
        """The mixer of a block, counted over all stages."""
        if self.late_mixer is not None and stage >= len(self.dims) - self.late_stages:
            return self.late_mixer
        if not self.scans:
            return self.mixer
        return replace(self.mixer, scans=self.scans[block % len(self.scans)])  # type: ignore[call-arg]


def staged_from_json(values: Mapping[str, Any]) -> StagedConfig:
    """The config in a `Staged.architecture()`; fields that are left out take their defaults."""
    return from_json(StagedConfig, values, kinds={MixerConfig: MIXERS})


class Staged(Backbone):
    """Layers are the blocks of all stages, in order. Features of the last stage are normalised by the final norm, which
    is made for it alone; those of the others are the stream as it is. The summary is the mean over the grid."""

    def __init__(self, config: StagedConfig, name: str = "staged") -> None:
        super().__init__()
        self.config, self.name = config, name
        self.dim, self.num_layers, self.channels, self.image = config.dim, config.depth, config.channels, config.image
        self.layout = TokenLayout(place="none")
        self.family = config.mixer.family or config.mixer.kind
        self.stem = STEMS[config.stem](config.channels, config.dims[0], config.norm_eps)
        self.stages = nn.ModuleList(_stage(config, number) for number in range(len(config.dims)))
        self.final_norm: nn.Module = nn.LayerNorm(config.dim, config.norm_eps)

    @property
    def blocks(self) -> Sequence[nn.Module]:
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
        return self.final_norm(pooled) if self.config.pool_first else pooled

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
                chosen = block.mix(x, grid)
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
            LayerShape(dim, STEM_STRIDE * 2**number)
            for number, (dim, depth) in enumerate(zip(self.config.dims, self.config.depths, strict=True))
            for _ in range(depth)
        ]

    def with_classifier(self, num_classes: int) -> StagedClassifier:
        """A linear classifier on the summary; the backbone in it is this one, not a copy."""
        return StagedClassifier(self, num_classes)

    def name_in_classifier(self, name: str) -> str:
        return f"backbone.{name}"

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        for _, block in self._first(self.num_layers):
            block.grad_checkpointing = enable

    def set_input_size(self, image: int | None = None, patch: int | None = None) -> None:
        """Make it for another image side; nothing in it depends on that."""
        if patch not in (None, STEM_STRIDE):
            raise InputError(f"the stem of {self.name} has a stride of {STEM_STRIDE} pixels, not {patch}")
        self.config = replace(self.config, image=image or self.image)
        self.image = self.config.image

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
            self.final_norm = nn.LayerNorm(self.config.dim, config.norm_eps)
        self.dim = self.config.dim

    def no_weight_decay(self) -> set[str]:
        return undecayed(self)

    def start(self, images: Tensor) -> tuple[Tensor, Grid]:
        check_images(images, channels=self.channels, patch=1)
        check_covers(images.shape[2], images.shape[3])
        return self.stem(images)

    def _first(self, num_blocks: int) -> list[tuple[Stage, Block]]:
        pairs = [(stage, block) for stage in self.stages for block in stage.blocks]  # type: ignore[union-attr]
        return pairs[:num_blocks]  # type: ignore[return-value]

    def _split(self, tokens: Tensor, grid: Grid, *, norm: bool) -> Features:
        if not norm:
            return self.layout.split(tokens, grid)
        found = self.layout.split(self.final_norm(tokens), grid)
        return replace(found, summary=self.final_norm(tokens.mean(1))) if self.config.pool_first else found


@wrap
def check_covers(height: int, width: int) -> None:
    if min(height, width) < STEM_STRIDE:
        raise InputError(f"{height} x {width} pixels are less than one patch of {STEM_STRIDE}; give a larger image")


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
        )
        for index in range(first, first + config.depths[number])
    ]
    return Stage(down, blocks)
