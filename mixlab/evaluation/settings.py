"""Settings of kNN and probes of frozen features: options of their commands, with the help that stands beside them.

Imports of whatever needs torch are late, so that `--help` need not wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from mixlab.choices import KS, OUTPUT, TEMPERATURE, PrecisionChoice
from mixlab.run.codec import check_values
from mixlab.run.protocols import ProbeProtocol

if TYPE_CHECKING:
    import torch

    from mixlab.backbones.backbone import Backbone, FeatureSource
    from mixlab.data.labelled import LabelledSplits
    from mixlab.evaluation.machine import CentreView

LRS = (2.5e-4, 5e-4, 1e-3, 2e-3)  # Dino-Mamba, Table 5, as the next
WEIGHT_DECAYS = (0.0, 1e-3, 5e-3, 1e-2)
BATCH = 1024  # Dino-Mamba
SPEEDRUN_LRS = (0.01, 0.1, 0.5)  # of `mixlab speedrun`, for few epochs on features of plain images
# Below so many training images, the paper's batch leaves a probe a few hundred steps, for which its rates are too low.
# The smallest of its own shares of ImageNet, 1 %, has 12,811.
FEW_IMAGES = 8 * BATCH
STEPS_PER_EPOCH = 8  # at least, of few images
RATES_FOR_FEW = (*LRS, 8e-3, 3.2e-2, 0.128, 0.512)
Heads = Literal["grid", "light", "heavy"]


@dataclass(frozen=True, kw_only=True)
class FrozenSettings:
    """What kNN and probes of frozen features have in common. These are options of their commands, with this help."""

    source: Literal["auto", "branch", "stream"] = "auto"
    """features to read: branch (the mixers' output, as in Dino-Mamba) or stream (the residual stream); auto: as in the
    papers."""
    label_share: float = 1.0  # use only this fraction of each class, such as 0.01 or 0.1, drawn by --seed.
    num_train: int | None = None  # maximum number of training images, evenly spaced.
    num_val: int | None = None  # maximum number of validation images, evenly spaced.
    image: int | None = None  # image size in pixels; default: the backbone's own size.
    crop_share: float | None = None
    """fraction of each side that the centre crop keeps: 0.875 is 224 of 256; default: the backbone's own."""
    precision: PrecisionChoice = "auto"
    """precision of the backbone: bf16 or fp32; auto: bf16 on a GPU. fp32 also turns off TF32 in the heads of probes."""
    seed: int = 0  # seed of --label-share, of the heads, image order and crops of a probe, and of an untrained target.

    def __post_init__(self) -> None:
        for name, value in check_values(type(self), vars(self)).items():
            object.__setattr__(self, name, value)  # a list as the tuple that it stands for

    def read_source(self, backbone: Backbone) -> FeatureSource:
        from mixlab.evaluation.features import published_source

        return published_source(backbone) if self.source == "auto" else self.source

    def view(self, backbone: Backbone) -> CentreView:
        """The centre crop of this backbone."""
        from mixlab.evaluation.machine import CentreView

        share = backbone.crop_share if self.crop_share is None else self.crop_share
        return CentreView(self.image or backbone.image, share)

    def cut(self, splits: LabelledSplits) -> LabelledSplits:
        """As many images of each split as these settings ask for."""
        from mixlab.data.labelled import label_subset
        from mixlab.data.source import at_most

        train = label_subset(at_most(splits.train, self.num_train), self.label_share, seed=self.seed)
        return replace(splits, train=train, val=at_most(splits.val, self.num_val))

    def protocol(self, backbone: Backbone, splits: LabelledSplits, device: torch.device) -> dict[str, Any]:
        """The fields of a protocol that both have."""
        from mixlab.evaluation.machine import precision_in_use

        view = self.view(backbone)
        return {
            "data": splits.data,
            "val_data": splits.val_data,
            "num_images": self.num_val,
            "image": view.size,
            "crop_share": view.crop_share,
            "fit": view.fit,
            "precision": precision_in_use(self.precision, device),
            "source": self.read_source(backbone),
            "label_share": self.label_share,
            "label_seed": self.seed if self.label_share < 1 else None,
            "num_train": self.num_train,
        }


@dataclass(frozen=True, kw_only=True)
class KnnSettings(FrozenSettings):
    """All settings that affect the result, besides network and data. The options of `mixlab knn`."""

    k: tuple[int, ...] = KS  # number of neighbours, one or more values.
    temperature: float = TEMPERATURE  # temperature of the votes; a neighbour has the weight exp(cosine / temperature).
    blocks: int = 1  # how many of the last blocks to read; needs another --strategy than output.
    strategy: str = OUTPUT
    """output (what the backbone returns), cls, mean, max, cls+mean or cls+max."""


@dataclass(frozen=True, kw_only=True)
class ProbeSettings(FrozenSettings):
    """All settings that affect the result, besides network and data. The options of `mixlab probe`."""

    mode: Literal["augmented", "cached", "both"] = "augmented"
    """augmented (random crops, as in the paper), cached (features of plain images, much faster), or both, with the
    difference between them."""
    heads: Heads = "grid"
    """grid (the paper's ablation: 1 to 4 blocks, five strategies, four lr, four wd), light (1,536 features; for
    ViT-B, class token and mean of the last block, as in DINO) or heavy (4 blocks, 8 for tiny and base); light and heavy
    also have four lr and four wd."""
    blocks: tuple[int, ...] = ()  # how many of the last blocks the heads read; replaces the choice of --heads.
    strategies: tuple[str, ...] = ()
    """cls, mean, max, cls+mean, cls+max, output (what the backbone returns), registers (one probe each)."""
    lrs: tuple[float, ...] = ()
    """learning rates for a batch of 256; default: 2.5e-4 to 2e-3 as in the paper, up to 0.512 with fewer than 8,192
    images."""
    weight_decays: tuple[float, ...] = WEIGHT_DECAYS  # weight decays.
    epochs: int = 100  # passes over the images.
    batch: int | None = None
    """images per step over all processes; default: 1,024 as in the paper, or an eighth of fewer than 8,192 images."""
    load_size: int | None = None
    """size in pixels to which images are squashed before random crops are cut; default: images as they are."""

    def for_data(self, num_train: int) -> ProbeSettings:
        """A copy in which batch and learning rates, if not given, suit the number of training images."""
        few = num_train < FEW_IMAGES
        fitting = 1 << max(4, (num_train // STEPS_PER_EPOCH).bit_length() - 1)  # a power of two, at least 16
        return replace(
            self,
            batch=self.batch or (fitting if few else BATCH),
            lrs=self.lrs or (RATES_FOR_FEW if few else LRS),
        )

    def for_backbone(self, backbone: Backbone) -> ProbeSettings:
        """A copy with the blocks, strategies, source and image that apply to this backbone."""
        from mixlab.evaluation.features import heavy_blocks, is_light_as_dinos, light_blocks, possible_strategies

        strategies = possible_strategies(backbone)
        if self.heads == "grid":
            blocks = tuple(number for number in (1, 2, 3, 4) if number <= backbone.num_layers)
        elif self.heads == "light" and is_light_as_dinos(backbone) and not self.strategies:
            blocks, strategies = (1,), ("cls+mean",)
        else:
            blocks, strategies = ((light_blocks if self.heads == "light" else heavy_blocks)(backbone),), strategies[:1]
        return replace(
            self,
            blocks=self.blocks or blocks,
            strategies=self.strategies or strategies,
            source=self.read_source(backbone),
            image=self.image or backbone.image,
            crop_share=self.view(backbone).crop_share,
        )

    def probe_protocol(self, backbone: Backbone, splits: LabelledSplits, device: torch.device) -> ProbeProtocol:
        """What its measurements say of it; mode, blocks and strategy are each head's own."""
        asked = [
            f"{name} {' '.join(map(str, part))}" for name in ("blocks", "strategies") if (part := getattr(self, name))
        ]
        return ProbeProtocol(
            **self.protocol(backbone, splits, device),
            heads=", ".join(asked if len(asked) == 2 else [self.heads, *asked]),
            epochs=self.epochs,
            batch=self.batch,
            lrs=self.lrs,
            weight_decays=self.weight_decays,
            load_size=self.load_size or 0,
            head_seed=self.seed,
        )
