"""The cost of a backbone: parameters and multiply-accumulates, counted from shapes, and measured speed."""

import time
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils.flop_counter import FlopCounterMode

from mixlab.analysis.equal_parts import Known, running_equal_parts_once
from mixlab.backbones.backbone import Backbone
from mixlab.backbones.meta import without_storage
from mixlab.backbones.weights import build_architecture
from mixlab.backbones.zoo import SHIPPED, create_model
from mixlab.errors import InputError
from mixlab.evaluation.target import Target
from mixlab.mixers import AttentionConfig, GatedConvConfig, LinearAttentionConfig, Mamba2Config
from mixlab.run import Measurement
from mixlab.run.protocols import SpeedProtocol
from mixlab.statistics import median_interval

Length = Literal["short", "near the threshold", "long"]


@dataclass(frozen=True)
class MixerCost:
    """One layer for one image: FLOPs are two per multiply-accumulate."""

    mixer: str
    mixing_flops: int  # between tokens only
    layer_flops: int  # with the projections (and the MLP of a transformer) around it
    growth: str  # how the mixing grows with the number of tokens
    mixing_bytes: int  # extra memory of the mixing in bf16: a matrix if it is built, or a state


@dataclass(frozen=True)
class Advice:
    num_tokens: int
    threshold: int  # 6 D
    length: Length
    costs: list[MixerCost]
    answer: str

    @property
    def ratio(self) -> float:
        """The quadratic part of a Transformer block over its linear part: L / 6D."""
        return self.num_tokens / self.threshold


def give_advice(*, height: int, width: int, patch: int, dim: int, autoregressive: bool = False) -> Advice:
    """Compare an image size and a width with MambaOut's criterion."""
    for name, value in {"height": height, "width": width, "patch": patch, "dim": dim}.items():
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    if height < patch or width < patch:
        raise InputError(f"a {height}x{width} image holds no {patch}px patch; try a smaller patch")
    num_tokens = (height // patch) * (width // patch)
    threshold = 6 * dim  # MambaOut, equation 7: 4DL² > 24D²L when L > 6D
    ratio = num_tokens / threshold
    # The paper counts 4,000 tokens at D = 768 (ratio 0.87) as long: "approximately" the threshold.
    length: Length = "long" if ratio > 1 else "near the threshold" if ratio > 0.75 else "short"
    costs = mixer_costs(num_tokens, dim)
    return Advice(num_tokens, threshold, length, costs, _answer(num_tokens, threshold, length, costs, autoregressive))


def mixer_costs(num_tokens: int, dim: int) -> list[MixerCost]:
    """Costs of one layer of each kind at equal width, each mixer with its defaults."""
    L, D = num_tokens, dim
    attention, linear, mamba, gated = AttentionConfig(), LinearAttentionConfig(), Mamba2Config(), GatedConvConfig()
    softmax, product, scan, window = (2 * mixer.mixing_macs(L, D) for mixer in (attention, linear, mamba, gated))
    transformer = 24 * D * D * L  # MambaOut, equation 6: projections and an MLP of ratio 4
    heads = max(D // attention.head_dim, 1)
    inner = mamba.expand * D
    mamba_projections = 2 * L * D * (2 * inner + 2 * mamba.state + inner // mamba.head_dim + inner)
    states = 2 * mamba.num_directions * inner * mamba.state
    gated_projections = 2 * L * D * 3 * gated.expand * D
    return [
        MixerCost("softmax attention", softmax, transformer + softmax, "quadratic", 2 * heads * L * L),
        MixerCost("linear attention", product, transformer + product, "linear", 2 * D * linear.head_dim),
        MixerCost("Mamba-2, two-way", scan, mamba_projections + scan, "linear", states),
        MixerCost("gated convolution 7x7", window, gated_projections + window, "linear", 0),
    ]


def _answer(num_tokens: int, threshold: int, length: Length, costs: list[MixerCost], autoregressive: bool) -> str:
    attention, _, scan, window = costs
    share = attention.mixing_flops / attention.layer_flops
    first = (
        f"{num_tokens:,} tokens against a threshold of {threshold:,}: the sequence is {length}. "
        f"Mixing is {share:.0%} of a transformer layer's arithmetic here. "
    )
    if autoregressive:
        return first + (
            "The task generates token by token, so a causal mixer fits it: a Mamba-2 scan keeps a state of fixed size, "
            "where attention keeps every token."
        )
    if length == "short":
        return first + (
            "Attention is affordable, and MambaOut's argument is that a state-space scan brings nothing needed at this "
            f"length: take softmax attention for quality, or a gated convolution for the cheapest layer "
            f"({window.layer_flops / attention.layer_flops:.2f} of attention's arithmetic)."
        )
    times = attention.mixing_flops / scan.mixing_flops
    if times < 1:  # MambaOut's criterion compares with projections, which are small in a narrow network
        return first + (
            f"But in a network this narrow attention's mixing costs {times:.1f} times the two-way scan's: take softmax "
            "attention."
        )
    return first + (
        f"Attention's mixing costs {times:.1f} times the two-way scan's and grows with the square of the tokens: a "
        "Mamba-2 scan, or linear attention where less expressive mixing will do, is worth trying here. The first paper "
        "finds softmax attention still ahead in accuracy where it fits; measure with `mixlab bench backbone`."
    )


TIMED_BATCH, TIMED_SECONDS = 16, 0.6


def on_meta(name: str, **fields: Any) -> Backbone:
    """The backbone without storage: shapes only."""
    shipped = create_model(name, **fields).architecture() if name in SHIPPED else None  # its shape is in its file
    with without_storage():
        model = create_model(name, **fields) if shipped is None else build_architecture(shipped)
        return model.eval().requires_grad_(False)


def count_macs(model: Backbone, image: int, *, known: Known | None = None) -> int:
    """Multiply-accumulates of one image of so many px through a backbone on the meta device, as its forward pass runs.

    Matrix products, convolutions and attention are counted; norms, gates and the taps of Mamba's convolution are not.
    Equal parts run once; networks that are given the same `known` share them.
    """
    counter = FlopCounterMode(display=False)
    with (
        torch.device("meta"),
        counter,
        running_equal_parts_once(model, counter, {} if known is None else known) as parts,
    ):
        model(torch.empty(1, model.channels, image, image))
        return parts.total // 2


def count_parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def count_with_classifier(model: Backbone) -> int:
    """Parameters with the classifier that papers count, of 1,000 classes: a linear layer on the summary, or timm's own
    head."""
    with without_storage():
        return count_parameters(model.with_classifier(1000))


def measure_cost(target: Target) -> dict[str, Any]:
    """Parameters, multiply-accumulates and images per second of a forward pass at the backbone's own image size."""
    backbone, size = target.backbone, target.backbone.image
    with without_storage():
        flat = build_architecture(backbone.architecture()).eval().requires_grad_(False)
    rate = median_interval(_images_per_second(backbone, size))
    device = str(next(backbone.parameters()).device)
    threads = torch.get_num_threads() if device == "cpu" else None
    protocol = SpeedProtocol(data="noise", px=size, batch=TIMED_BATCH, precision="fp32", device=device, threads=threads)
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
