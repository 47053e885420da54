"""A trained linear probe in a file: ours, or one that Dino-Mamba or DINO released."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mixlab.backbones.backbone import Backbone, FeatureSource
from mixlab.backbones.weights.reading import StoredWeights, WeightsError, read_weights
from mixlab.backbones.weights.saving import save_tensors
from mixlab.data.imagenet_labels import imagenet_classes
from mixlab.evaluation.features import HeadInput, published_source
from mixlab.evaluation.paper import EPOCHS
from mixlab.run.files import write_json

METADATA_KEY = "mixlab_probe"
RELEASED = {"linear.weight", "linear.bias"}  # Dino-Mamba's and DINO's probes, without their wrapper


@dataclass(frozen=True)
class ProbeHead:
    """A trained linear probe: weight (K, F), bias (K,), what it reads, and the names of its classes."""

    weight: Tensor
    bias: Tensor
    input: HeadInput
    source: FeatureSource
    classes: tuple[str, ...] = ()  # empty where the file does not say
    about: dict[str, Any] = field(default_factory=dict)  # lr, wd, accuracy, n, ... as they were saved

    @property
    def kind(self) -> str:
        """How it was trained: the same text for all heads of one protocol."""
        if self.about.get("released"):
            return "released probe"
        parts = [f"{self.about['mode']} probe" if "mode" in self.about else "probe"]
        if "epochs" in self.about:
            parts.append(f"{self.about['epochs']} epochs")
        if self.about.get("label_share", 1.0) != 1:
            parts.append(f"{self.about['label_share']:.3g} of the labels")
        return ", ".join(parts)

    @property
    def published(self) -> bool:
        """Whether it was trained as the paper's are."""
        about = self.about
        trained = (about.get("mode"), about.get("epochs"), about.get("label_share", 1.0)) == ("augmented", EPOCHS, 1.0)
        return bool(about.get("released")) or trained


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
            f"{path} holds {', '.join(list(stored.entries)[:4])}, not a probe; give a head that `mixlab probe` "
            "wrote, a released checkpoint with linear.weight and linear.bias, or a run's classifier.safetensors"
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
            f"{stored.path} reads {weight.shape[-1]} features, which is not a multiple of the width {backbone.dim} of "
            f"{backbone.name}; name the backbone that it was trained on"
        )
    source, strategy = published_source(backbone), "cls" if backbone.layout.has_summary_token else "mean"
    if source == "stream" and blocks == 2:  # DINO's ViT-B: class token and mean of the last block, channel by channel
        blocks, strategy = 1, "cls+mean"
        weight = torch.cat([weight[:, 0::2], weight[:, 1::2]], dim=1)  # ours reads one after the other
    classes = imagenet_classes() if len(bias) == 1000 else ()
    return ProbeHead(weight, bias, HeadInput(blocks, strategy), source, classes, {"released": True})
