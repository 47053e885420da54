"""What methods share that learn from several views of an image: the crops, a network over all of them, and the watch
for a collapse, in which a run stops learning without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixlab.backbones.backbone import Backbone
from mixlab.data.crops import MultiCrop, dino_crops
from mixlab.data.packed import PackedBatch
from mixlab.errors import InputError
from mixlab.training.config import MethodConfig, check_numbers
from mixlab.training.recipe import BatchPart, Recipe, drop_empty, to_pixels_of

NUM_GLOBAL = 2  # views that show most of an image
PATIENCE = 5  # reports in a row that show a collapse before a warning


@dataclass(frozen=True, kw_only=True)
class ViewsConfig(MethodConfig):
    """Two global views of an image and some local ones, cut and coloured as DINO's."""

    global_size: int = 224
    local_size: int = 96
    num_local: int = 8
    global_scale: tuple[float, float] = (0.4, 1.0)
    local_scale: tuple[float, float] = (0.05, 0.4)
    jitter: float = 0.8  # how often colours are changed; strengths as BYOL's
    grey: float = 0.2  # how often colours are taken away
    blur_sigma: tuple[float, float] = (0.1, 2.0)  # pixels of the crop

    def __post_init__(self) -> None:
        check_numbers(self, "method.", shares=("jitter", "grey"))
        self.crops()  # which checks sizes and scales

    @property
    def image(self) -> int:
        return self.global_size

    def crops(self) -> MultiCrop:
        kinds = dino_crops(
            global_size=self.global_size,
            local_size=self.local_size,
            num_local=self.num_local,
            global_scale=self.global_scale,
            local_scale=self.local_scale,
        )
        return MultiCrop([replace(k, jitter=self.jitter, grey=self.grey, sigma=self.blur_sigma) for k in kinds])


class ViewsNetwork(nn.Module):
    """Backbone and head; views of one size go through the backbone together, all views through the head."""

    def __init__(self, backbone: Backbone, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, views: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """One (V, B, 3, S, S) per size -> outputs (V, B, K) and features (V, B, D), over the views of all sizes."""
        num_images = views[0].shape[1]
        features = torch.cat([self.backbone(part.flatten(0, 1)) for part in views])
        outputs = self.head(features)
        return outputs.unflatten(0, (-1, num_images)), features.unflatten(0, (-1, num_images))


class ViewsRecipe(Recipe):
    """Trains a `ViewsNetwork`, whose backbone is exported. Its views always have the same shapes.

    A method adds `loss`: it is given the views, (V, B, 3, S, S) for each size, unless it has a `prepare` of its own.
    """

    static = True
    config: ViewsConfig
    network: ViewsNetwork

    def __init__(self, config: ViewsConfig, network: ViewsNetwork) -> None:
        self.config, self.crops = config, config.crops()
        drop_empty(network)
        self.network = self.run = network

    def modules(self) -> dict[str, nn.Module]:
        return {"network": self.network}

    def prepare(self, batch: PackedBatch, part: BatchPart) -> tuple[Tensor, ...]:
        return tuple(self.views(batch, part))

    def no_weight_decay(self) -> set[str]:
        return {f"backbone.{name}" for name in self.network.backbone.no_weight_decay()}

    def exported(self) -> Backbone:
        return self.network.backbone

    def views(self, batch: PackedBatch, part: BatchPart) -> list[Tensor]:
        """All crops of this part's images: (V, B, 3, S, S) for each size, the global ones first."""
        drawn = self.crops.draw(batch.sizes, part.generator(), rank=part.index, world_size=part.num_parts)
        dtype = next(self.network.parameters()).dtype  # a head may have none
        return [to_pixels_of(self.network.backbone, view.to(dtype)) for view in self.crops(batch.images, drawn)]


@torch.no_grad()
def feature_spread(features: Tensor) -> Tensor:
    """1 if features (..., D) point in all directions, 0 if they are equal."""
    unit = F.normalize(features.flatten(0, -2), dim=-1)
    return (1 - unit.mean(0).square().sum()).clamp_(min=0).sqrt_()


class Symptom(NamedTuple):
    """One kind of collapse: its symptom, and what to try."""

    name: str
    shows: Callable[[Mapping[str, float]], bool]  # by the metrics of a report, and what the watch knows beside them
    description: str
    advice: str


class CollapseWatch:
    """Looks at every report; warns once when a symptom has lasted, and again only after it went away."""

    def __init__(self, symptoms: Sequence[Symptom], **known: float) -> None:
        self.known = known
        self._lasted = dict.fromkeys(symptoms, 0)

    def look(self, step: int, metrics: Mapping[str, float]) -> list[str]:
        """Warnings to print."""
        values = {**metrics, **self.known}
        warnings = []
        for symptom in self._lasted:
            try:
                shows = symptom.shows(values)
            except KeyError as error:
                raise InputError(
                    f"the symptom {symptom.name!r} reads the metric {error}, which is not there; `loss` gives "
                    f"{', '.join(values)}"
                ) from error
            self._lasted[symptom] = self._lasted[symptom] + 1 if shows else 0
            if self._lasted[symptom] == PATIENCE:
                description = f"{symptom.name}: {symptom.description.format(**values)}"
                warnings.append(f"step {step}: this looks like a collapse, {description}. Try: {symptom.advice}")
        return warnings
