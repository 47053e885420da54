"""An isotropic backbone with a linear classifier, under the names that timm gives such things."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from timm.models._features import feature_take_indices
from timm.models._pretrained import PretrainedCfg
from torch import Tensor, nn
from torch.fx import wrap

from mixlab.errors import InputError
from mixlab.ops.add_norm.op import whole

if TYPE_CHECKING:
    from mixlab.backbones.isotropic import Isotropic, IsotropicConfig
    from mixlab.backbones.staged import StagedConfig

wrap("whole")
POOLS = ("token", "avg", "max", "")


def timm_config(name: str, config: IsotropicConfig | StagedConfig) -> PretrainedCfg:
    """What timm asks of every model: the images that it takes, and where its first and last layer are."""
    return PretrainedCfg(
        architecture=name,
        input_size=(config.channels, config.image, config.image),
        pool_size=config.pool_size,
        crop_pct=config.crop_share,
        first_conv=f"backbone.{config.first_conv}",
        classifier="head",
    )


class IsotropicClassifier(nn.Module):
    """Images (B, C, H, W) -> logits (B, K); without classes, the pooled feature (B, D).

    `global_pool`: `token`, the summary that the token layout defines; `avg` or `max` over the patches; "", all tokens.
    """

    global_pool: str

    def __init__(
        self, backbone: Isotropic, num_classes: int = 1000, *, global_pool: str = "token", drop_rate: float = 0.0
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.embed_dim = backbone.config.dim
        self.pretrained_cfg = self.default_cfg = timm_config(backbone.name, backbone.config).to_dict()
        self.head_drop = nn.Dropout(drop_rate) if drop_rate else nn.Identity()
        self.reset_classifier(num_classes, global_pool)

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        return [
            {"num_chs": shape.width, "reduction": shape.stride, "module": f"backbone.layers.{index}"}
            for index, shape in enumerate(self.backbone.layer_shapes())
        ]

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        if global_pool not in (None, *POOLS):
            raise InputError(f"global_pool {global_pool!r} is not one of {', '.join(map(repr, POOLS))}")
        self.num_classes = num_classes
        self.global_pool = self.global_pool if global_pool is None else global_pool
        self.num_features = self.embed_dim  # of a token; a summary of registers is wider
        self.head_hidden_size = self.backbone.dim if self.global_pool == "token" else self.embed_dim
        self.head: nn.Module = nn.Identity()
        if num_classes:
            like = self.backbone.final_norm.weight
            self.head = linear = nn.Linear(self.head_hidden_size, num_classes, device=like.device, dtype=like.dtype)
            nn.init.trunc_normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)

    def get_classifier(self) -> nn.Module:
        return self.head

    def no_weight_decay(self) -> set[str]:
        return {f"backbone.{name}" for name in self.backbone.no_weight_decay()}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Patterns of parameter names from the input to the output, for learning rates that decay over layers."""
        blocks = [(r"^backbone\.layers\.(\d+)", None), (r"^backbone\.final_norm", (99999,))]
        return {"stem": r"^backbone\.embed", "blocks": r"^backbone\.layers\.(\d+)" if coarse else blocks}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.backbone.set_grad_checkpointing(enable)

    def set_input_size(
        self, img_size: int | Sequence[int] | None = None, patch_size: int | Sequence[int] | None = None
    ) -> None:
        """Make it for another image side or patch size; images of other sides run without this."""
        image, patch = (None if size is None else square_side(size) for size in (img_size, patch_size))
        self.backbone.set_input_size(image, patch)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop what the intermediates of `indices` do not need; returns the indices, counted from the first layer."""
        taken, last = feature_take_indices(self.backbone.num_layers, indices)
        self.backbone.keep_layers(last + 1, norm=not prune_norm)
        if prune_head:
            self.num_classes, self.global_pool, self.head = 0, "", nn.Identity()
        return taken

    def forward_features(self, images: Tensor) -> Tensor:
        """All tokens after the final norm (B, L, D)."""
        return self.backbone.tokens(images)[0]

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        pooled = self.head_drop(self.pool(tokens))
        return pooled if pre_logits else self.head(pooled)

    def pool(self, tokens: Tensor) -> Tensor:
        layout = self.backbone.layout
        match self.global_pool:
            case "token":
                return self.backbone.summary(tokens)
            case "avg":
                return layout.patches(tokens).mean(1)
            case "max":
                return layout.patches(tokens).amax(1)
        return tokens

    def forward(self, images: Tensor) -> Tensor:
        if self.global_pool == "token":  # the backbone as a whole module, which may be sharded
            return self.head(self.head_drop(self.backbone(images)))
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
        output_dict: bool = False,
    ) -> Any:
        """Feature maps after the chosen layers, and unless `intermediates_only`, all tokens of the last layer before.

        A map's prefix tokens are the summary and the registers.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise InputError(f"output_fmt {output_fmt!r} is not one of NCHW, NLC")
        backbone = self.backbone
        taken, last = feature_take_indices(backbone.num_layers, indices)
        maps, prefixes = [], []
        branch, stream, grid = backbone.start(x)
        for index, layer in enumerate(
            backbone.layers[: last + 1] if stop_early or intermediates_only else backbone.layers
        ):
            branch, stream = layer(*backbone.turned(branch, stream, grid), grid)
            if index in taken:
                tokens = backbone.final_norm(branch, stream)[1] if norm else whole(branch) + stream
                features = backbone.layout.split(tokens, grid)
                patches = (
                    features.patches.permute(0, 3, 1, 2) if output_fmt == "NCHW" else features.patches.flatten(1, 2)
                )
                maps.append(patches.contiguous())
                prefixes.append(torch.cat([features.summary[:, None], features.registers], dim=1))
        final = None if intermediates_only else backbone.final_norm(branch, stream)[1]
        if output_dict:
            found = {"image_intermediates": maps, "image_intermediates_prefix": prefixes, "image_features": final}
            wanted = {"image_intermediates_prefix": return_prefix_tokens, "image_features": not intermediates_only}
            return {key: value for key, value in found.items() if wanted.get(key, True)}
        results = list(zip(maps, prefixes, strict=True)) if return_prefix_tokens else maps
        return results if intermediates_only else (final, results)


def square_side(size: int | Sequence[int]) -> int:
    """The side of a square given as timm gives sizes."""
    sides = {size} if isinstance(size, int) else set(size)
    if len(sides) != 1:
        raise InputError(
            f"the size {tuple(size)} is not square; positions are learnt on a square, and images of other "  # type: ignore[arg-type]
            "shapes run without setting it"
        )
    return sides.pop()
