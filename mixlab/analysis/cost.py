"""What a backbone costs: parameters and multiply-accumulates, counted on shapes alone, and measured speed."""

import time
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from mixlab.backbones.backbone import Backbone
from mixlab.backbones.weights import build_architecture
from mixlab.backbones.zoo import create_model
from mixlab.evaluation.target import Target
from mixlab.run import Measurement
from mixlab.run.protocols import SpeedProtocol
from mixlab.statistics import median_interval

TIMED_BATCH, TIMED_SECONDS = 16, 0.6


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


def measure_cost(target: Target) -> dict[str, Any]:
    """Parameters, multiply-accumulates and images per second of a forward pass at the backbone's own image size."""
    backbone, size = target.backbone, target.backbone.image
    with torch.device("meta"):
        flat = build_architecture(backbone.architecture()).eval().requires_grad_(False)
    rate = median_interval(_images_per_second(backbone, size))
    device = str(next(backbone.parameters()).device)
    protocol = SpeedProtocol(data="noise", px=size, batch=TIMED_BATCH, precision="fp32", device=device)
    measured = Measurement.of("images_per_s", rate, subject=target.subject, protocol=protocol, seed=target.seed)
    return {
        "kind": "cost",
        "subject": target.describe(),
        "image": size,
        "batch": TIMED_BATCH,
        "threads": torch.get_num_threads(),
        "num_parameters": count_parameters(backbone),
        "macs": count_macs(flat, size),
        "images_per_s": rate.value,
        "measurements": [measured.to_json()],
    }


@torch.no_grad()
def _images_per_second(backbone: Backbone, size: int) -> list[float]:
    """Rates of forward passes, as many as fit into the time; the first two only warm up."""
    images = torch.zeros(TIMED_BATCH, backbone.channels, size, size)
    rates: list[float] = []
    start = time.perf_counter()
    while len(rates) < 12 or (time.perf_counter() - start < TIMED_SECONDS and len(rates) < 100):
        before = time.perf_counter()
        backbone(images)
        rates.append(TIMED_BATCH / (time.perf_counter() - before))
    return rates[2:]
