"""Images in, logits out, and the names of the classes: what robustness is measured on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data import ImageNetInfo, infer_imagenet_subset
from torch import Tensor, nn

from mixlab.backbones.backbone import Backbone, Source
from mixlab.backbones.weights.reading import StoredWeights, WeightsError, read_weights
from mixlab.backbones.weights.saving import save_tensors
from mixlab.data.imagenet_labels import imagenet_classes
from mixlab.errors import InputError
from mixlab.evaluation.feature_plan import FeaturePlan, HeadInput, has_class_token, published_source
from mixlab.evaluation.views import CentreView
from mixlab.run.directory import write_json

METADATA_KEY = "mixlab_probe"
RELEASED = {"linear.weight", "linear.bias"}  # Dino-Mamba's and DINO's probes, without their wrapper


@dataclass(frozen=True)
class ProbeHead:
    """A trained linear probe: weight (K, F), bias (K,), what it reads, and the names of its classes."""

    weight: Tensor
    bias: Tensor
    input: HeadInput
    source: Source
    classes: tuple[str, ...] = ()  # empty where the file does not say
    about: dict[str, Any] = field(default_factory=dict)  # lr, wd, accuracy, n, ... as they were saved


def save_head(head: ProbeHead, path: Path) -> None:
    """Write PATH (safetensors, complete in itself) and its description beside it as JSON."""
    about = {
        **head.about,
        "blocks": head.input.blocks,
        "strategy": head.input.strategy,
        "source": head.source,
        "classes": list(head.classes),
    }
    tensors = {"weight": head.weight.float().cpu().contiguous(), "bias": head.bias.float().cpu().contiguous()}
    save_tensors(tensors, path, metadata={"format": "pt", METADATA_KEY: json.dumps(about)})
    write_json(path.with_suffix(".json"), about)


def load_head(path: str | Path, backbone: Backbone) -> ProbeHead:
    """A head of `save_head`, or a released probe checkpoint, for this backbone. Nothing in the file is executed."""
    stored = read_weights(path, checkpoint_key="state_dict")
    if METADATA_KEY in stored.metadata:
        head = _own_head(stored)
    elif stored.entries.keys() == RELEASED:
        head = _released_head(stored, backbone)
    else:
        raise WeightsError(
            f"{path} holds {', '.join(list(stored.entries)[:4])}, which is no probe; give a head that `mixlab probe` "
            "wrote, or a released checkpoint with linear.weight and linear.bias"
        )
    if head.weight.ndim != 2 or head.bias.shape != head.weight.shape[:1]:
        shapes = f"{tuple(head.weight.shape)} and {tuple(head.bias.shape)}"
        raise WeightsError(f"{path} holds weight and bias of {shapes}; expected (K, F) and (K,)")
    return head


def _own_head(stored: StoredWeights) -> ProbeHead:
    try:
        about = json.loads(stored.metadata[METADATA_KEY])
        head_input = HeadInput(int(about.pop("blocks")), str(about.pop("strategy")))
        source, classes = about.pop("source"), tuple(map(str, about.pop("classes")))
        return ProbeHead(stored.entries["weight"], stored.entries["bias"], head_input, source, classes, about)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{stored.path} does not describe its head ({type(error).__name__}: {error})") from error


def _released_head(stored: StoredWeights, backbone: Backbone) -> ProbeHead:
    weight, bias = stored.entries["linear.weight"], stored.entries["linear.bias"]
    blocks, rest = divmod(weight.shape[-1], backbone.dim)
    if rest or not 1 <= blocks <= backbone.num_layers:
        raise WeightsError(
            f"{stored.path} reads {weight.shape[-1]} features, which are no blocks of the {backbone.dim} of "
            f"{backbone.name}; name the backbone that it was trained on"
        )
    source, strategy = published_source(backbone), "cls" if has_class_token(backbone) else "mean"
    if source == "stream" and blocks == 2:  # DINO's ViT-B: the last block's class token, then the mean of its patches
        blocks, strategy = 1, "cls+mean"
    classes = imagenet_classes() if len(bias) == 1000 else ()
    return ProbeHead(weight, bias, HeadInput(blocks, strategy), source, classes, {"released": True})


class Classifier(nn.Module):
    """A network with a name for each of its K outputs, and the view of an image that it takes."""

    def __init__(self, network: nn.Module, *, classes: Sequence[str], view: CentreView, label: str) -> None:
        super().__init__()
        self.network, self.classes, self.view, self.label = network, tuple(classes), view, label
        self.pixel_mean, self.pixel_std = _pixel_scale(network)

    def forward(self, images: Tensor) -> Tensor:
        """Images with the network's own mean and deviation taken out (B, 3, H, W) -> logits (B, K)."""
        logits: Tensor = self.network(images)
        return logits


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


def probe_classifier(backbone: Backbone, head: ProbeHead, *, view: CentreView, label: str) -> Classifier:
    """A backbone with a probe as a classifier."""
    if not head.classes:
        raise InputError(
            f"the head has {len(head.bias)} classes without names; robustness needs to know which class is which: "
            "train one with `mixlab probe`, or give one of 1,000 ImageNet classes"
        )
    return Classifier(ProbedBackbone(backbone, head, image=view.size), classes=head.classes, view=view, label=label)


def trained_classifier(
    backbone: Backbone, head: str | Path, *, classes: Sequence[str], view: CentreView, label: str
) -> Classifier:
    """What `mixlab train` exported: a backbone and its classifier.safetensors."""
    entries = read_weights(head).entries
    network = backbone.with_classifier(len(classes))
    own = backbone.classifier_names(network)
    network.load_state_dict({key: value for key, value in network.state_dict().items() if key not in own} | entries)
    return Classifier(network, classes=classes, view=view, label=label)


def timm_classifier(
    name: str, *, weights: str | Path | None = None, image: int | None = None, label: str | None = None
) -> Classifier:
    """Any classifier of timm: its own pretrained weights (downloaded by timm), or a file of them."""
    if not timm.is_model(name.split(".")[0]):
        raise InputError(f"timm {timm.__version__} has no model {name!r}; timm.list_models() knows all")
    model: Any = timm.create_model(name, pretrained=weights is None)
    if weights is not None:
        try:
            model.load_state_dict(read_weights(weights).entries)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1].strip()
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
        crop_share=config.get("crop_pct") or 1.0,
        fit="squash" if config.get("crop_mode") == "squash" else "crop",
    )
    return Classifier(model, classes=ImageNetInfo(subset).label_names(), view=view, label=label or f"timm/{name}")


def _pixel_scale(network: nn.Module) -> tuple[tuple[float, ...], tuple[float, ...]]:
    for module in network.modules():
        if isinstance(module, Backbone):
            return module.pixel_mean, module.pixel_std
    config: Any = getattr(network, "pretrained_cfg", None)
    if config is None:
        return Backbone.pixel_mean, Backbone.pixel_std
    return tuple(config["mean"]), tuple(config["std"])
