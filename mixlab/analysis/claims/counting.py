"""Claims that counting decides: operations and parameters, from shapes alone."""

from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mixlab.analysis.claims.evidence import Status, Verdict
from mixlab.analysis.claims.theorems import listed, settled
from mixlab.analysis.cost import (
    count_macs,
    count_parameters,
    count_with_classifier,
    give_advice,
    on_meta,
)
from mixlab.analysis.equal_parts import running_equal_parts_once
from mixlab.backbones.block import Layer
from mixlab.backbones.meta import without_storage
from mixlab.evaluation.detection.detector import Detector
from mixlab.evaluation.detection.regions import DetectorConfig, RegionStage
from mixlab.evaluation.pyramid import Pyramid
from mixlab.evaluation.segmentation.upernet import UperNet
from mixlab.mixers import AttentionConfig, LinearAttentionConfig, Mamba2Config
from mixlab.ops.linear_attention.op import linear_attention
from mixlab.ops.ssd.op import ssd

MAMBAOUT = {  # MambaOut, Tables 1 and 4: parameters in M, MACs in G at 224 px; kobe: its README, no MACs given
    "femto": (7.3, 1.2),
    "kobe": (9.1, None),
    "tiny": (26.5, 4.5),
    "small": (48.5, 9.0),
    "base": (84.8, 15.8),
}
MASK_RCNN = {"tiny": (43, 262), "small": (65, 354), "base": (100, 495)}  # Table 2, at 800 x 1280
UPERNET = {"tiny": (54, 938), "small": (76, 1032), "base": (112, 1178)}  # Table 3, at 512 x 2048
_NUM_BOXES, _NUM_MASKS = 1000, 100  # regions that mmdetection's counter sends through the two heads
_DOUBLED = 2.05  # growth per doubling that still counts as linear; short lengths have fixed costs
_WIDTH = 512  # of a layer, for the cost of wider heads at one width


@settled
def linear_cost() -> Verdict:
    """Claim 19: count the scan's own multiplications at L, 2L, 4L and at N, 2N, 4N."""
    growth = {
        "L": _growth(_scan_flops(length, 64) for length in (1024, 2048, 4096)),
        "N": _growth(_scan_flops(2048, state) for state in (64, 128, 256)),
        "attention in L": _growth(map(_attention_flops, (1024, 2048, 4096))),
    }
    text = "each doubling multiplies the scan's arithmetic by at most " + listed(growth, "{:.2f}")
    holds = growth["L"] <= _DOUBLED and growth["N"] <= _DOUBLED
    return Verdict(Status.of(holds), text, growth["L"], scale="counted, as run on a CPU")


@settled
def linear_attention_cost() -> Verdict:
    """Claim 32: a head of linear attention at L, 2L, 4L and at D_QK, 2 D_QK, 4 D_QK; and whole layers of one width."""
    growth = {
        "L": _growth(_linear_flops(length, 64) for length in (1024, 2048, 4096)),
        "D_QK": _growth(_linear_flops(2048, width) for width in (64, 128, 256)),
    }
    per_layer = {
        "linear attention": _growth(LinearAttentionConfig(head_dim=p).mixing_macs(2048, _WIDTH) for p in (32, 64, 128)),
        "Mamba-2": _growth(Mamba2Config(state=n).mixing_macs(2048, _WIDTH) for n in (32, 64, 128)),
    }
    text = (
        f"each doubling multiplies the arithmetic of a head by at most {listed(growth, '{:.2f}')}: O(L D²) as stated. "
        f"But a layer of one width has half as many heads of twice the width: there doubling D_QK multiplies linear "
        f"attention's cost by {per_layer['linear attention']:.2f}, doubling N the scan's by "
        f"{per_layer['Mamba-2']:.2f}, so the square restricts D_QK no more than N"
    )
    holds = growth["L"] <= _DOUBLED and 3.8 <= growth["D_QK"] <= 2 * _DOUBLED
    return Verdict(Status.of(holds), text, growth["D_QK"], scale="counted, as run on a CPU")


@settled
def long_sequences() -> Verdict:
    """Claim 20: count the operations of a Transformer block, and compare the three tasks with 6D."""
    errors = []
    for dim, length in ((128, 64), (128, 1024), (192, 640)):
        counted = _block_flops(dim, length)
        errors.append(abs(counted / (24 * dim**2 * length + 4 * dim * length**2) - 1))
    tasks = {"ImageNet 224 px": (224, 224), "COCO 800 x 1280": (800, 1280), "ADE20K 512 x 2048": (512, 2048)}
    ratios = {
        f"{task}, D = {dim}": give_advice(height=height, width=width, patch=16, dim=dim).ratio
        for task, (height, width) in tasks.items()
        for dim in (384, 768)
    }
    short = all(ratio < 0.1 for name, ratio in ratios.items() if "ImageNet" in name)
    long_at_small = all(ratio > 1 for name, ratio in ratios.items() if "ImageNet" not in name and "384" in name)
    text = (
        f"the formula is exact to {max(errors):.0e} of the operations counted. L / 6D: {listed(ratios, '{:.2f}')}: "
        "the two dense tasks are long at the width of ViT-S, and just below the threshold at that of ViT-B"
    )
    holds = max(errors) < 1e-9 and short and long_at_small
    return Verdict(Status.of(holds), text, max(errors), scale="counted")


@settled
def mambaout_sizes() -> Verdict:
    """Claim 24: count parameters and multiply-accumulates on shapes."""
    counted = {}
    for size in MAMBAOUT:
        model = on_meta(f"mambaout_{size}")
        counted[size] = (count_with_classifier(model) / 1e6, count_macs(model, 224) / 1e9)
    # 0.05: one decimal is published; 1 %: what counters leave out (norms, the classifier's hidden layer).
    return _sizes(counted, MAMBAOUT, rounding=0.05, share=0.01, places=2, scale="counted at 224 px")


@settled
def dense_sizes() -> Verdict:
    """Claim 33: the same of MambaOut in Mask R-CNN and in UperNet."""
    counted, published = {}, {}
    for name, count, table in (("Mask R-CNN", _mask_rcnn, MASK_RCNN), ("UperNet", _upernet, UPERNET)):
        for size, figures in table.items():
            counted[f"{name} {size}"], published[f"{name} {size}"] = count(size), figures
    regions = f"{_NUM_BOXES} regions through the box head, {_NUM_MASKS} through the mask head"
    scale = f"counted at 800 x 1280 and 512 x 2048; {regions}"
    return _sizes(counted, published, rounding=0.5, share=0.003, places=1, scale=scale)


def _sizes(
    counted: dict[str, tuple[float, float]],
    published: dict[str, tuple[float, float | None]] | dict[str, tuple[int, int]],
    *,
    rounding: float,
    share: float,
    places: int,
    scale: str,
) -> Verdict:
    wrong = [
        name
        for name, figures in counted.items()
        if not all(
            known is None or abs(found - known) <= rounding + share * known
            for found, known in zip(figures, published[name], strict=True)
        )
    ]
    found = [f"{name} {params:.1f} M, {macs:.{places}f} G" for name, (params, macs) in counted.items()]
    text = "; ".join(found) + (f"; differ from the published values: {', '.join(wrong)}" if wrong else "")
    return Verdict(Status.of(not wrong), text, n=len(found), scale=scale)


def _growth(counts: Iterable[int]) -> float:
    """The largest factor from one count to the next."""
    return max(second / first for first, second in pairwise(counts))


def _flops(run: Callable[[], object], network: nn.Module | None = None) -> int:
    """Equal parts of a network run once."""
    with (
        torch.device("meta"),
        torch.no_grad(),
        FlopCounterMode(display=False) as counter,
        running_equal_parts_once(network or nn.Identity(), counter, {}) as parts,
    ):
        run()
        return parts.total


def _scan_flops(length: int, state: int) -> int:
    def run() -> None:
        q, v = torch.empty(1, length, 1, state), torch.empty(1, length, 2, 64)
        ssd(q, q, v, torch.empty(1, length, 2), torch.empty(2), torch.empty(2))

    return _flops(run)


def _linear_flops(length: int, width: int) -> int:
    def run() -> None:
        tokens = torch.empty(1, 1, length, width)
        linear_attention(tokens, tokens, tokens, causal=False)

    return _flops(run)


def _attention_flops(length: int) -> int:
    def run() -> None:
        tokens = torch.empty(1, 2, length, 64)
        nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)

    return _flops(run)


def _block_flops(dim: int, length: int) -> int:
    def run() -> None:
        layer = Layer(dim=dim, depth=1, mixer=AttentionConfig(), norm="layer", mlp_ratio=4.0, drop_path=0.0)
        tokens = torch.empty(1, length, dim)
        layer(tokens, tokens, (1, length))

    return _flops(run)


@cache
def _pyramid(size: str) -> Pyramid:
    with without_storage():
        return Pyramid(on_meta(f"mambaout_{size}"))


def _mask_rcnn(size: str) -> tuple[float, float]:
    with without_storage():
        network = Detector(_pyramid(size), DetectorConfig(), num_classes=80).eval()

    def run() -> None:
        network.proposals.head(network.maps(torch.empty(1, 3, 800, 1280)))
        (stage,) = network.regions.stages
        assert isinstance(stage, RegionStage)
        channels = network.regions.config.channels
        stage.boxes(torch.empty(_NUM_BOXES, channels, 7, 7))
        stage.masks(torch.empty(_NUM_MASKS, channels, 14, 14))

    return count_parameters(network) / 1e6, _flops(run, network) / 2e9


def _upernet(size: str) -> tuple[float, float]:
    with without_storage():
        network = UperNet(_pyramid(size), num_classes=150).eval()
    return count_parameters(network) / 1e6, _flops(lambda: network(torch.empty(1, 3, 512, 2048)), network) / 2e9
