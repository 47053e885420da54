"""Parameters and multiply-accumulates, counted on shapes alone: no weights are made, nothing is typed in."""

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from mixlab.backbones.backbone import Backbone
from mixlab.backbones.zoo import create_model


def on_meta(name: str, **fields: Any) -> Backbone:
    """The backbone without storage: shapes only."""
    with torch.device("meta"):
        return create_model(name, **fields).eval().requires_grad_(False)


def count_macs(model: Backbone, height: int, width: int | None = None) -> int:
    """Multiply-accumulates of one image through a backbone on the meta device, as its forward pass runs.

    Matrix products, convolutions and attention are counted; norms, gates and the taps of Mamba's convolution are not.
    """
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model(torch.empty(1, model.channels, height, width or height))
    return counter.get_total_flops() // 2


def count_parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def count_with_classifier(model: Backbone, num_classes: int = 1000) -> int:
    """Parameters with the classifier that papers count: a linear layer on the summary, or timm's own head."""
    with torch.device("meta"):
        return count_parameters(model.with_classifier(num_classes))
