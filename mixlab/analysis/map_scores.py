"""Activation maps scored against masks, image by image: raw AUC, the centre-matched score and the centre prior."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mixlab.analysis.binary_auc import binary_auc, centre_matched_auc, centre_prior, roc_curves
from mixlab.analysis.foreground import masks_on_grid
from mixlab.analysis.maps import default_map, find_map, plugins_of_maps, read_maps, single_maps
from mixlab.analysis.score_differences import ScoreDifference, estimate_json
from mixlab.analysis.viewed_images import ViewedImages
from mixlab.backbones.backbone import Backbone, Layers
from mixlab.data.masks import IGNORE
from mixlab.errors import InputError
from mixlab.evaluation.machine import Machine
from mixlab.evaluation.target import Target
from mixlab.run import Measurement, Subject
from mixlab.run.protocols import MapProtocol
from mixlab.statistics import Correlation, Estimate

Wanted = tuple[str | None, Layers]  # a map by its name, or the network's default, and the layers
Part = tuple[int, list[int], tuple[Tensor, ...]]  # of one map: the number of the batch, its layers, its scores
ScoreProgress = Callable[[str, int], None]  # the label of a network, and how many images were scored
FALSE_POSITIVE_RATES = torch.linspace(0, 1, 101, dtype=torch.float64)


@dataclass(frozen=True)
class MapScores:
    """Raw AUC of every map of one backbone, per image: NaN where a mask has no foreground or no background."""

    map_name: str
    layers: list[int]
    raw: Tensor  # (n, layers, K)
    matched: Tensor  # (n, layers, K): at equal distance from the centre
    prior: Tensor  # (n, layers): the centre prior on the same images and grid
    roc: Tensor  # (n, K, len(FALSE_POSITIVE_RATES)): true positive rates of the last layer's maps

    @property
    def num_maps(self) -> int:
        """K: heads or registers, or 1."""
        return self.raw.shape[2]


class MapScorer:
    """Scores networks on one set of images; results are cached by network, map and layers.

    The untrained twin of a network has the seed of its training, or else `seed`. Ranks share the images, and each knows
    all scores.
    """

    def __init__(
        self,
        images: ViewedImages,
        *,
        twins: bool = True,
        seed: int = 0,
        progress: ScoreProgress | None = None,
        machine: Machine | None = None,
    ) -> None:
        self.images, self.twins, self.seed = images, twins, seed
        self._machine = machine
        self._progress = progress or (lambda label, num_images: None)
        self._known: dict[Any, MapScores] = {}
        self._single: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        self._expected: dict[str, list[tuple[str, Layers]]] = {}  # by the label of a network

    def scores(self, target: Target, map_name: str | None = None, layers: Layers = 1) -> MapScores:
        return self._of(target.label, lambda: target.backbone, map_name or default_map(target.backbone), layers)

    def twin_scores(self, target: Target, map_name: str | None = None, layers: Layers = 1) -> MapScores | None:
        """The same of its untrained twin; None where twins are not wanted."""
        if not self.twins:
            return None
        seed, map_name = self.twin_seed(target), map_name or default_map(target.backbone)
        return self._of(_twin_label(target), lambda: target.backbone.twin(seed), map_name, layers)

    def expect(self, target: Target, wanted: Iterable[Wanted]) -> None:
        """Tell which maps of a network and its twin will be asked for: the first that is asked for brings them all."""
        named = [(name or default_map(target.backbone), layers) for name, layers in wanted]
        for label in (target.label, _twin_label(target)):
            self._expected.setdefault(label, []).extend(named)

    def single_maps(self, target: Target, among: tuple[str, ...] = ()) -> list[str]:
        """The kinds of map with one picture per image that a network has, of all or of some."""
        key = (target.label, among)
        if key not in self._single:
            first = next(iter(self.images)).images[:1]
            self._single[key] = single_maps(target.backbone, target.backbone.preprocess(first), among)
        return self._single[key]

    def twin_seed(self, target: Target) -> int:
        return self.seed if target.seed is None else target.seed

    def protocol(self, map_name: str, layer: int | None, index: int | None, twin_seed: int | None) -> MapProtocol:
        return MapProtocol(**self.images.choices, map=map_name, layer=layer, index=index, twin_seed=twin_seed)

    def _of(self, label: str, backbone: Callable[[], Backbone], map_name: str, layers: Layers) -> MapScores:
        asked = (map_name, layers)
        if _key(label, *asked) not in self._known:
            wanted = {_key(label, *each): each for each in [asked, *self._expected.pop(label, ())]}
            left = {key: each for key, each in wanted.items() if key not in self._known}
            self._known |= zip(left, self._measure(label, backbone(), list(left.values())), strict=True)
        return self._known[_key(label, *asked)]

    def _measure(self, label: str, backbone: Backbone, wanted: Sequence[tuple[str, Layers]]) -> list[MapScores]:
        kinds = [(find_map(name), layers) for name, layers in wanted]
        parts: list[list[Part]] = [[] for _ in wanted]
        for number, batch in self.images.batches(*(self._machine.share() if self._machine else ())):
            if batch.masks is None:
                raise InputError(
                    f"{self.images.choices['data'] or 'the source'} has images without masks; give data with masks, as "
                    "ViewedImages(..., with_masks=True)"
                )
            found: list[dict[int, tuple[Tensor, ...]]] = [{} for _ in wanted]  # by layer
            last: dict[int, Tensor] = {}
            for place, layer, maps in read_maps(backbone, backbone.preprocess(batch.images), kinds):
                last[place] = (maps if maps.ndim == 4 else maps[:, None]).float().cpu()  # (B, K, h, w)
                found[place][layer] = _scores_of(last[place], batch.masks)
            for place, by_layer in enumerate(found):
                scores = (torch.stack(scores, dim=1) for scores in zip(*by_layer.values(), strict=True))
                roc = true_positive_rates(*_flat(last[place], batch.masks)).unflatten(0, last[place].shape[:2])
                parts[place].append((number, list(by_layer), (*scores, roc)))
            self._progress(label, len(batch.names))
        return [MapScores(name, *self._together(own)) for (name, _), own in zip(wanted, parts, strict=True)]

    def _together(self, own: list[Part]) -> tuple[Any, ...]:
        """Layers and scores of all ranks' images, in their order; what any of them could not read is known to all."""
        found = own
        if self._machine is not None:
            found = sorted((part for parts in self._machine.gather(own) for part in parts), key=lambda part: part[0])
            for reasons in self._machine.gather(dict(self.images.skipped.reasons)):
                self.images.skipped.reasons |= reasons
        if not found:
            raise self.images.empty()
        columns = zip(*(scores for _, _, scores in found), strict=True)
        return found[0][1], *(torch.cat(column) for column in columns)


def _key(label: str, map_name: str, layers: Layers) -> tuple[str, str, str]:
    return label, map_name, str(layers)


def _scores_of(maps: Tensor, masks: Tensor) -> tuple[Tensor, ...]:
    """Of maps (B, K, h, w): raw and matched (B, K), and of the centre prior (B,)."""
    shape = maps.shape[:2]
    flat, small = _flat(maps, masks)
    prior = centre_prior(maps.shape[-2], maps.shape[-1]).expand(shape[0], -1, -1)
    return (
        _raw_auc(flat, small).unflatten(0, shape),
        centre_matched_auc(flat, small, ignore=IGNORE).unflatten(0, shape),
        _raw_auc(prior, small[:: shape[1]]),
    )


def _flat(maps: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Maps (B, K, h, w) and masks (B, H, W) -> (B K, h, w) both."""
    small = masks_on_grid(masks, (maps.shape[-2], maps.shape[-1]), ignore=IGNORE)
    return maps.flatten(0, 1), small.repeat_interleave(maps.shape[1], dim=0)


def _twin_label(target: Target) -> str:
    return f"{target.label}, untrained"


def either_sign(raw: Tensor) -> Tensor:
    """The paper's normalised score, max(AUC, 1 - AUC) of each image."""
    return torch.maximum(raw, 1 - raw)


def true_positive_rates(maps: Tensor, masks: Tensor) -> Tensor:
    """Each image's ROC curve read at FALSE_POSITIVE_RATES, (B, 101), to be averaged; NaN where undefined."""
    curves = roc_curves(maps, masks, ignore=IGNORE)
    false_rates = curves.false_positive_rate.nan_to_num(0.0).contiguous()
    wanted = FALSE_POSITIVE_RATES.expand(len(false_rates), -1) + 1e-12  # rates are ratios: allow for rounding
    last = torch.searchsorted(false_rates, wanted, right=True) - 1
    return curves.true_positive_rate.gather(1, last)


def mean_rates(rates: Tensor) -> list[float]:
    """The mean over images of such rates; empty where no image has a curve."""
    defined = rates[~rates.isnan().any(-1)]
    return defined.mean(0).tolist() if len(defined) else []


def _raw_auc(maps: Tensor, masks: Tensor) -> Tensor:
    return binary_auc(maps, masks, ignore=IGNORE, normalize=False)


_METRICS = {"auc": "binary_auc", "raw_auc": "binary_auc_raw"}  # other scores have the names of their metrics
_OF_TWINS = ("untrained", "above_untrained")


@dataclass(frozen=True, kw_only=True)
class ScoreRow:
    """The scores of one map of a network: after a layer, and of one head or register where it has several."""

    subject: Subject
    seed: int | None
    probe_accuracy: float | None
    protocol: MapProtocol
    scores: dict[str, Estimate]  # by name; every name but those of _METRICS is a metric

    @property
    def measurements(self) -> Iterator[Measurement]:
        for name, found in self.scores.items():
            protocol = self.protocol if name in _OF_TWINS else replace(self.protocol, twin_seed=None)
            yield from to_measurements(_METRICS.get(name, name), found, protocol, self.subject, self.seed)

    def to_json(self) -> dict[str, Any]:
        place = {"map": self.protocol.map, "layer": self.protocol.layer, "index": self.protocol.index}
        scores = {name: estimate_json(found) for name, found in self.scores.items()}
        known = {"seed": self.seed, "probe_accuracy": self.probe_accuracy}
        return asdict(self.subject) | known | place | scores


@dataclass(frozen=True, kw_only=True)
class AucResult:
    """What one study found; `arrays` holds raw AUC per image, (n, layers, maps), by the label of the network."""

    study: str
    subjects: tuple[dict[str, Any], ...]  # descriptions of the networks
    protocol: MapProtocol  # what all rows have in common
    rows: tuple[ScoreRow, ...]
    arrays: dict[str, NDArray[np.float64]]
    comparisons: tuple[ScoreDifference, ...] = ()
    correlations: dict[str, Correlation] = field(default_factory=dict)
    findings: tuple[Measurement, ...] = ()  # of the study, beyond the scores of its rows
    roc: dict[str, list[float]] = field(default_factory=dict)  # by label: true positive rates, means over images
    skipped: dict[str, str] = field(default_factory=dict)  # images that could not be read, and why
    unpaired: tuple[str, ...] = ()  # images without a mask, and masks without an image
    beside: tuple[ScoreRow, ...] = ()  # of the same networks by other maps than the one that is compared

    @property
    def measurements(self) -> list[Measurement]:
        """All scores: which map it is says the protocol, and verdicts are about the default map alone."""
        return [found for row in (*self.rows, *self.beside) for found in row.measurements] + list(self.findings)

    def to_json(self) -> dict[str, Any]:
        result = {
            "kind": "auc",
            "study": self.study,
            "data": self.protocol.data,
            "image": self.protocol.image,
            "protocol": self.protocol.to_json(),
            "subjects": list(self.subjects),
            "rows": [row.to_json() for row in self.rows],
            "beside": [row.to_json() for row in self.beside],
            "comparisons": [comparison.to_json() for comparison in self.comparisons],
            "correlations": {label: found.to_json() for label, found in self.correlations.items()},
            "measurements": [measurement.to_json() for measurement in self.measurements],
            "skipped": self.skipped,
            "unpaired": list(self.unpaired),
        }
        result |= plugins_of_maps(str(row.protocol.map) for row in (*self.rows, *self.beside))
        if self.roc:
            rates = {"false_positive_rate": FALSE_POSITIVE_RATES.tolist(), "true_positive_rate": self.roc}
            result["roc"] = rates
        return result


def to_measurements(
    metric: str, found: Estimate | Correlation, protocol: MapProtocol, subject: Subject, seed: int | None
) -> list[Measurement]:
    """One measurement (of a correlation, Spearman's), or none where the estimate is undefined."""
    if isinstance(found, Correlation):
        found = Estimate(math.nan if found.spearman is None else found.spearman, found.low, found.high, found.n)
    if math.isnan(found.value):
        return []
    return [Measurement.of(metric, found, subject=subject, protocol=protocol, seed=seed)]
