"""A laboratory for vision token mixers: pretrain them, probe them, look inside them."""

from typing import TYPE_CHECKING

import mixlab.backbones.timm_registry  # noqa: F401  registers the zoo with timm
from mixlab.analysis.binary_auc import binary_auc
from mixlab.backbones.backbone import Backbone
from mixlab.backbones.tokens import Features, TokenLayout
from mixlab.backbones.weights import LoadReport, WeightsError, load_weights, model_from_file, save_weights
from mixlab.backbones.zoo import create_model, list_models

if TYPE_CHECKING:
    from mixlab.analysis.binary_auc_metric import BinaryAUC
else:

    def __getattr__(name: str) -> object:
        """BinaryAUC, once it is asked for: nothing else here needs torchmetrics, and that imports much."""
        if name != "BinaryAUC":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from mixlab.analysis.binary_auc_metric import BinaryAUC

        return BinaryAUC


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


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
