"""Segmentation as a method of the training loop; its recipes for ADE20K, as published, and for `shapes`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixlab.backbones.backbone import Backbone
from mixlab.choices import InferenceMode
from mixlab.data.crops import normalise
from mixlab.data.dense_batches import MEAN_COLOUR, CropBatch, CropReader, CropRule
from mixlab.data.given import Data
from mixlab.data.loader import BatchLoader
from mixlab.data.mask_formats import parse_label_maps
from mixlab.data.masks import IGNORE, MaskSource
from mixlab.data.source import at_most
from mixlab.data.transforms import change_colours, draw_colours
from mixlab.errors import InputError
from mixlab.evaluation.dense_recipe import DenseConfig, DenseRecipe, DenseScores, published_drop_path
from mixlab.evaluation.pyramid import Pyramid
from mixlab.evaluation.segmentation.evaluate import score_label_maps
from mixlab.evaluation.segmentation.upernet import Inference, Norm, Predictor, UperNet, resize
from mixlab.training.batches import build_batches
from mixlab.training.config import (
    CheckpointConfig,
    DataConfig,
    LogConfig,
    ModelConfig,
    OptimConfig,
    TrainConfig,
    check_numbers,
)
from mixlab.training.distributed import World, num_workers, once_per_machine
from mixlab.training.live_scores import Score
from mixlab.training.precision import Precise
from mixlab.training.recipe import BatchPart, to_pixels_of
from mixlab.training.stored_settings import first_change


@dataclass(frozen=True, kw_only=True)
class SegmentConfig(DenseConfig):
    """UperNet as MMSegmentation trains it on ADE20K, which both papers use."""

    kind: ClassVar[str] = "segment"
    title: ClassVar[str] = "segmentation"
    label: ClassVar[str] = "Segmentation"
    command: ClassVar[str] = "segment"
    shown: ClassVar[tuple[str, ...]] = ("miou",)
    crop: int = 512
    short_side: int = 512
    long_side: int = 2048
    scale: tuple[float, float] = (0.5, 2.0)
    most_of_one_class: float = 0.75
    colours: bool = True  # photometric changes
    channels: int = 512
    auxiliary_channels: int = 256
    auxiliary_weight: float = 0.4
    dropout: float = 0.1
    norm: Norm = "batch"

    def __post_init__(self) -> None:
        sizes = ("crop", "short_side", "long_side", "channels", "auxiliary_channels", "score_images")
        check_numbers(self, "method.", at_least=dict.fromkeys(sizes, 1))
        if not 0 < self.scale[0] <= self.scale[1]:
            raise InputError(f"method.scale {self.scale} is not a range of factors; give for example 0.5,2.0")

    @property
    def image(self) -> int:
        return self.crop

    def open(self, data: Data) -> MaskSource:
        """What cannot be scored in the end is refused before it is trained on."""
        val, train = parse_label_maps(data, split="val"), parse_label_maps(data)
        if tuple(val.classes) != tuple(train.classes):
            raise InputError(
                f"{data}: the {len(val.classes)} classes of the validation set are not the {len(train.classes)} of the "
                f"training set ({first_change(train.classes, val.classes)}); give both the same, in the same order"
            )
        return train

    def loader(self, source: MaskSource, config: TrainConfig, *, world: World) -> BatchLoader[CropBatch]:
        rule = CropRule(
            crop=self.crop,
            short_side=self.short_side,
            long_side=self.long_side,
            scale=self.scale,
            most_of_one_class=self.most_of_one_class,
        )
        return build_batches(CropReader(source, rule, seed=config.seed), config, world=world)

    def build(self, backbone: Backbone, *, num_classes: int, total_steps: int, steps_per_epoch: int) -> SegmentRecipe:
        return SegmentRecipe(self, backbone, num_classes=num_classes)

    def scores(
        self, data: Data, source: MaskSource, config: TrainConfig, *, world: World, precise: Precise
    ) -> DenseScores:
        def measure(network: nn.Module, stopped: Callable[[], bool]) -> Iterator[Score]:
            assert isinstance(network, UperNet)
            held_out = once_per_machine(world, lambda: parse_label_maps(data, split="val"))
            val_source = at_most(held_out, self.score_images)
            predictor = Predictor(network, self.inference("single"), precise=precise)
            workers = num_workers(config.data.workers, world)
            found, _ = score_label_maps(predictor, val_source, world=world, workers=workers, stopped=stopped)
            yield from (("miou", found.miou), ("macc", found.macc), ("aacc", found.aacc))

        return DenseScores(self.score_every_epochs, measure)

    def inference(self, mode: InferenceMode) -> Inference:
        """How a trained network is run on images."""
        return Inference.of(mode, short_side=self.short_side, long_side=self.long_side, crop=self.crop)


class SegmentRecipe(DenseRecipe):
    head_name = "segmenter"
    static = True
    network: UperNet

    def __init__(self, config: SegmentConfig, backbone: Backbone, *, num_classes: int) -> None:
        self.config, self.num_classes = config, num_classes
        super().__init__(
            UperNet(
                Pyramid(backbone, taps=config.taps, frozen=config.frozen),
                num_classes=num_classes,
                channels=config.channels,
                auxiliary_channels=config.auxiliary_channels,
                dropout=config.dropout,
                norm=config.norm,
            ),
            backbone_lr=config.backbone_lr,
            drop_path=config.drop_path,
        )

    def prepare(self, batch: CropBatch, part: BatchPart) -> tuple[Tensor, Tensor]:
        return self.pixels(batch, part), batch.masks.long()

    def loss(self, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross-entropy summed over counted pixels and divided by all, so that parts of a batch weigh the same."""
        pixels, masks = inputs
        logits, auxiliary = (resize(part, masks.shape[-2:]) for part in self.run(pixels))
        loss, auxiliary_loss = (
            F.cross_entropy(part, masks, ignore_index=IGNORE, reduction="sum") / masks.numel()
            for part in (logits, auxiliary)
        )
        counted = masks != IGNORE
        hits = ((logits.argmax(dim=1) == masks) & counted).sum() / counted.sum().clamp(min=1)
        total = loss + self.config.auxiliary_weight * auxiliary_loss
        return total, {"auxiliary_loss": auxiliary_loss.detach(), "pixel_accuracy": hits.detach()}

    def pixels(self, batch: CropBatch, part: BatchPart) -> Tensor:
        """Images as the backbone takes them, with this part's share of the colour changes."""
        dtype = next(self.network.parameters()).dtype
        images = batch.images.float() / 255
        if self.config.colours:
            drawn = draw_colours(len(images) * part.num_parts, part.generator())[part.rows(len(images))]
            images = change_colours(images, drawn.to(images.device, non_blocking=True))
        mean = torch.tensor(MEAN_COLOUR, dtype=torch.uint8, device=images.device)[:, None, None]
        # Beyond the image there is 0, whatever the mean colour became.
        beyond = (batch.masks == IGNORE) & (batch.images == mean).all(dim=1)
        return to_pixels_of(self.backbone, normalise(images).masked_fill(beyond[:, None], 0).to(dtype))


def segment(model: ModelConfig) -> TrainConfig:
    """UperNet on ADE20K: Dino-Mamba, "Semantic Segmentation Settings", and MambaOut §4.4. 160,000 steps of 16 crops."""
    return TrainConfig(
        method=SegmentConfig(
            drop_path=published_drop_path(model.name),
            score_every_epochs=13,  # of 1,263 steps: about every 16,000
        ),
        model=model,
        optim=OptimConfig(
            lr=1e-4 if model.name.startswith("mambaout") else 6e-5,
            lr_batch=16,
            min_lr=0.0,
            decay="poly",
            warmup_steps=1500,
            warmup_start=1e-6,
            weight_decay=0.05,
            weight_decay_end=0.05,
        ),
        steps=160_000,
        batch=16,
        checkpoint=CheckpointConfig(every_steps=2000),
        log=LogConfig(every_steps=50),
    )


def segment_64(model: ModelConfig) -> TrainConfig:
    """A small UperNet on images of about 64 px, without a GPU: minutes on two cores for `shapes`."""
    return TrainConfig(
        method=SegmentConfig(
            crop=64,
            short_side=64,
            long_side=256,
            scale=(0.9, 1.2),
            colours=False,  # a few hundred steps are too few to need them
            channels=48,
            auxiliary_channels=32,
            dropout=0.0,
            norm="group",  # few images a batch
        ),
        model=model,
        optim=OptimConfig(
            lr=3e-3,
            lr_batch=32,
            min_lr=1e-5,
            decay="poly",
            warmup_steps=20,
            weight_decay=0.05,
            weight_decay_end=0.05,
            clip=3.0,
        ),
        data=DataConfig(size=64, workers=0),
        steps=500,
        batch=32,
        precision="fp32",
        checkpoint=CheckpointConfig(every_steps=100, keep=2),
        log=LogConfig(every_steps=10, tensorboard=False),
    )
