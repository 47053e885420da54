"""High-norm tokens: some networks park what is not about a patch in a few patches, whose norm in the residual stream is
then many times that of the others (Darcet et al., Vision Transformers Need Registers, arXiv 2309.16588).

A patch is a high-norm one if its norm is more than `factor` times the median over the patches of the same image, in the
same layer. The paper cuts at one norm for one network (150 for DINOv2-g); the median makes layers, networks and
untrained twins comparable.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mixlab.analysis.exhibit import Exhibit, Picture
from mixlab.analysis.patches import is_on_border
from mixlab.analysis.registry import register_analysis
from mixlab.analysis.viewed_images import ViewedImages
from mixlab.backbones.backbone import Backbone
from mixlab.backbones.tokens import Features
from mixlab.errors import InputError
from mixlab.evaluation.target import Target
from mixlab.run import UNTRAINED, Measurement
from mixlab.run.directory import file_name
from mixlab.run.protocols import NormProtocol
from mixlab.statistics import (
    Estimate,
    bootstrap_difference,
    bootstrap_mean,
    paired_accuracy_difference,
    wilson_interval,
)

FACTOR = 3.0  # 150 is about three times the median norm of DINOv2-g in the paper's Figure 3
NUM_DRAWN_LAYERS = 6
ABOUT = (
    "Norms of patches in the residual stream, before any norm layer. A patch is a high-norm one if its norm exceeds "
    "{factor:g} times the median of its image. The table shows the layer with the most of them. Networks that were "
    "trained long without registers are known to keep global information in such patches; untrained twins "
    "show what the architecture does by itself."
)


@dataclass(frozen=True)
class LayerNorms:
    """One layer of one network, over all images."""

    share: NDArray[np.float64]  # (n,) of the patches of each image that are high
    largest: NDArray[np.float64]  # (n,) norm over the median of the image
    frequency: NDArray[np.float64]  # (h, w) how often each place is high
    first: NDArray[np.float64]  # (h, w) of the first image: norms over their median
    median: float
    class_token: float | None  # norm over the median of patches, on average; None: there is none
    registers: float | None

    @property
    def at_border(self) -> float | None:
        """The share of the high-norm patches that are outermost; None where there are none."""
        total = self.frequency.sum()
        return float(self.frequency[is_on_border(self.frequency.shape).numpy()].sum() / total) if total else None


@register_analysis("norms", num_images=32)
@torch.no_grad()
def measure_norms(
    targets: Sequence[Target],
    images: ViewedImages,
    *,
    factor: float = FACTOR,
    twins: bool = True,
    seed: int = 0,
    progress: Callable[[], None] | None = None,
) -> Exhibit:
    """Measure high-norm tokens by layer: how many there are and where, compared with an untrained twin.

    Args:
        factor: a patch is high-norm if its norm exceeds this multiple of the median norm of its image.
        twins: also measure each trained model's untrained twin on the same images.
    """
    if not 1 < factor < 1e6:
        raise InputError(f"factor is {factor:g}; it must lie between 1 and 1e6: try {FACTOR:g}")
    if images.view.fit == "whole":
        raise InputError("how often a patch is high-norm is a mean over images of one shape; choose another --fit")
    found: dict[str, list[LayerNorms]] = {}
    rows: list[tuple[str | float | None, ...]] = []
    measurements: list[Measurement] = []
    for target in targets:
        own = found[target.label] = norms_by_layer(target.backbone, images, factor)
        twin_seed = seed if target.seed is None else target.seed
        twin = None
        if twins and target.training != UNTRAINED:
            twin = norms_by_layer(target.backbone.twin(twin_seed), images, factor)
            found[f"{target.label}, untrained"] = twin
        protocol = NormProtocol(**images.choices, factor=factor, twin_seed=None if twin is None else twin_seed)
        measurements += _measurements(target, own, twin, protocol)
        rows.append(_row(target.label, own, twin))
        if progress is not None:
            progress()
    first = next(iter(images)).images[0]
    return Exhibit(
        title="High-norm tokens",
        about=ABOUT.format(factor=factor),
        columns=COLUMNS,
        rows=rows,
        pictures=_pictures(found, targets, first, factor),
        measurements=measurements,
        arrays=_arrays(found),
        content={"layers": {label: [_summary(layer) for layer in layers] for label, layers in found.items()}},
    )


def norms_by_layer(backbone: Backbone, images: Iterable[Any], factor: float) -> list[LayerNorms]:
    """Every layer of one network."""
    batches = [list(_batch_norms(backbone, backbone.preprocess(batch.images), factor)) for batch in images]
    return [_joined(parts) for parts in zip(*batches, strict=True)]


def _batch_norms(backbone: Backbone, pixels: Tensor, factor: float) -> Iterator[tuple[Tensor, LayerNorms]]:
    for _, features in backbone.features(pixels, layers=None, norm=False):
        norms = features.patches.double().norm(dim=-1)  # (B, h, w)
        median = norms.flatten(1).median(1).values.clamp(min=torch.finfo(torch.float32).tiny)  # (B,)
        ratios = (norms / median[:, None, None]).cpu()
        high = ratios > factor
        yield (
            high,
            LayerNorms(
                share=high.double().mean((1, 2)).numpy(),
                largest=ratios.flatten(1).amax(1).numpy(),
                frequency=high.double().mean(0).numpy(),
                first=ratios[0].numpy(),
                median=float(median.mean()),
                class_token=_beside(backbone, features, median),
                registers=_of(features.registers, median),
            ),
        )


def _beside(backbone: Backbone, features: Features, median: Tensor) -> float | None:
    layout = backbone.layout
    has_one = layout.place in ("middle", "back") or (layout.place == "front" and layout.class_token)
    return _of(features.summary[:, None], median) if has_one else None


def _of(tokens: Tensor, median: Tensor) -> float | None:
    """Tokens (B, R, D): their mean norm over the median of the patches."""
    return float((tokens.double().norm(dim=-1) / median[:, None]).mean()) if tokens.shape[1] else None


def _joined(parts: Sequence[tuple[Tensor, LayerNorms]]) -> LayerNorms:
    high, lead = torch.cat([part[0] for part in parts]), parts[0][1]
    sizes = [len(part.share) for _, part in parts]

    def mean(name: str) -> Any:
        values = [getattr(part, name) for _, part in parts]
        return None if None in values else float(np.average(values, weights=sizes))

    return replace(
        lead,
        share=np.concatenate([part.share for _, part in parts]),
        largest=np.concatenate([part.largest for _, part in parts]),
        frequency=high.double().mean(0).numpy(),
        median=mean("median"),
        class_token=mean("class_token"),
        registers=mean("registers"),
    )


COLUMNS = ("model", "layer", "high-norm %", "95 %", "untrained %", "largest / median", "at border %", "by chance %")


def _row(label: str, own: list[LayerNorms], twin: list[LayerNorms] | None) -> tuple[str | float | None, ...]:
    """The layer with the largest share; where no patch is high, the one with the largest norm."""
    most = max(range(len(own)), key=lambda index: (own[index].share.mean(), own[index].largest.mean()))
    layer, estimate = own[most], _mean_share(own[most].share)
    return (
        label,
        most,
        _percent(estimate.value),
        "-" if estimate.low is None else f"{100 * estimate.low:.1f} to {100 * (estimate.high or 0):.1f}",
        None if twin is None else _percent(float(twin[most].share.mean())),
        round(float(layer.largest.mean()), 2),
        None if layer.at_border is None else _percent(layer.at_border),
        _percent(float(is_on_border(layer.frequency.shape).double().mean())),
    )


def _mean_share(shares: NDArray[np.float64]) -> Estimate:
    """Where no image has high-norm patches, resampling knows no other: Wilson's bound on how many images have some."""
    return bootstrap_mean(shares, low=0.0, high=1.0) if shares.any() else wilson_interval(0, len(shares))


def _share_difference(shares: NDArray[np.float64], others: NDArray[np.float64]) -> Estimate:
    if shares.any() or others.any():
        return bootstrap_difference(shares, others, low=-1.0, high=1.0)
    return paired_accuracy_difference(shares > 0, others > 0)


def _percent(share: float) -> float:
    return round(100 * share, 2)


def _measurements(
    target: Target, own: list[LayerNorms], twin: list[LayerNorms] | None, protocol: NormProtocol
) -> Iterator[Measurement]:
    for index, layer in enumerate(own):
        alone = replace(protocol, layer=index, twin_seed=None)
        found: list[tuple[str, Estimate, NormProtocol]] = [
            ("high_norm_share", _mean_share(layer.share), alone),
            ("largest_norm", bootstrap_mean(layer.largest, low=0.0), alone),
        ]
        if layer.at_border is not None:
            found.append(("high_norm_at_border", Estimate(layer.at_border, None, None, len(layer.share)), alone))
        if twin is not None:
            beside = replace(protocol, layer=index)
            gap = _share_difference(layer.share, twin[index].share)
            found.append(("untrained_high_norm_share", _mean_share(twin[index].share), beside))
            found.append(("high_norm_above_untrained", gap, beside))
        for metric, estimate, how in found:
            yield Measurement.of(metric, estimate, subject=target.subject, protocol=how, seed=target.seed)


def _summary(layer: LayerNorms) -> dict[str, Any]:
    return {
        "median_norm": layer.median,
        "high_norm_share": float(layer.share.mean()),
        "images_with_any": float((layer.share > 0).mean()),
        "largest_over_median": float(layer.largest.mean()),
        "at_border": layer.at_border,
        "class_token_over_median": layer.class_token,
        "registers_over_median": layer.registers,
    }


def _arrays(found: dict[str, list[LayerNorms]]) -> dict[str, NDArray[Any]]:
    """Of every network: maps of the first image, and how often each place is high; where grids shrink, by layer."""
    return {
        f"{what}_{file_name(label)}_{index}": getattr(layer, what).astype(np.float32)
        for label, layers in found.items()
        for index, layer in enumerate(layers)
        for what in ("first", "frequency")
    }


def _pictures(
    found: dict[str, list[LayerNorms]], targets: Sequence[Target], image: Tensor, factor: float
) -> list[Picture]:
    families = {target.label: target.family for target in targets}

    maps = {label: _some_layers(layers) for label, layers in found.items()}

    def draw_maps() -> Any:
        from mixlab.analysis.figures import layer_pictures

        return layer_pictures(image.numpy(), maps, marked=factor, label="norm / median")

    def draw_curves() -> Any:
        from mixlab.analysis.figures import layer_curves, line_styles, untrained_style

        styles = line_styles(families)
        styles |= {f"{label}, untrained": untrained_style(style) for label, style in styles.items()}
        shares = {label: [100 * float(layer.share.mean()) for layer in layers] for label, layers in found.items()}
        largest = {label: [float(layer.largest.mean()) for layer in layers] for label, layers in found.items()}
        return [
            layer_curves(shares, "high-norm patches, %", "Share of high-norm patches", styles),
            layer_curves(largest, "largest norm / median", "Largest norm", styles),
        ]

    return [
        Picture(
            "maps",
            "Norm of each patch of the first image over the median of the image, by layer, on one scale. A ring marks "
            f"a high-norm patch, above {factor:g} times the median. Below each model, its untrained twin.",
            draw_maps,
        ),
        Picture("by_layer", "By layer, over all images. Dashed: untrained twins, on the same images.", draw_curves),
    ]


def _some_layers(layers: Sequence[LayerNorms]) -> dict[str, NDArray[np.float64]]:
    chosen = np.unique(np.linspace(0, len(layers) - 1, min(len(layers), NUM_DRAWN_LAYERS)).round().astype(int))
    return {f"layer {index}": layers[index].first for index in chosen.tolist()}
