"""The image side that a backbone was made for."""

from typing import Any

from mixlab.backbones.backbone import Backbone
from mixlab.backbones.isotropic import Isotropic
from mixlab.backbones.timm_backbone import TimmBackbone


def own_size(backbone: Backbone) -> int:
    """The image side that a backbone was made for."""
    if isinstance(backbone, Isotropic):
        return backbone.config.image
    if isinstance(backbone, TimmBackbone):
        config: Any = backbone.model.pretrained_cfg
        return int(config["input_size"][-1])
    return 224
