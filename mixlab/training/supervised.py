"""Supervised classification with the regularisers of MambaOut, Table 5, by default as its released code has them: that
is timm's training script. DeiT's differ in a few settings, see `mixlab.recipes`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from mixlab.backbones.backbone import Backbone
from mixlab.data.crops import IMAGENET_MEAN, IMAGENET_STD, CropKind, MultiCrop
from mixlab.data.given import Data
from mixlab.data.images import parse_source
from mixlab.data.labelled import align, check_class_folders, check_labels, is_held_out
from mixlab.data.packed import PackedBatch, PackedLoader
from mixlab.data.source import ImageSource
from mixlab.errors import InputError
from mixlab.training.augment import (
    draw_blends,
    draw_changes,
    draw_cubic,
    draw_erasures,
    erase,
    rand_augment,
    soft_targets,
)
from mixlab.training.batches import build_loader
from mixlab.training.config import MethodConfig, TrainConfig, check_numbers
from mixlab.training.distributed import World
from mixlab.training.live_scores import KnnScores, Score
from mixlab.training.precision import Precise
from mixlab.training.recipe import BatchPart, Recipe, drop_empty, to_pixels_of
from mixlab.training.sharded import whole


@dataclass(frozen=True, kw_only=True)
class SupervisedConfig(MethodConfig):
    """Stochastic depth belongs to the model: model.drop_path, or drop_path_rate for models of timm."""

    kind: ClassVar[str] = "supervised"
    title: ClassVar[str] = "supervised training"
    label: ClassVar[str] = "Supervised"
    command: ClassVar[str] = "train"
    shown: ClassVar[tuple[str, ...]] = ("knn_accuracy", "accuracy")
    earlier: ClassVar[Mapping[str, Any]] = {
        "mix_every": 0,
        "erase_first": True,
        "interpolation": "bicubic",
        "moves": "centred",
        "repeats": 1,
    }
    size: int = 224
    scale: tuple[float, float] = (0.08, 1.0)
    rand_augment: float = 9.0  # magnitude of 10; 0: none
    rand_augment_deviation: float = 0.5
    mixup: float = 0.8
    cutmix: float = 1.0
    switch: float = 0.5  # how often cutmix instead of mixup
    erasing: float = 0.25
    smoothing: float = 0.1
    mix_every: int = 128  # images that share one draw of mixup or cutmix: a process's batch in MambaOut's code; 0: all
    erase_first: bool = False  # erase before mixing, as DeiT; timm, and so MambaOut, erases what was mixed
    interpolation: Literal["random", "bicubic"] = "random"  # of crops and moves; random: bilinear or bicubic (MambaOut)
    moves: Literal["timm", "centred"] = "timm"  # centred: how mixlab first moved images, see `move_centred`
    repeats: int = 1  # times that an image is in an epoch, with other crops, beside itself; DeiT: 3, of a third of them

    def __post_init__(self) -> None:
        at_least = {
            "rand_augment": 0,
            "rand_augment_deviation": 0,
            "mixup": 0,
            "cutmix": 0,
            "mix_every": 0,
            "repeats": 1,
        }
        check_numbers(self, "method.", at_least=at_least, shares=("switch", "erasing", "smoothing"))
        self.crops()  # which checks size and scale

    def crops(self) -> MultiCrop:
        bilinear = 0.5 if self.interpolation == "random" else 0.0
        return MultiCrop([CropKind(size=self.size, scale=self.scale, bilinear=bilinear)])

    @property
    def image(self) -> int:
        return self.size

    def open(self, data: Data) -> ImageSource:
        source = parse_source(data)
        if isinstance(data, str):
            check_class_folders(source, data)
        if len(source.classes) > 1:  # otherwise `build` says what is wrong
            check_labels(source, str(data))
        return source

    def build(
        self, backbone: Backbone, *, num_classes: int, total_steps: int, steps_per_epoch: int
    ) -> SupervisedRecipe:
        if num_classes < 2:
            raise InputError(
                f"supervised training needs labels of at least 2 classes, the data has {num_classes}; "
                "put images into one folder per class, or pretrain without labels"
            )
        return SupervisedRecipe(self, backbone, num_classes=num_classes)

    def loader(self, source: ImageSource, config: TrainConfig, *, world: World) -> PackedLoader:
        return build_loader(source, config, self.crops(), world=world, repeats=self.repeats)

    def scores(
        self, data: Data, source: ImageSource, config: TrainConfig, *, world: World, precise: Precise
    ) -> ClassifierScores:
        val = parse_source(data, split="val") if world.is_first else None
        if val is not None and is_held_out(data, val, source):
            align(source, val)  # what cannot be scored in the end is refused before it is trained on
        elif val is not None:
            way_out = f"--data heldout:{data}" if isinstance(data, str) else 'data={"train": ..., "val": ...}'
            warnings.warn(
                f"{data} has no validation set: training uses the labels of all {len(source):,} images, so scores on "
                f"them, such as knn_accuracy, say nothing about new images; {way_out} holds some out",
                stacklevel=2,
            )
        return ClassifierScores(data, source, config, world=world, precise=precise)


class ClassifierScores(KnnScores):
    """kNN, and the classifier's own accuracy where the data has a validation set."""

    def scores(self, recipe: Recipe, stopped: Callable[[], bool]) -> Iterator[Score]:
        yield from super().scores(recipe, stopped)
        if self.has_held_out:
            size = self.config.method.image  # as `write_accuracy` scores it
            found = self.outputs(recipe.exported(), recipe.network, self.queries, stopped, size)
            hits = found.features.argmax(-1).cpu() == found.labels
            yield "accuracy", float(hits.float().mean())


class SupervisedRecipe(Recipe):
    static = True

    def __init__(self, config: SupervisedConfig, backbone: Backbone, *, num_classes: int) -> None:
        self.config, self.num_classes, self.backbone = config, num_classes, backbone
        self.crops = config.crops()
        self.network = backbone.with_classifier(num_classes)
        drop_empty(self.network)
        self.run = self.network

    def modules(self) -> dict[str, nn.Module]:
        return {"network": self.network}

    def loss(self, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        images, targets = inputs
        logits = self.run(images).float() if images.dtype != torch.float64 else self.run(images)
        loss = -(targets * logits.log_softmax(-1)).sum(-1).mean()
        hits = (logits.argmax(-1) == targets.argmax(-1)).float().mean()
        return loss, {"train_accuracy": hits.detach()}

    def prepare(self, batch: PackedBatch, part: BatchPart) -> tuple[Tensor, Tensor]:
        """Crop, change, blend and erase this part's images: (B, 3, S, S) and soft labels (B, K)."""
        config, generator = self.config, part.generator()
        drawn = self.crops.draw(batch.sizes, generator, rank=part.index, world_size=part.num_parts)
        images = self.crops(batch.images, drawn)[0][0]
        num_images = len(images)
        if config.rand_augment > 0:
            images = self._rand_augment(images, generator, part)
        every = draw_erasures(num_images * part.num_parts, generator, side=config.size, probability=config.erasing)
        boxes = every[part.rows(num_images)]
        blends = draw_blends(
            num_images,
            generator,
            every=config.mix_every,
            side=config.size,
            mixup=config.mixup,
            cutmix=config.cutmix,
            switch=config.switch,
            part=part.index,
            num_parts=part.num_parts,
        )
        if config.erase_first:
            images = erase(images, boxes)
        images = torch.cat([blend.images(images[rows]) for rows, blend in blends])
        if not config.erase_first:
            images = erase(images, boxes)
        targets = soft_targets(batch.labels, num_classes=self.num_classes, smoothing=config.smoothing)
        targets = torch.cat([blend.targets(targets[rows]) for rows, blend in blends])
        dtype = next(self.network.parameters()).dtype
        images = to_pixels_of(self.backbone, images.to(dtype))
        return images, targets.to(dtype if dtype == torch.float64 else torch.float32)

    def _rand_augment(self, images: Tensor, generator: torch.Generator, part: BatchPart) -> Tensor:
        """Of images that are normalised, before and after."""
        config, total, rows = self.config, len(images) * part.num_parts, part.rows(len(images))
        law = {"magnitude": config.rand_augment, "deviation": config.rand_augment_deviation}
        chosen, strengths = (drawn[:, rows] for drawn in draw_changes(total, generator, **law))
        cubic = torch.ones_like(chosen, dtype=torch.bool)
        if config.moves == "timm" and config.interpolation == "random":
            cubic = draw_cubic(total, generator)[:, rows]
        mean, std = (
            torch.tensor(scale).to(images, non_blocking=True)[:, None, None] for scale in (IMAGENET_MEAN, IMAGENET_STD)
        )
        plain = (images * std + mean).clamp_(0, 1)
        return (rand_augment(plain, chosen, strengths, cubic if config.moves == "timm" else None) - mean) / std

    def no_weight_decay(self) -> set[str]:
        names = {name for name, _ in self.network.named_parameters()}
        return {self.backbone.name_in_classifier(name) for name in self.backbone.no_weight_decay()} & names

    def exported(self) -> Backbone:
        if all(module is not self.backbone for module in self.network.modules()):  # it has copies of the weights
            self.backbone.load_from_classifier({name: whole(v) for name, v in self.network.state_dict().items()})
        return self.backbone

    def exported_head(self) -> dict[str, Tensor]:
        names = self.backbone.classifier_names(self.network)
        return {name: whole(value) for name, value in self.network.state_dict().items() if name in names}
