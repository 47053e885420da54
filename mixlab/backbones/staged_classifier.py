"""A backbone in stages with a linear classifier, under the names that timm gives such things: one map per stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from timm.models._features import feature_take_indices
from torch import Tensor, nn

from mixlab.backbones.classifier import IsotropicClassifier
from mixlab.errors import InputError

if TYPE_CHECKING:
    from mixlab.backbones.staged import Staged


class StagedClassifier(IsotropicClassifier):
    """Images (B, C, H, W) -> logits (B, K). Features are the map of the last stage (B, D, h, w), intermediates the maps
    as each stage leaves them."""

    backbone: Staged

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        shapes = self.backbone.layer_shapes()
        ends = [sum(self.backbone.config.depths[: number + 1]) - 1 for number in range(len(self.backbone.stages))]
        return [
            {"num_chs": shapes[end].width, "reduction": shapes[end].stride, "module": f"backbone.stages.{number}"}
            for number, end in enumerate(ends)
        ]

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        blocks = [
            (r"^backbone\.stages\.(\d+)\.down", (0,)),
            (r"^backbone\.stages\.(\d+)\.blocks\.(\d+)", None),
            (r"^backbone\.final_norm", (99999,)),
        ]
        return {"stem": r"^backbone\.stem", "blocks": r"^backbone\.stages\.(\d+)" if coarse else blocks}

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        taken, last = feature_take_indices(len(self.backbone.stages), indices)
        self.backbone.keep_stages(last + 1, norm=not prune_norm)
        if prune_head:
            self.num_classes, self.global_pool, self.head = 0, "", nn.Identity()
        return taken

    def forward_features(self, images: Tensor) -> Tensor:
        """The map of the last stage after the final norm (B, D, h, w)."""
        tokens, grid = self.backbone.tokens(images)
        return tokens.mT.unflatten(-1, grid)

    def pool(self, tokens: Tensor) -> Tensor:
        """Of a map (B, D, h, w)."""
        return super().pool(tokens.flatten(2).mT) if self.global_pool else tokens

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
        """The maps of the chosen stages and, unless `intermediates_only`, the last one that ran, under the final norm.

        `norm` is for the last stage alone, whose norm it is. There are no prefix tokens.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise InputError(f"output_fmt {output_fmt!r} is not one of NCHW, NLC")
        backbone = self.backbone
        taken, last = feature_take_indices(len(backbone.stages), indices)
        maps: list[Tensor] = []
        tokens, grid = backbone.start(x)
        for number, stage in enumerate(
            backbone.stages[: last + 1] if stop_early or intermediates_only else backbone.stages
        ):
            tokens, grid = stage(tokens, grid)
            if number in taken:
                is_last = number == len(backbone.stages) - 1
                chosen = backbone.final_norm(tokens) if norm and is_last else tokens
                maps.append(chosen.mT.unflatten(-1, grid) if output_fmt == "NCHW" else chosen)
        if intermediates_only:
            return {"image_intermediates": maps} if output_dict else maps
        if not backbone.config.pool_first and stage is backbone.stages[-1]:
            tokens = backbone.final_norm(tokens)
        final = tokens.mT.unflatten(-1, grid)
        return {"image_intermediates": maps, "image_features": final} if output_dict else (final, maps)
