"""Models that timm knows by `register_model` alone: what their `forward_features` gives is their one layer."""

from typing import Any

from torch import Tensor, nn

from mixlab.backbones.backbone import Architecture, Backbone
from mixlab.backbones.timm_backbone import (
    WEIGHT_SOURCES,
    NoIntermediatesError,
    TimmBackbone,
    as_json,
    create_timm,
    known_pixels,
)
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
    """A module behind timm's `create_model` that has `forward_features` and little else of timm's interface."""

    def __init__(self, network: nn.Module, timm_name: str, fields: dict[str, Any], name: str | None = None) -> None:
        pixels = known_pixels(network, timm_name, fields)._asdict()
        super().__init__(network, maps=forward_features, name=name or f"timm/{timm_name}", **pixels)
        self.timm_name, self.fields = timm_name, dict(fields)

    def architecture(self) -> Architecture:
        fields = {key: as_json(key, value) for key, value in self.fields.items() if key not in WEIGHT_SOURCES}
        return {"name": self.name, "timm_name": self.timm_name, "fields": fields}

    def fresh(self) -> "TimmFeatures":
        fields = self.fields | {"pretrained": False}
        return TimmFeatures(create_timm(self.timm_name, fields), self.timm_name, fields, name=self.name)


def forward_features(network: Any, images: Tensor) -> Any:
    return network.forward_features(images)
