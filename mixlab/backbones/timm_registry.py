"""Our backbones under timm's names and words: `timm.create_model("dinovim_tiny")`, features_only included."""

from collections.abc import Sequence
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import register_model
from timm.models._features import FeatureGetterNet, feature_take_indices
from torch import Tensor, nn

from mixlab.backbones.isotropic import Isotropic, IsotropicConfig
from mixlab.backbones.zoo import ZOO, replace_fields
from mixlab.errors import InputError

__all__: list[str] = []  # timm's registry appends the names it takes
TIMM_FIELDS = {"img_size": "image", "in_chans": "channels", "patch_size": "patch", "drop_path_rate": "drop_path"}


class TimmIsotropic(nn.Module):
    """A backbone with a classifier, speaking timm's interface."""

    def __init__(self, backbone: Isotropic, num_classes: int = 1000) -> None:
        super().__init__()
        self.backbone = backbone
        config = backbone.config
        self.num_features = self.head_hidden_size = self.embed_dim = config.dim
        self.feature_info = [
            {"num_chs": config.dim, "reduction": config.patch, "module": f"backbone.layers.{index}"}
            for index in range(config.depth)
        ]
        self.grad_checkpointing = False
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
        self.head = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()

    def get_classifier(self) -> nn.Module:
        return self.head

    def no_weight_decay(self) -> set[str]:
        return {f"backbone.{name}" for name in self.backbone.no_weight_decay()}

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


def _register(name: str, config: IsotropicConfig) -> None:
    def build(
        pretrained: bool = False,
        *,
        num_classes: int = 1000,
        features_only: bool = False,
        out_indices: int | Sequence[int] | None = None,
        pretrained_cfg: Any = None,
        pretrained_cfg_overlay: Any = None,
        cache_dir: Any = None,
        **fields: Any,
    ) -> nn.Module:
        if pretrained:
            raise InputError(f"{name} has no published weights to download; load a file with mixlab.load_weights")
        changes = {TIMM_FIELDS.get(key, key): value for key, value in fields.items()}
        model = TimmIsotropic(Isotropic(replace_fields(config, changes), name=name), num_classes)
        if not features_only:
            return model
        depth = len(model.feature_info)
        quarters = [depth * (quarter + 1) // 4 - 1 for quarter in range(4)] if depth >= 4 else list(range(depth))
        return FeatureGetterNet(model, out_indices=quarters if out_indices is None else out_indices)

    build.__name__ = name
    build.__module__ = __name__
    register_model(build)


for _name, _entry in ZOO.items():
    if isinstance(_entry.config, IsotropicConfig):
        _register(_name, _entry.config)
