"""One of everything that can be registered, as small as it can be."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mixlab
from mixlab.backbones.backbone import LayerShape, chosen_layers
from mixlab.backbones.tokens import Features, TokenLayout
from mixlab.backbones.zoo import transformer
from mixlab.data import Source
from mixlab.mixers import ALL, Grid, MixerConfig, Mixing, TokenMixer
from mixlab.recipes import RECIPES, with_method
from mixlab.training.distributed import rows_of_all
from mixlab.training.views import ViewsConfig, ViewsNetwork, ViewsRecipe


@dataclass
class RowMixing(Mixing):
    """Every token reads the mean of the tokens before it and of itself, times a gate. gate, values (B, 1, L, P)."""

    gate: Tensor
    values: Tensor

    def matrix(self, heads: slice = ALL) -> Tensor:
        mean = torch.ones_like(self.values[..., :1] @ self.values[..., :1].mT).tril()
        return (self.gate.mean(-1, keepdim=True) * mean / mean.sum(-1, keepdim=True))[:, heads]

    def apply(self) -> Tensor:
        counts = torch.arange(1, self.values.shape[-2] + 1, device=self.values.device)[:, None]
        return self.gate.mean(-1, keepdim=True) * self.values.cumsum(-2) / counts.to(self.values.dtype)

    def sides(self, head: int) -> tuple[bool, bool]:
        return True, False

    def rank_bound(self, rows: range, columns: range) -> int:
        meet = rows.start < columns.stop and columns.start < rows.stop
        return super().rank_bound(rows, columns) if meet else 1


@mixlab.register_mixer
@dataclass(frozen=True, kw_only=True)
class RowConfig(MixerConfig):
    kind: ClassVar[str] = "row"

    @property
    def is_causal(self) -> bool:
        return True

    def build(self, dim: int, depth: int) -> "Row":
        return Row(dim)

    def mixing_macs(self, num_tokens: int, dim: int) -> int:
        return num_tokens * dim


class Row(TokenMixer):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def prepare(self, x: Tensor, grid: Grid) -> tuple[Mixing, Tensor | None]:
        gate, values = self.project(x).unsqueeze(1).chunk(2, dim=-1)
        return RowMixing(gate.sigmoid(), values), None

    def merge(self, mixed: Tensor, bypass: Tensor | None) -> Tensor:
        return self.out(mixed.squeeze(1))


mixlab.register_family("garden", lambda dim: transformer(dim, RowConfig()), source="garden")


@mixlab.register_backbone("hedge", source="garden")
class Hedge(mixlab.Backbone):
    """Convolutions on patches."""

    family, layout = "other", TokenLayout(place="none")

    def __init__(self, dim: int = 32, depth: int = 2, image: int = 64) -> None:
        super().__init__()
        self.dim, self.num_layers, self.channels, self.image = dim, depth, 3, image
        self.embed = nn.Conv2d(3, dim, 8, 8)
        self.layers = nn.ModuleList(nn.Conv2d(dim, dim, 3, padding=1) for _ in range(depth))

    def forward(self, images: Tensor) -> Tensor:
        return next(features.summary for _, features in self.features(images))

    def features(self, images: Tensor, layers: Any = 1, source: Any = "stream", *, norm: bool = True) -> Iterator[Any]:
        wanted, x = chosen_layers(layers, self.num_layers), self.embed(images)
        for index, layer in enumerate(self.layers):
            x = x + layer(x).relu()
            if index in wanted:
                patches = x.permute(0, 2, 3, 1)
                none = patches.new_zeros(len(x), 0, self.dim)
                yield index, Features(patches.mean((1, 2)), none, patches, (x.shape[2], x.shape[3]))

    def layer_shapes(self) -> list[LayerShape]:
        return [LayerShape(self.dim, 8)] * self.num_layers


@mixlab.register_method
@dataclass(frozen=True, kw_only=True)
class AgreeConfig(ViewsConfig):
    kind: ClassVar[str] = "agree"
    title: ClassVar[str] = "Agreement pretraining"
    label: ClassVar[str] = "Agreement"
    curves: ClassVar[dict[str, tuple[str, str]]] = {"agreement": ("distance of views", "squared")}
    width: int = 32

    def build(self, backbone: mixlab.Backbone, **about: Any) -> "AgreeRecipe":
        return AgreeRecipe(self, backbone)


class AgreeRecipe(ViewsRecipe):
    def __init__(self, config: AgreeConfig, backbone: mixlab.Backbone) -> None:
        super().__init__(config, ViewsNetwork(backbone, nn.Linear(backbone.dim, config.width)))

    def loss(self, inputs: Any) -> tuple[Tensor, dict[str, Tensor]]:
        z, _ = self.run(inputs)
        agreement = (z - z[:2].mean(0)).square().mean()
        every = rows_of_all(z.transpose(0, 1)).flatten(0, 1)
        spread = F.relu(1 - (every.var(0) + 1e-4).sqrt()).mean()
        return agreement + spread, {"agreement": agreement.detach()}


@mixlab.register_optimizer
def spade(groups: Any, config: Any) -> torch.optim.Optimizer:
    return torch.optim.NAdam(groups, lr=config.lr, betas=config.betas)


@mixlab.register_schedule
def wane(step: int, course: Any) -> float:
    return float(course.peak / (1 + step / course.total))


@mixlab.register_map
def light(features: Features) -> Tensor:
    """Mean activation of each patch."""
    return features.patches.mean(-1)


@mixlab.register_recipe
def agree_garden_tiny64() -> Any:
    config = with_method(RECIPES["dino_garden_tiny64"](), AgreeConfig)
    return replace(config, epochs=2, batch=8, optim=replace(config.optim, name="spade", decay="wane"))


class Stripes(Source[Tensor]):
    """Stripes that lie or stand, of random phases and widths."""

    classes = ("lying", "standing")

    def __init__(self, number: int, seed: int) -> None:
        self.number, self.seed = number, seed

    def __len__(self) -> int:
        return self.number

    def name(self, index: int) -> str:
        return f"stripes {self.seed}-{index}"

    def label(self, index: int) -> int:
        return index % 2

    def load(self, index: int) -> Tensor:
        draw = torch.Generator().manual_seed(self.seed * 10_000 + index)
        phase, width = torch.rand(2, generator=draw).tolist()
        wave = (torch.arange(64) / (2 + 6 * width) + 6 * phase).sin()
        image = ((wave + 1) * 127).to(torch.uint8).expand(3, 64, 64)
        return (image if self.label(index) else image.mT).contiguous()


@mixlab.register_source("stripes")
def stripes(rest: str, split: str) -> Stripes:
    return Stripes(int(rest or 32), seed=("train", "val").index(split))


@mixlab.register_analysis("brightness", num_images=4)
@torch.no_grad()
def brightness(targets: Any, images: Any, *, layers: int = 1) -> mixlab.Exhibit:
    """Mean activation of the patches of the last layers."""
    rows = []
    for target in targets:
        pixels = target.backbone.preprocess(images.together().images)
        means = [float(features.patches.mean()) for _, features in target.backbone.features(pixels, layers=layers)]
        rows.append((target.label, sum(means) / len(means)))
    return mixlab.Exhibit(title="Brightness", about="How bright it is.", columns=("model", "mean"), rows=rows)
