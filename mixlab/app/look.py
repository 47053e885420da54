"""One look at one model and one picture: the answers of the page, computed."""

import math
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mixlab.analysis.binary_auc import binary_auc, centre_prior, roc_curves
from mixlab.analysis.maps import MapOfFeatures, find_map, summary_rows
from mixlab.analysis.pca import pca_maps
from mixlab.app.jobs import Progress
from mixlab.app.questions import MaskedQuestion, ModelCard, RowQuestion, RowsQuestion, decode_runs
from mixlab.app.traces import Sight, Traces
from mixlab.backbones.tokens import Features
from mixlab.data.masks import IGNORE
from mixlab.errors import InputError
from mixlab.mixers import Mixing, SelectiveMixing, SSDMixing

MATRIX_SIDE = 256  # cells a side of a drawn matrix
DECADES = 4  # its darkest shade is at most so many powers of ten below its brightest
ROC_POINTS = 200
MAX_ROWS = 1100  # patches of a view that is exported, about 32 x 32 in any shape: so many rows are 1 MB
SIMILARITY = "cosine of features, negative as 0"


class Look:
    """A model and a picture at one layer. Each method is one kind of answer."""

    def __init__(self, traces: Traces, sight: Sight, card: ModelCard, *, layer: int, progress: Progress) -> None:
        if layer >= card.num_layers:
            raise InputError(f"{card.id} has no layer {layer}; choose 0 to {card.num_layers - 1}")
        self._traces, self._sight, self._card, self._layer, self._progress = traces, sight, card, layer, progress

    def map(self, name: str) -> dict[str, Any]:
        chosen = self._chosen(name)
        return {"map": chosen, "values": self._map(chosen, self._layer).numpy()}

    def pca(self) -> dict[str, Any]:
        found = pca_maps(self._features(self._layer).patches)
        return {
            "first": found.first[0].numpy(),
            "foreground": found.foreground[0].numpy().astype(np.uint8),
            "colours": (found.colours[0] * 255).round().to(torch.uint8).numpy(),
            "explained": found.explained[0].tolist(),
        }

    def matrix(self, head: int | None) -> dict[str, Any]:
        """|matrix| in logarithmic shades; with more tokens than cells, a cell shows its largest."""
        grid = self._features(self._layer).grid
        weights, name = self._weights(head)
        pooled = F.adaptive_max_pool2d(weights.abs()[None], min(MATRIX_SIDE, len(weights)))[0]
        low, high = float(pooled.min()), float(pooled.max())
        low = max(low, high * 10.0**-DECADES)
        return {
            "shades": _log_shades(pooled, low, high).numpy(),
            "low": low,
            "high": high,
            "num_tokens": len(weights),
            "head_name": name,
            "grid": list(grid),
            "patch_tokens": self._patch_tokens(grid),
        }

    def row(self, question: RowQuestion) -> dict[str, Any]:
        grid = self._features(self._layer).grid
        matrix, name = self._weights(question.head)
        down, right = (min(int(p * n), n - 1) for p, n in zip((question.y, question.x), grid, strict=True))
        patches = self._patch_tokens(grid)
        token = patches[down * grid[1] + right]
        weights = matrix[token] if question.sense == "row" else matrix[:, token]
        on_patches = weights[patches]
        total = float(weights.abs().sum()) or 1.0
        return {
            "values": on_patches.unflatten(0, grid).numpy(),
            "cell": [down, right],
            "token": token,
            "share_of_self": float(weights[token].abs()) / total,
            "share_of_extra": 1 - float(on_patches.abs().sum()) / total,  # class tokens and registers
            "head_name": name,
        }

    def rows(self, question: RowsQuestion) -> dict[str, Any]:
        """The rows (or columns) of all patches over all patches, each in shades of its own, as the page draws it: to be
        taken along.
        """
        grid = self._features(self._layer).grid
        num_patches = grid[0] * grid[1]
        if num_patches > MAX_ROWS:
            raise InputError(
                f"{self._card.id} has {num_patches} patches; a page can be saved with up to {MAX_ROWS}: "
                "start the page with a smaller --image, or choose a later layer"
            )
        matrix, name = self._weights(question.head)
        patches = self._patch_tokens(grid)
        weights = matrix.abs() if question.sense == "row" else matrix.abs().mT
        own = weights.diagonal()[patches] / weights[patches].sum(1).clamp(min=1e-30)
        among = weights[patches][:, patches]
        low, high = _ends(among, question.scale)
        scaled = Tensor.log if question.scale == "log" else Tensor.float
        first, last = scaled(low), scaled(high)
        shares = ((scaled(among.clamp(min=low)) - first) / (last - first).clamp(min=1e-30)).clamp(0, 1)
        return {
            "shades": (255 * shares).round().to(torch.uint8).numpy(),
            "low": low[:, 0].numpy(),
            "high": high[:, 0].numpy(),
            "own": own.numpy(),
            "grid": list(grid),
            "head_name": name,
        }

    def score(self, question: MaskedQuestion) -> dict[str, Any]:
        one = self._part(self._chosen(question.map), self._layer, question.part)
        mask = torch.from_numpy(decode_runs(question.mask))
        raw = _raw_auc(one, mask)
        if raw is None:
            return {"auc": None, "raw_auc": None, "centre_prior": None, "roc": None}
        curves = roc_curves(one[None], mask[None], ignore=IGNORE)
        rates = torch.stack([curves.false_positive_rate[0], curves.true_positive_rate[0]])  # (2, T)
        keep = torch.linspace(0, rates.shape[1] - 1, min(rates.shape[1], ROC_POINTS)).round().long()
        return {
            "auc": _either_sign(raw),
            "raw_auc": raw,
            "centre_prior": _either_sign(_raw_auc(centre_prior(one.shape[0], one.shape[1]), mask)),
            "roc": rates[:, keep].numpy(),
        }

    def sweep(self, question: MaskedQuestion) -> dict[str, Any]:
        chosen, mask = self._chosen(question.map), torch.from_numpy(decode_runs(question.mask))
        scores = []
        for layer in range(self._card.num_layers):
            scores.append(_either_sign(_raw_auc(self._part(chosen, layer, question.part), mask)))
            self._progress(layer + 1, self._card.num_layers, f"layer {layer} of {self._card.id}")
        return {"map": chosen, "auc": scores}

    def _chosen(self, name: str) -> str:
        if name == "default":
            return self._card.default_map
        find_map(name)
        if name not in self._card.maps:
            raise InputError(f"{self._card.id} has no map {name!r}; it has {', '.join(self._card.maps)}")
        return name

    def _map(self, name: str, layer: int) -> Tensor:
        """All parts of a map, (K, h, w)."""
        kind, features = find_map(name), self._features(layer)
        if isinstance(kind, MapOfFeatures):
            found = kind.read(features)
        else:
            mixing = self._mixing(layer)
            found = kind.read(summary_rows(mixing, self._sight.subject.backbone.layout, features.grid), mixing)
        return self._finite((found[0] if found.ndim == 4 else found).float().cpu(), f"the {name} map")

    def _part(self, name: str, layer: int, part: int | None) -> Tensor:
        """One map (h, w): the mean, or a part, the last where there are fewer. Heads of both directions share one."""
        stack = self._map(name, layer)
        if part is None:
            return stack.mean(0)
        return stack[part % len(stack) if name == "mixing_rows" else min(part, len(stack) - 1)]

    def _features(self, layer: int) -> Features:
        return self._traces.features(self._sight, self._progress)[layer]

    def _mixing(self, layer: int) -> Mixing:
        return self._traces.mixings(self._sight, self._progress)[layer]

    def _weights(self, head: int | None) -> tuple[Tensor, str]:
        """The mixing matrix (L, L) of a head or the mean of all, and its name.

        A model without one shows how alike the features of its patches are instead.
        """
        if not self._card.has_matrix:
            patches = self._finite(self._features(self._layer).patches[0].flatten(0, 1), "a feature")
            unit = F.normalize(patches, dim=-1)
            return (unit @ unit.mT).clamp(min=0), SIMILARITY
        mixing = self._mixing(self._layer)
        if head is not None and head >= mixing.num_heads:
            raise InputError(
                f"layer {self._layer} of {self._card.id} has no head {head}; choose 0 to {mixing.num_heads - 1}"
            )
        matrix = self._traces.matrix(self._sight, layer=self._layer, head=head, progress=self._progress)
        return self._finite(matrix, "the matrix"), head_name(mixing, head)

    def _finite(self, values: Tensor, what: str) -> Tensor:
        if not values.isfinite().all():
            raise InputError(f"{what} of {self._card.id} holds NaN or infinity; check the weights of its run")
        return values

    def _patch_tokens(self, grid: tuple[int, int]) -> list[int]:
        if not self._card.has_matrix:
            return list(range(grid[0] * grid[1]))
        return self._sight.subject.backbone.layout.patch_columns(grid[0] * grid[1])


def head_name(mixing: Mixing, head: int | None) -> str:
    if head is None:
        return f"mean of {mixing.num_heads} heads"
    name = f"head {head} (0 to {mixing.num_heads - 1})"
    if isinstance(mixing, SelectiveMixing):
        return f"{name}, scan {mixing.scan_of(head)}"
    if isinstance(mixing, SSDMixing) and mixing.num_reverse:
        return f"{name}, from the {'right' if head >= mixing.num_heads - mixing.num_reverse else 'left'}"
    return name


def _ends(weights: Tensor, scale: Literal["linear", "log"]) -> tuple[Tensor, Tensor]:
    """What is darkest and brightest in each row (N, 1) of the patches' own weights (N, N)."""
    own, most = torch.eye(len(weights), dtype=torch.bool), weights.amax(1, keepdim=True)
    least = weights.masked_fill(own, torch.inf).amin(1, keepdim=True).minimum(most)
    if scale == "log":
        return least.maximum(most * 10.0**-DECADES).clamp(min=1e-30), most
    return least, weights.masked_fill(own, 0).amax(1, keepdim=True)  # a patch itself often has nearly all of the weight


def _log_shades(values: Tensor, low: float, high: float) -> Tensor:
    """Values as bytes, on a logarithmic scale from low to high."""
    if high <= low:
        return torch.full_like(values, 255 if high > 0 else 0, dtype=torch.uint8)
    shares = (values.clamp(min=low) / low).log() / math.log(high / low)
    return (255 * shares).round().to(torch.uint8)


def _raw_auc(one: Tensor, mask: Tensor) -> float | None:
    raw = float(binary_auc(one[None], mask[None], ignore=IGNORE, normalize=False)[0])
    return None if np.isnan(raw) else raw


def _either_sign(raw: float | None) -> float | None:
    """Binary-AUC, max(AUC, 1 - AUC)."""
    return None if raw is None else max(raw, 1 - raw)
