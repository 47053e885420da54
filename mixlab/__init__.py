"""A laboratory for vision token mixers: pretrain them, probe them, look inside them."""

import mixlab.backbones.timm_registry  # noqa: F401  registers the zoo with timm
from mixlab.backbones.backbone import Backbone
from mixlab.backbones.tokens import Features, TokenLayout
from mixlab.backbones.weights import load_weights, save_weights
from mixlab.backbones.zoo import create_model, list_models

__version__ = "0.1.0"
__all__ = [
    "Backbone",
    "Features",
    "TokenLayout",
    "create_model",
    "list_models",
    "load_weights",
    "save_weights",
]
