"""The settings of a linear probe, and what they are called: in its protocol, and in its folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from mixlab.backbones.backbone import Backbone
from mixlab.data.labelled import LabelledSplits
from mixlab.evaluation.features import heavy_blocks, light_blocks, possible_strategies, published_source
from mixlab.evaluation.machine import Machine, PrecisionChoice, precision_in_use
from mixlab.evaluation.probe.result import ProbeMode
from mixlab.evaluation.target import network_digest, weights_checksum
from mixlab.evaluation.views import CROP_SHARE, CentreView
from mixlab.run.protocols import ProbeProtocol

LRS = (2.5e-4, 5e-4, 1e-3, 2e-3)  # Dino-Mamba, Table 5, as the next
WEIGHT_DECAYS = (0.0, 1e-3, 5e-3, 1e-2)
STORED: Literal["float16"] = "float16"  # features of plain images
Heads = Literal["grid", "light", "heavy"]
MODES: dict[str, tuple[ProbeMode, ...]] = {
    "augmented": ("augmented",),
    "cached": ("cached",),
    "both": ("augmented", "cached"),
}


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    """All that decides the outcome of a probe, beside the network and the data."""

    mode: Literal["augmented", "cached", "both"] = "augmented"  # random crops, or features of plain images
    heads: Heads = "grid"  # the paper's ablation, or one input: 1,536 features, or 4 blocks (8 for tiny and base)
    blocks: tuple[int, ...] = ()  # how many of the last blocks a head reads, instead of those of `heads`
    strategies: tuple[str, ...] = ()  # how they are pooled, instead of those of `heads`
    source: Literal["auto", "branch", "stream"] = "auto"  # as published without it
    lrs: tuple[float, ...] = LRS  # for a batch of 256
    weight_decays: tuple[float, ...] = WEIGHT_DECAYS
    epochs: int = 100
    batch: int = 1024  # over all ranks; DINO's 128 on each of 8
    seed: int = 0  # of the heads, the order of images, their crops, and the choice of few labels
    label_share: float = 1.0  # of each class
    num_train: int | None = None  # at most so many training images, evenly spaced
    num_val: int | None = None
    image: int | None = None  # what the backbone was made for without it
    crop_share: float = CROP_SHARE
    load_size: int | None = None  # the side at which images are held for cropping; twice the crop's without it
    precision: PrecisionChoice = "auto"

    def for_backbone(self, backbone: Backbone) -> ProbeSettings:
        """With blocks, strategies, source and image as they apply to this backbone."""
        strategies = possible_strategies(backbone)
        if self.heads == "grid":
            blocks = tuple(number for number in (1, 2, 3, 4) if number <= backbone.num_layers)
        else:
            blocks, strategies = ((light_blocks if self.heads == "light" else heavy_blocks)(backbone),), strategies[:1]
        return replace(
            self,
            blocks=self.blocks or blocks,
            strategies=self.strategies or strategies,
            source=published_source(backbone) if self.source == "auto" else self.source,
            image=self.image or backbone.image,
        )

    def protocol(self, backbone: Backbone, splits: LabelledSplits, machine: Machine) -> ProbeProtocol:
        """What its measurements say of it; mode, blocks and strategy are each head's own."""
        full = self.for_backbone(backbone)
        assert full.image is not None
        asked = [
            f"{name} {' '.join(map(str, part))}" for name in ("blocks", "strategies") if (part := getattr(self, name))
        ]
        return ProbeProtocol(
            data=splits.data,
            val_data=splits.val_data,
            num_images=self.num_val,
            image=full.image,
            crop_share=self.crop_share,
            fit=CentreView(full.image).fit,
            precision=precision_in_use(self.precision, machine.world.device),
            source=full.source,
            label_share=self.label_share,
            label_seed=self.seed if self.label_share < 1 else None,
            num_train=self.num_train,
            heads=", ".join(asked if len(asked) == 2 else [self.heads, *asked]),
            epochs=self.epochs,
            batch=self.batch,
            lrs=self.lrs,
            weight_decays=self.weight_decays,
            load_size=self.load_size or 2 * full.image,
            head_seed=self.seed,
        )


def stored_settings(settings: ProbeSettings, backbone: Backbone, splits: LabelledSplits) -> dict[str, Any]:
    """What must be the same when a probe resumes, as settings.json stores it."""
    decided = {"num_train", "num_val", "heads"}  # which images and inputs these led to is what counts
    values = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(settings).items()
        if name not in decided
    }
    network = {"weights": weights_checksum(backbone), "network": network_digest(backbone)}
    about = {"stored": STORED, "backbone": backbone.name, **network}
    data = " ".join(filter(None, (splits.data, splits.val_data)))
    sizes = {"num_train": len(splits.train), "num_val": len(splits.val), "num_classes": len(splits.classes)}
    return {**values, **about, "data": data, **sizes}
