"""Models that timm knows by `register_model` alone: what their `forward_features` gives is their one layer."""

from typing import Any

import torch
from torch import Tensor, nn

from mixlab.backbones.backbone import Architecture, Backbone
from mixlab.backbones.timm_backbone import (
    WEIGHT_SOURCES,
    NoIntermediatesError,
    TimmBackbone,
    as_json,
    spared_by_timm,
)
from mixlab.backbones.timm_models import create_timm, known_pixels
from mixlab.backbones.tokens import check_images
from mixlab.backbones.wrapped import WrappedBackbone


def build_timm(timm_name: str, fields: dict[str, Any], name: str | None = None) -> Backbone:
    """A model of timm's by its name: with all its layers where it gives them, else with the last one."""
    try:
        return TimmBackbone(timm_name, fields, name=name)
    except NoIntermediatesError:
        network = create_timm(timm_name, fields)
        if not hasattr(network, "forward_features"):
            raise
        return TimmFeatures(network, timm_name, fields, name=name)


class TimmFeatures(WrappedBackbone):
    """A module behind timm's `create_model` that has `forward_features` and little else of timm's interface.

    Calling it gives timm's own pooled feature where the module has one without a classifier (CrossViT joins those of
    two branches), elsewhere what other wrapped modules give.
    """

    def __init__(self, network: nn.Module, timm_name: str, fields: dict[str, Any], name: str | None = None) -> None:
        pixels = known_pixels(network, timm_name, fields)._asdict()
        super().__init__(network, maps=forward_features, name=name or f"timm/{timm_name}", **pixels)
        self.timm_name, self.fields = timm_name, dict(fields)
        width = self._pooled_width()
        self.pools_itself = width is not None
        self.dim = self.dim if width is None else width

    def forward(self, images: Tensor) -> Tensor:
        if not self.pools_itself:
            return super().forward(images)
        check_images(images, channels=self.channels, patch=1)
        pooled: Tensor = self._run(nn.Module.__call__, images)
        return pooled

    @torch.no_grad()
    def _pooled_width(self) -> int | None:
        """The width that a network without a classifier names, where it gives one feature of it."""
        width = getattr(self.network, "num_features", None)
        if getattr(self.network, "num_classes", None) != 0 or not isinstance(width, int):
            return None
        was_training, parameter = self.network.training, next(self.network.parameters())
        try:
            found = self.network.eval()(parameter.new_zeros(1, self.channels, self.image, self.image))
        finally:
            self.network.train(was_training)
        return width if isinstance(found, Tensor) and found.shape == (1, width) else None

    def token_names(self) -> set[str]:
        return {f"network.{name}" for name in spared_by_timm(self.network)}

    def architecture(self) -> Architecture:
        fields = {key: as_json(key, value) for key, value in self.fields.items() if key not in WEIGHT_SOURCES}
        return {"name": self.name, "timm_name": self.timm_name, "fields": fields}

    def fresh(self) -> "TimmFeatures":
        fields = self.fields | {"pretrained": False}
        return TimmFeatures(create_timm(self.timm_name, fields), self.timm_name, fields, name=self.name)


def forward_features(network: Any, images: Tensor) -> Any:
    return network.forward_features(images)
