"""Binary-AUC of a backbone's maps over a set of images, never alone: beside each figure stand the centre prior, the
untrained twin, the paired differences to both, and the centre-matched score.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mixlab.analysis.binary_auc import binary_auc, centre_matched_auc, centre_prior, roc_curves
from mixlab.analysis.foreground import split_mask
from mixlab.analysis.maps import default_map, find_map
from mixlab.analysis.subjects import MaskedImages
from mixlab.backbones.backbone import Backbone, Layers
from mixlab.data.mask_values import IGNORE
from mixlab.errors import InputError
from mixlab.evaluation.target import Target
from mixlab.statistics import Estimate, bootstrap_difference, bootstrap_mean

Progress = Callable[[str, int], None]
FALSE_POSITIVE_RATES = torch.linspace(0, 1, 101, dtype=torch.float64)


@dataclass
class MapScores:
    """Raw AUC of every map of one backbone, per image: NaN where a mask has no foreground or no background."""

    map_name: str
    grid: tuple[int, int]
    layers: list[int]
    raw: Tensor  # (n, layers, K)
    matched: Tensor  # (n, layers, K): at equal distance from the centre
    prior: Tensor  # (n, layers): the centre prior on the same images and grid
    roc: Tensor  # (n, K, len(FALSE_POSITIVE_RATES)): true positive rates of the last layer's maps

    @property
    def num_maps(self) -> int:
        """K: heads or registers, or 1."""
        return self.raw.shape[2]


class Scorer:
    """Scores subjects on one set of images; each backbone, map and choice of layers is run once."""

    def __init__(
        self, images: MaskedImages, *, twins: bool = True, seed: int = 0, progress: Progress | None = None
    ) -> None:
        self.images, self.twins, self.seed = images, twins, seed
        self._progress = progress or (lambda label, num_images: None)
        self._known: dict[Any, MapScores] = {}

    def scores(self, subject: Target, map_name: str | None = None, layers: Layers = 1) -> MapScores:
        return self._of(subject.label, subject.backbone, map_name, layers)

    def twin_scores(self, subject: Target, map_name: str | None = None, layers: Layers = 1) -> MapScores | None:
        if not self.twins:
            return None
        key = (f"{subject.label}, untrained", map_name, str(layers))
        if key not in self._known:
            seed = self.seed if subject.seed is None else subject.seed  # seeds of a study have twins of their own
            self._of(key[0], subject.backbone.twin(seed), map_name, layers)
        return self._known[key]

    def _of(self, label: str, backbone: Backbone, map_name: str | None, layers: Layers) -> MapScores:
        key = (label, map_name, str(layers))
        if key not in self._known:
            self._known[key] = self._measure(label, backbone, map_name or default_map(backbone), layers)
        return self._known[key]

    def _measure(self, label: str, backbone: Backbone, map_name: str, layers: Layers) -> MapScores:
        kind, grid, indices = find_map(map_name), (0, 0), list[int]()
        parts: list[tuple[Tensor, ...]] = []
        for batch in self.images:
            raw: dict[int, Tensor] = {}
            matched: dict[int, Tensor] = {}
            prior: dict[int, Tensor] = {}
            for layer, maps in kind.by_layer(backbone, backbone.preprocess(batch.images), layers):
                maps = maps.float().cpu()
                maps = maps if maps.ndim == 4 else maps[:, None]  # (B, K, h, w)
                grid = (maps.shape[-2], maps.shape[-1])
                small = masks_on_grid(batch.masks, grid)
                prior[layer] = _raw_auc(centre_prior(*grid).expand(len(small), -1, -1), small)
                masks = small.repeat_interleave(maps.shape[1], dim=0)
                raw[layer] = _raw_auc(maps.flatten(0, 1), masks).unflatten(0, maps.shape[:2])
                matched[layer] = _matched_auc(maps.flatten(0, 1), masks).unflatten(0, maps.shape[:2])
            indices = list(raw)
            roc = true_positive_rates(maps.flatten(0, 1), masks).unflatten(0, maps.shape[:2])
            by_layer = (torch.stack(list(scores.values()), dim=1) for scores in (raw, matched, prior))
            parts.append((*by_layer, roc))
            self._progress(label, len(batch.names))
        if not parts:
            raise InputError(f"no image with a mask could be read. {self.images.skipped.summary()}")
        return MapScores(map_name, grid, indices, *(torch.cat(column) for column in zip(*parts, strict=True)))


def masks_on_grid(masks: Tensor, grid: tuple[int, int]) -> Tensor:
    """Masks (B, H, W) as `binary_auc` takes them to a grid: uint8 (B, h, w) of 0, 1 and IGNORE, once for all maps."""
    foreground, background = split_mask(masks, grid, ignore=IGNORE)
    return torch.where(foreground, 1, torch.where(background, 0, IGNORE)).to(torch.uint8)


def true_positive_rates(maps: Tensor, masks: Tensor) -> Tensor:
    """Each image's ROC curve read at FALSE_POSITIVE_RATES, (B, 101), to be averaged; NaN where undefined."""
    curves = roc_curves(maps, masks, ignore=IGNORE)
    false_rates = curves.false_positive_rate.nan_to_num(0.0).contiguous()
    wanted = FALSE_POSITIVE_RATES.expand(len(false_rates), -1) + 1e-12  # rates are ratios: allow for rounding
    last = torch.searchsorted(false_rates, wanted, right=True) - 1
    return curves.true_positive_rate.gather(1, last)


def _raw_auc(maps: Tensor, masks: Tensor) -> Tensor:
    return binary_auc(maps, masks, ignore=IGNORE, normalize=False)


def _matched_auc(maps: Tensor, masks: Tensor) -> Tensor:
    return centre_matched_auc(maps, masks, ignore=IGNORE)


def either_sign(raw: Tensor) -> Tensor:
    """The paper's normalised score, max(AUC, 1 - AUC) of each image."""
    return torch.maximum(raw, 1 - raw)


def score_row(raw: Tensor, matched: Tensor, prior: Tensor, twin: Tensor | None) -> dict[str, Any]:
    """One line of a table from per-image raw scores (n,): every figure with its 95 % bootstrap interval over images."""
    auc, prior_auc = either_sign(raw), either_sign(prior)
    row = {
        "auc": as_dict(bootstrap_mean(auc)),
        "raw_auc": as_dict(bootstrap_mean(raw)),
        "centre_matched_auc": as_dict(bootstrap_mean(matched)),
        "centre_prior": as_dict(bootstrap_mean(prior_auc)),
        "above_centre_prior": as_dict(bootstrap_difference(auc, prior_auc)),
    }
    if twin is not None:
        row["untrained"] = as_dict(bootstrap_mean(either_sign(twin)))
        row["above_untrained"] = as_dict(bootstrap_difference(auc, either_sign(twin)))
    return row


def as_dict(found: Estimate) -> dict[str, float | int | None]:
    """For JSON, which has no NaN."""
    mean = None if np.isnan(found.value) else found.value
    return {"mean": mean, "low": found.low, "high": found.high, "n": found.n, "undefined": found.num_dropped}


def as_array(scores: Tensor) -> NDArray[np.float64]:
    return scores.numpy().astype(np.float64)
