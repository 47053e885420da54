"""LeJEPA (Balestriero and LeCun 2025, arXiv 2511.08544): the views of an image predict their mean, and the embeddings
of a batch are kept an isotropic Gaussian. No teacher, no stop-gradient, no schedules: one weight to choose.

    loss = (1 - λ) · mean_v |z_v - mean of the global views|² + λ · mean_v SIGReg(z_v)

SIGReg looks at the embeddings from random directions. Along each they should be a standard normal variable, which the
test of Epps and Pulley measures: the distance between its characteristic function and that of what is seen,

    B ∫ |mean_b exp(i t x_b) - exp(-t²/2)|² exp(-t²/2) dt,

by the trapezoidal rule on 17 points from -5 to 5. The integrand is even, so that the points from 0 on suffice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from mixlab.backbones.backbone import Backbone
from mixlab.data.packed import PackedBatch, to_device
from mixlab.training.config import check_numbers
from mixlab.training.distributed import rows_of_all
from mixlab.training.recipe import BatchPart
from mixlab.training.views import (
    NUM_GLOBAL,
    CollapseWatch,
    Symptom,
    ViewsConfig,
    ViewsNetwork,
    ViewsRecipe,
    feature_spread,
)

REACH, NUM_POINTS = 5.0, 17  # of the integral: LeJEPA, Algorithm 1

SYMPTOMS = (
    Symptom(
        "equal features",
        lambda metrics: metrics["feature_spread"] < 0.01,
        "the features of all images are the same (spread {feature_spread:.4f} of 1)",
        "raise method.weight (0.1), lower optim.lr, or use a larger batch",
    ),
)


@dataclass(frozen=True, kw_only=True)
class LeJepaConfig(ViewsConfig):
    """The defaults are LeJEPA's, with DINO's crops; its projector normalises batches, ours normalises each embedding,
    so that a run is the same on any number of ranks."""

    kind: ClassVar[str] = "lejepa"
    title: ClassVar[str] = "LeJEPA pretraining"
    label: ClassVar[str] = "LeJEPA"
    curves: ClassVar[Mapping[str, tuple[str, str]]] = {
        "prediction": ("distance of views from their mean", "prediction loss"),
        "sigreg": ("distance from a Gaussian", "SIGReg"),
    }
    weight: float = 0.05  # λ: the paper's
    num_directions: int = 1024
    hidden: int = 2048
    embedding: int = 64

    def __post_init__(self) -> None:
        sizes = dict.fromkeys(("num_directions", "hidden", "embedding"), 1)
        check_numbers(self, "method.", at_least=sizes, shares=("weight",))
        super().__post_init__()

    def watch(self) -> CollapseWatch:
        return CollapseWatch(SYMPTOMS)

    def build(self, backbone: Backbone, *, num_classes: int, total_steps: int, steps_per_epoch: int) -> LeJepaRecipe:
        return LeJepaRecipe(self, backbone)


class LeJepaRecipe(ViewsRecipe):
    config: LeJepaConfig
    shared = "embeddings (SIGReg)"

    def __init__(self, config: LeJepaConfig, backbone: Backbone) -> None:
        hidden = config.hidden
        head = nn.Sequential(
            nn.Linear(backbone.dim, hidden), nn.LayerNorm(hidden), nn.GELU(),
            nn.Linear(hidden, hidden), nn.LayerNorm(hidden), nn.GELU(),
            nn.Linear(hidden, config.embedding),
        )  # fmt: skip
        super().__init__(config, ViewsNetwork(backbone, head))

    def prepare(self, batch: PackedBatch, part: BatchPart) -> tuple[Tensor, ...]:
        """Directions for this step, the same on every part, then the views of each size."""
        shape = (self.config.embedding, self.config.num_directions)
        directions = torch.randn(shape, generator=part.generator())
        directions /= directions.norm(dim=0)
        weight = next(self.network.head.parameters())
        return to_device(directions.to(weight.dtype), weight.device), *self.views(batch, part)

    def loss(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        directions, *views = inputs
        embeddings, features = self.run(views)  # (V, B, K), (V, B, D)
        embeddings = embeddings.to(directions.dtype)
        prediction = prediction_loss(embeddings, NUM_GLOBAL)
        everyone = rows_of_all(embeddings.transpose(0, 1)).transpose(0, 1)
        gaussian = sigreg(everyone, directions)
        loss = (1 - self.config.weight) * prediction + self.config.weight * gaussian
        metrics = {"prediction": prediction.detach(), "sigreg": gaussian.detach()}
        return loss, {**metrics, "feature_spread": feature_spread(features[:NUM_GLOBAL])}


def prediction_loss(embeddings: Tensor, num_global: int) -> Tensor:
    """The mean squared distance of every view (V, B, K) from the mean of the first `num_global` views of its image."""
    return (embeddings - embeddings[:num_global].mean(0)).square().mean()


def sigreg(embeddings: Tensor, directions: Tensor) -> Tensor:
    """How far embeddings (V, B, K) are from a standard normal along unit directions (K, M): the mean over views and
    directions of the statistic of Epps and Pulley."""
    seen = embeddings @ directions  # (V, B, M)
    points = torch.linspace(0, REACH, NUM_POINTS // 2 + 1, dtype=seen.dtype, device=seen.device)
    normal = (-points.square() / 2).exp()  # the characteristic function, and the weight of the integral
    rule = torch.full_like(points, 2 * REACH / (NUM_POINTS - 1) * 2)
    rule[0] /= 2  # the point 0 counts once, all others stand for two
    rule[-1] /= 2  # the ends of the trapezoidal rule
    total = seen.new_zeros(())
    for point, expected, share in zip(points, normal, rule * normal, strict=True):  # one point at a time: memory
        angle = seen * point
        distance = (angle.cos().mean(1) - expected).square() + angle.sin().mean(1).square()  # (V, M)
        total = total + share * distance.mean()
    return seen.shape[1] * total
