"""A laboratory for vision token mixers: pretrain them, probe them, look inside them."""

import mixlab.backbones.timm_registry  # noqa: F401  registers the zoo with timm
from mixlab.analysis.binary_auc import binary_auc
from mixlab.analysis.binary_auc_metric import BinaryAUC
from mixlab.backbones.backbone import Backbone
from mixlab.backbones.tokens import Features, TokenLayout
from mixlab.backbones.weights import LoadReport, WeightsError, load_weights, model_from_file, save_weights
from mixlab.backbones.zoo import create_model, list_models

__version__ = "0.1.0"
__all__ = [
    "Backbone",
    "BinaryAUC",
    "Features",
    "LoadReport",
    "TokenLayout",
    "WeightsError",
    "binary_auc",
    "create_model",
    "list_models",
    "load_weights",
    "model_from_file",
    "save_weights",
]
