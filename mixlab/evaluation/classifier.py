"""Classifiers for robustness: images to logits, with a name for each class."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data import ImageNetInfo, infer_imagenet_subset
from torch import Tensor, nn

from mixlab.backbones.backbone import Backbone
from mixlab.backbones.meta import without_storage
from mixlab.backbones.timm_models import not_downloaded
from mixlab.backbones.weights.reading import WeightsError, read_weights
from mixlab.backbones.zoo import create_model
from mixlab.errors import InputError, check_kind
from mixlab.evaluation.features import FeaturePlan
from mixlab.evaluation.machine import CentreView
from mixlab.evaluation.probe_head import ProbeHead
from mixlab.evaluation.target import Target, weights_checksum
from mixlab.run import Subject

TRAINED, RELEASED_WITH = "trained with it", "its own"  # kinds of classifiers that are no probes
PROBE = "best_head.safetensors from evaluate_linear_probe(backbone, data, folder=...)"


@dataclass(frozen=True)
class NamedClassifier:
    """A network with a name for each of its K outputs, the view of an image that it takes, and what is known of it."""

    network: nn.Module
    classes: tuple[str, ...]
    view: CentreView
    subject: Subject
    kind: str  # "its own", "trained with it", or how its probe was trained
    head: str = ""  # what a probe reads
    seed: int | None = None  # of the network
    published: bool = False  # trained as the paper's, from pretraining to probe

    @property
    def label(self) -> str:
        return self.subject.label

    @cached_property
    def checksum(self) -> str:
        """Of all weights, those of the head included."""
        return weights_checksum(self.network)

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """Pixels uint8 (B, 3, S, S) at the view's load size -> (B, K)."""
        mean, std = (torch.tensor(part).to(images.device)[:, None, None] for part in _pixel_scale(self.network))
        logits: Tensor = self.network((self.view.crop(images).float() / 255 - mean) / std)
        return logits

    def to(self, device: torch.device) -> NamedClassifier:
        self.network.to(device).eval()
        return self

    @property
    def origin(self) -> str:
        """Which of the classifiers that a network may have: "trained with it", "its own", or a probe and its input."""
        return ", ".join(filter(None, (self.kind, self.head)))

    def describe(self) -> dict[str, Any]:
        """What a result says of it, as JSON."""
        return asdict(self.subject) | {"seed": self.seed, "classifier": self.origin}


def check_classifier(given: object) -> None:
    """Refuse what has no names for its outputs, such as a backbone."""
    named = "give a classifier with a name for each output: load_classifier(NAME) of a run or timm/MODEL"
    probed = f"load_classifier(backbone, head=FILE), {PROBE}"
    check_kind(given, NamedClassifier, f"{named}, or {probed}")


class ProbedBackbone(nn.Module):
    """A frozen backbone and a linear head on its features."""

    def __init__(self, backbone: Backbone, head: ProbeHead, *, image: int) -> None:
        super().__init__()
        self.backbone, self.head_input = backbone, head.input
        self.plan = FeaturePlan.build(backbone, [head.input], source=head.source, image=image)
        if self.plan.width != head.weight.shape[1]:
            raise InputError(
                f"the head reads {head.weight.shape[1]} features, {backbone.name} gives {self.plan.width} for "
                f"{head.input}; choose the backbone that it was trained on"
            )
        self.linear = nn.Linear(self.plan.width, len(head.bias), device=next(backbone.parameters()).device)
        with torch.no_grad():
            self.linear.weight.copy_(head.weight)
            self.linear.bias.copy_(head.bias)

    def forward(self, images: Tensor) -> Tensor:
        features = self.plan.take(self.plan.extract(self.backbone, images), self.head_input)
        with torch.autocast(images.device.type, enabled=False):  # probes are trained in float32
            return self.linear(features)


def probe_classifier(target: Target, head: ProbeHead, *, view: CentreView) -> NamedClassifier:
    """A backbone with a probe as a classifier."""
    if not head.classes:
        raise InputError(
            f"the head has {len(head.bias)} classes without names; robustness needs to know which class is which: "
            "train one with `mixlab probe`, or give one of 1,000 ImageNet classes"
        )
    network = ProbedBackbone(target.backbone, head, image=view.size)
    return NamedClassifier(
        network,
        head.classes,
        view,
        target.subject,
        kind=head.kind,
        head=f"{head.input}, {head.source}",
        seed=target.seed,
        published=target.published and head.published,
    )


def trained_classifier(
    target: Target, head: str | Path, *, classes: Sequence[str], view: CentreView
) -> NamedClassifier:
    """What `mixlab train` exported: a backbone and its classifier.safetensors."""
    entries, backbone = read_weights(head).entries, target.backbone
    network = backbone.with_classifier(len(classes)).to(next(backbone.parameters()).device)
    own = backbone.classifier_names(network)
    network.load_state_dict({key: value for key, value in network.state_dict().items() if key not in own} | entries)
    return NamedClassifier(network, tuple(classes), view, target.subject, kind=TRAINED, seed=target.seed)


def timm_classifier(
    name: str,
    *,
    weights: str | Path | None = None,
    image: int | None = None,
    crop_share: float | None = None,
    label: str | None = None,
    training: str | None = None,
) -> NamedClassifier:
    """Any classifier of timm: its own pretrained weights (downloaded by timm), or a file of them."""
    if not timm.is_model(name.split(".")[0]):
        raise InputError(f"timm {timm.__version__} has no model {name!r}; timm.list_models() knows all")
    try:
        model: Any = timm.create_model(name, pretrained=weights is None)
    except OSError as error:  # the hub's errors of connections and missing files
        raise not_downloaded(name, error) from error
    if weights is not None:
        entries = read_weights(weights).entries
        convert = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
        try:
            if convert is not None and entries.keys() != model.state_dict().keys():
                entries = convert(entries, model)  # from the names under which it was released
            model.load_state_dict(entries)
        except Exception as error:  # each filter fails in its own way on what it does not know
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
            raise WeightsError(f"{weights} does not fit timm's {name}: {reason}") from error
    subset = infer_imagenet_subset(model)
    if subset is None:
        raise InputError(
            f"timm's {name} has {model.num_classes} outputs, which is no ImageNet list that timm knows; choose a "
            "classifier of ImageNet-1k, -12k, -21k or -22k"
        )
    config = model.pretrained_cfg
    view = CentreView(
        size=image or config["input_size"][-1],
        crop_share=crop_share or config.get("crop_pct") or 1.0,
        fit="squash" if config.get("crop_mode") == "squash" else "crop",
    )
    subject = Subject(
        label=label or f"timm/{name}",
        model=f"timm/{name}",
        family=_family_of(name),
        training=training or "supervised",
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        weights=weights_checksum(model)[:16],
        native_image=config["input_size"][-1],
        native_crop_share=config.get("crop_pct") or 1.0,
    )
    return NamedClassifier(model.eval(), tuple(ImageNetInfo(subset).label_names()), view, subject, kind=RELEASED_WITH)


def _family_of(name: str) -> str:
    """The kind of mixer of a network of timm."""
    with without_storage():
        return create_model(f"timm/{name}").family


def _pixel_scale(network: nn.Module) -> tuple[tuple[float, ...], tuple[float, ...]]:
    for module in network.modules():
        if isinstance(module, Backbone):
            return module.pixel_mean, module.pixel_std
    config: Any = getattr(network, "pretrained_cfg", None)
    if config is None:
        return Backbone.pixel_mean, Backbone.pixel_std
    return tuple(config["mean"]), tuple(config["std"])
