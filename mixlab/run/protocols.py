"""Which numbers there are, and how one was measured: one dataclass per kind, with every choice that can change it.

A field is None where the choice does not apply, or where an older run directory did not record it. A new choice of an
evaluator is a new field here; then numbers with and without it have different identities and are both kept.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

from mixlab.errors import InputError
from mixlab.run import codec

ONE_HEAD = "one"  # `heads` of a probe with one learning rate and weight decay: a cell of an ablation
DRAWN = ("label_seed", "head_seed", "twin_seed", "initial_weights", "classifier_weights")


@dataclass(frozen=True, kw_only=True)
class EvaluationProtocol:
    """What all of them have: the data."""

    kind: ClassVar[str]
    data: str = ""  # as the command named it
    val_data: str | None = None  # another source of validation images
    split: str | None = None
    num_images: int | None = None  # a limit on the images that were scored; None: all

    def __post_init__(self) -> None:
        for name, kind in ((item.name, item.type) for item in fields(self)):
            value = codec.check(kind, getattr(self, name), f"{name} of a {type(self).__name__}")
            if name in ("data", "val_data") and value:
                value = value.rstrip("/") or "/"  # a slash at the end means nothing
            object.__setattr__(self, name, value)  # 1 as 1.0 where it is a float: one choice, one identity

    @cached_property
    def choices(self) -> Mapping[str, Any]:
        """All but what repetitions draw anew: seeds of one study have these in common."""
        return {name: value for name, value in self.to_json().items() if name not in DRAWN}

    def to_json(self) -> dict[str, Any]:
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        return {"kind": self.kind} | {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class ViewProtocol(EvaluationProtocol):
    """Whole images seen by a network."""

    image: int | None = None  # side in pixels
    crop_share: float | None = None
    fit: str | None = None  # "whole", "square", "crop" or "squash"
    multiple: int | None = None  # of "whole": pixels of which each side of an image is a multiple
    precision: str | None = None


@dataclass(frozen=True, kw_only=True)
class LabelledProtocol(ViewProtocol):
    """Frozen features, read by something that has seen labels."""

    source: str | None = None  # "stream" or "branch"
    blocks: int | None = None
    strategy: str | None = None
    label_share: float = 1.0
    label_seed: int | None = None  # of the choice of few labels
    num_train: int | None = None  # a limit on the training images; None: all


@dataclass(frozen=True, kw_only=True)
class KnnProtocol(LabelledProtocol):
    """A vote of nearest neighbours."""

    kind = "knn"
    k: int | None = None
    temperature: float | None = None


@dataclass(frozen=True, kw_only=True)
class ProbeProtocol(LabelledProtocol):
    """`blocks` and `strategy` are None for the best head of all that were tried; `heads` says which those were."""

    kind = "probe"
    mode: str | None = None  # "augmented" or "cached"
    heads: str | None = None  # "grid", "light", "heavy", ONE_HEAD, or the heads that were asked for
    register: int | None = None
    epochs: int | None = None
    batch: int | None = None
    lrs: tuple[float, ...] | None = None
    weight_decays: tuple[float, ...] | None = None
    load_size: int | None = None  # images are squashed to it before crops are cut; 0: crops of the images as they are
    head_seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class AccuracyProtocol(ViewProtocol):
    """A classifier that was trained with its network."""

    kind = "accuracy"


@dataclass(frozen=True, kw_only=True)
class RobustnessProtocol(ViewProtocol):
    """A classifier on another set, or on changed images; `change` is "mean" for the average over changes."""

    kind = "robustness"
    classifier: str | None = None  # its own, or what kind of probe
    classifier_weights: str | None = None  # a digest
    change: str | None = None
    limited: bool | None = None


@dataclass(frozen=True, kw_only=True)
class MapProtocol(ViewProtocol):
    """Scores of activation maps against masks."""

    kind = "map"
    spread: bool | None = None  # the limited number of images is evenly spaced; None: all of them, or the first ones
    map: str | None = None
    layer: int | None = None
    index: int | None = None  # of a head or a register
    twin_seed: int | None = None  # of the untrained twin that it is compared with


@dataclass(frozen=True, kw_only=True)
class AnalysisProtocol(ViewProtocol):
    """What analyses of layers have in common; those with further choices that matter add fields, or name them all in
    `settings`."""

    kind = "analysis"
    spread: bool | None = None  # as in MapProtocol
    layer: int | None = None
    twin_seed: int | None = None  # as in MapProtocol
    settings: str | None = None


@dataclass(frozen=True, kw_only=True)
class NormProtocol(AnalysisProtocol):
    """Norms of tokens in the residual stream, before any norm layer."""

    kind = "norms"
    factor: float | None = None  # a patch above so many times the median norm of its image is a high-norm one


@dataclass(frozen=True, kw_only=True)
class RankProtocol(ViewProtocol):
    """Ranks of blocks of mixing matrices."""

    kind = "rank"
    spread: bool | None = None  # as in MapProtocol
    definition: str | None = None  # which rank
    chunk: int | None = None  # side of a block in tokens
    layers: tuple[int, ...] | None = None  # None: all
    heads: tuple[int, ...] | None = None  # those that were asked for; None: all, at most `max_heads`, evenly spaced
    max_heads: int | None = None
    method: str | None = None
    tolerance: float | None = None
    practical: float | None = None
    energy: float | None = None
    skip: bool | None = None  # whether the skip connection is part of the matrix


@dataclass(frozen=True, kw_only=True)
class LowRankProtocol(ViewProtocol):
    """Best approximations of mixing matrices by matrices of a rank."""

    kind = "low_rank"
    rank: int | None = None  # N
    part: str | None = None  # "off_diagonal" blocks, as a scan is bounded there alone, or the "whole" matrix
    chunk: int | None = None  # side of a block in tokens; None of whole matrices
    layers: tuple[int, ...] | None = None  # None: all
    heads: tuple[int, ...] | None = None  # those that were asked for; None: all, at most `max_heads`, evenly spaced
    max_heads: int | None = None
    skip: bool | None = None  # whether the skip connection is part of the matrix


@dataclass(frozen=True, kw_only=True)
class DenseProtocol(ViewProtocol):
    """A network with a head for a dense task, trained on `data`."""

    head: str | None = None
    frozen: bool | None = None
    initial_weights: str | None = None  # where the backbone's weights came from
    steps: int | None = None
    settings: str | None = None  # a digest of all other training settings


@dataclass(frozen=True, kw_only=True)
class SegmentationProtocol(DenseProtocol):
    """Semantic segmentation, on one scale or several."""

    kind = "segmentation"
    mode: str | None = None  # "single" or "multi"
    scales: tuple[float, ...] | None = None
    flip: bool | None = None
    short_side: int | None = None
    long_side: int | None = None
    window: int | None = None
    stride: int | None = None


@dataclass(frozen=True, kw_only=True)
class DetectionProtocol(DenseProtocol):
    """Detection and instance masks."""

    kind = "detection"
    short_side: int | None = None
    long_side: int | None = None


@dataclass(frozen=True, kw_only=True)
class SpeedProtocol(ViewProtocol):
    """Passes over random images."""

    kind = "speed"
    px: int | None = None
    tokens: int | None = None
    batch: int | None = None
    device: str | None = None
    threads: int | None = None  # of a CPU
    graph: bool | None = None  # replayed from a CUDA graph, or launched kernel by kernel


class Metric(NamedTuple):
    """What a metric means, the protocol that measures it, and its range."""

    about: str
    protocol: type[EvaluationProtocol]
    lowest: float = 0.0
    highest: float = 1.0


_ANY = math.inf
# These keep the score of every image, so that two networks can be compared on the same images, and maps with baselines.
BY_IMAGE = (
    "knn_top1", "probe_top1", "top1", "robust_top1", "shifted_top1", "binary_auc", "centre_prior", "untrained",
)  # fmt: skip
METRICS = {
    "knn_top1": Metric("accuracy of nearest neighbours", KnnProtocol),
    "probe_top1": Metric("accuracy of a linear probe", ProbeProtocol),
    "top1": Metric("accuracy of the classifier that was trained with the network", AccuracyProtocol),
    "robust_top1": Metric("accuracy on a shifted set", RobustnessProtocol),
    "shift_top1": Metric("accuracy on corrupted images", RobustnessProtocol),
    "shifted_top1": Metric("mean accuracy over the corruptions", RobustnessProtocol),
    "miou": Metric("mean IoU of semantic segmentation", SegmentationProtocol),
    "box_ap": Metric("COCO AP of boxes", DetectionProtocol),
    "mask_ap": Metric("COCO AP of masks", DetectionProtocol),
    "binary_auc": Metric("mean of max(AUC, 1 - AUC) over images", MapProtocol),
    "binary_auc_raw": Metric("mean AUC over images", MapProtocol),
    "centre_matched_auc": Metric("mean AUC among pairs of pixels at equal distance from the centre", MapProtocol),
    "centre_prior": Metric("binary_auc of a centre blob on the same images", MapProtocol),
    "above_centre_prior": Metric("binary_auc minus that of a centre blob, same images", MapProtocol, -1),
    "untrained": Metric("binary_auc of the untrained twin", MapProtocol),
    "above_untrained": Metric("binary_auc minus that of the untrained twin, same images", MapProtocol, -1),
    "best_head_over_worst": Metric("best head minus worst head, on images that did not choose them", MapProtocol, -1),
    "middle_registers_over_first": Metric("raw AUC of the middle third of registers minus the first", MapProtocol, -1),
    "middle_registers_over_last": Metric("raw AUC of the middle third of registers minus the last", MapProtocol, -1),
    "untrained_middle_over_first": Metric("the same of the untrained twin", MapProtocol, -1),
    "untrained_middle_over_last": Metric("the same of the untrained twin", MapProtocol, -1),
    "middle_token_over_front": Metric("binary_auc of the middle class token minus its copy in front", MapProtocol, -1),
    "register_auc_follows_probe": Metric("rank correlation of registers' AUC with their probes", MapProtocol, -1),
    "auc_follows_probe": Metric("rank correlation of models' Binary-AUC with their probes", MapProtocol, -1),
    "high_norm_share": Metric("share of the patches whose norm is high", NormProtocol),
    "untrained_high_norm_share": Metric("the same of the untrained twin", NormProtocol),
    "high_norm_above_untrained": Metric("the share minus that of the untrained twin, same images", NormProtocol, -1),
    "high_norm_at_border": Metric("share of the high-norm patches that are outermost", NormProtocol),
    "largest_norm": Metric("largest norm of a patch over the median of its image", NormProtocol, 0, _ANY),
    "diagonal_rank": Metric("mean rank of diagonal blocks", RankProtocol, 0, _ANY),
    "off_diagonal_rank": Metric("mean rank of off-diagonal blocks that are not zero", RankProtocol, 0, _ANY),
    "smallest_diagonal_rank": Metric("the lowest of them", RankProtocol, 0, _ANY),
    "smallest_off_diagonal_rank": Metric("the lowest of them", RankProtocol, 0, _ANY),
    "diagonal_rank_bound": Metric("what theory allows a diagonal block", RankProtocol, 0, _ANY),
    "off_diagonal_rank_bound": Metric("what theory allows an off-diagonal block", RankProtocol, 0, _ANY),
    "mask_rank": Metric("largest rank of an off-diagonal block of a scan's mask", RankProtocol, 0, _ANY),
    "rank_bound_holds": Metric("1 if no block exceeds its bound, else 0", RankProtocol),
    "low_rank_residual": Metric("share of the energy that the best approximation of a rank leaves", LowRankProtocol),
    "largest_low_rank_residual": Metric("the largest of them: one block or head", LowRankProtocol),
    "forward_images_per_s": Metric("speed of the forward pass", SpeedProtocol, 0, _ANY),
    "training_images_per_s": Metric("speed of forward and backward", SpeedProtocol, 0, _ANY),
    "forward_peak_gib": Metric("peak memory of the forward pass", SpeedProtocol, 0, _ANY),
    "training_peak_gib": Metric("peak memory of forward and backward", SpeedProtocol, 0, _ANY),
    "images_per_s": Metric("speed of the forward pass", SpeedProtocol, 0, _ANY),
}
PROTOCOLS: dict[str, type[EvaluationProtocol]] = {}  # by kind
CHOICES: set[str] = set()  # fields of any of them


def add_metrics(metrics: Mapping[str, Metric]) -> None:
    """Make metrics known, and their protocols. One name is one metric, and one kind is one protocol."""
    for name, metric in metrics.items():
        if METRICS.setdefault(name, metric) != metric:
            raise InputError(f"there is a metric {name!r} already: {METRICS[name].about}; choose another name")
        if PROTOCOLS.setdefault(metric.protocol.kind, metric.protocol) is not metric.protocol:
            known = PROTOCOLS[metric.protocol.kind].__name__
            raise InputError(f"{metric.protocol.__name__} has the kind of {known}, {metric.protocol.kind!r}; change it")
        CHOICES.update(item.name for item in fields(metric.protocol))


add_metrics(METRICS)
