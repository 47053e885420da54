"""An isotropic backbone with a linear classifier, as timm's own models are called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from mixlab.errors import InputError

if TYPE_CHECKING:
    from mixlab.backbones.isotropic import Isotropic


class IsotropicClassifier(nn.Module):
    """Images (B, C, H, W) -> logits (B, K); without classes, the summary feature (B, D)."""

    def __init__(self, backbone: Isotropic, num_classes: int = 1000) -> None:
        super().__init__()
        self.backbone = backbone
        config = backbone.config
        self.num_features = self.head_hidden_size = self.embed_dim = config.dim
        self.feature_info = [
            {"num_chs": config.dim, "reduction": config.patch, "module": f"backbone.layers.{index}"}
            for index in range(config.depth)
        ]
        self.pretrained_cfg = self.default_cfg = {
            "architecture": backbone.name,
            "input_size": (config.channels, config.image, config.image),
            "fixed_input_size": False,
            "num_classes": num_classes,
            "mean": IMAGENET_DEFAULT_MEAN,
            "std": IMAGENET_DEFAULT_STD,
            "interpolation": "bicubic",
            "crop_pct": 0.875,
            "first_conv": "backbone.embed.project",
            "classifier": "head",
        }
        self.reset_classifier(num_classes)

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        self.num_classes = num_classes
        self.head: nn.Module = nn.Identity()
        if num_classes:
            self.head = linear = nn.Linear(self.num_features, num_classes)
            nn.init.trunc_normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)

    def get_classifier(self) -> nn.Module:
        return self.head

    def no_weight_decay(self) -> set[str]:
        return {f"backbone.{name}" for name in self.backbone.no_weight_decay()}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.backbone.set_grad_checkpointing(enable)

    def forward_features(self, images: Tensor) -> Tensor:
        """All tokens after the final norm (B, L, D)."""
        return self.backbone.tokens(images)[0]

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        summary = self.backbone.layout.summary(tokens)
        return summary if pre_logits else self.head(summary)

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(images))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Any] | tuple[Tensor, list[Any]]:
        """Feature maps after the chosen layers, always normalised: the raw stream of such a stack has no set scale."""
        if output_fmt not in ("NCHW", "NLC"):
            raise InputError(f"output_fmt {output_fmt!r} is not one of NCHW, NLC")
        taken, _ = feature_take_indices(len(self.feature_info), indices)
        maps: list[Any] = []
        for _, features in self.backbone.features(x, layers=taken):
            patches = features.patches.permute(0, 3, 1, 2) if output_fmt == "NCHW" else features.patches.flatten(1, 2)
            prefix = torch.cat([features.summary[:, None], features.registers], dim=1)
            maps.append((patches.contiguous(), prefix) if return_prefix_tokens else patches.contiguous())
        return maps if intermediates_only else (self.forward_features(x), maps)
