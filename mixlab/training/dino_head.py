"""DINO's projection head and the network it stands on."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixlab.backbones.backbone import Backbone


class DinoHead(nn.Module):
    """An MLP to a unit vector, then its cosine with each of K prototypes (weight-normalised, norm fixed at 1)."""

    def __init__(self, *, dim: int, hidden: int, bottleneck: int, num_prototypes: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, bottleneck)
        )
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        self.prototypes = nn.Parameter(torch.empty(num_prototypes, bottleneck))
        nn.init.uniform_(self.prototypes, -(bottleneck**-0.5), bottleneck**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Features (B, D) -> cosines (B, K)."""
        x = F.normalize(self.mlp(x), dim=-1)
        return F.linear(x, F.normalize(self.prototypes, dim=-1))


class DinoNetwork(nn.Module):
    """Backbone and head; views of one size go through the backbone together, all views through the head."""

    def __init__(self, backbone: Backbone, head: DinoHead) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, views: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """One (V, B, 3, S, S) per size -> cosines (V, B, K) and features (V, B, D), over the views of all sizes."""
        num_images = views[0].shape[1]
        features = torch.cat([self.backbone(part.flatten(0, 1)) for part in views])
        cosines = self.head(features)
        return cosines.unflatten(0, (-1, num_images)), features.unflatten(0, (-1, num_images))

    def no_weight_decay(self) -> set[str]:
        return {f"backbone.{name}" for name in self.backbone.no_weight_decay()}
