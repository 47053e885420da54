"""Supervised classification with the regularisers of MambaOut, Table 5 (DeiT's)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from mixlab.backbones.backbone import Backbone
from mixlab.data.crops import IMAGENET_MEAN, IMAGENET_STD, CropKind, MultiCrop
from mixlab.data.loader import Batch
from mixlab.data.source import ImageSource
from mixlab.errors import InputError
from mixlab.training.augment import draw_blend, draw_changes, draw_erasures, erase, rand_augment, soft_targets
from mixlab.training.config import MethodConfig, TrainConfig, check_numbers
from mixlab.training.distributed import World, whole
from mixlab.training.live_scores import KnnScores, Score
from mixlab.training.precision import Precise
from mixlab.training.recipe import BatchPart, Recipe, drop_empty, to_pixels_of


@dataclass(frozen=True, kw_only=True)
class SupervisedConfig(MethodConfig):
    """Stochastic depth belongs to the model: model.drop_path, or drop_path_rate for models of timm."""

    kind: ClassVar[str] = "supervised"
    title: ClassVar[str] = "supervised training"
    shown: ClassVar[tuple[str, ...]] = ("knn_accuracy", "accuracy")
    size: int = 224
    scale: tuple[float, float] = (0.08, 1.0)
    rand_augment: float = 9.0  # magnitude of 10; 0: none
    rand_augment_deviation: float = 0.5
    mixup: float = 0.8
    cutmix: float = 1.0
    switch: float = 0.5  # how often cutmix instead of mixup
    erasing: float = 0.25
    smoothing: float = 0.1

    def __post_init__(self) -> None:
        at_least = {"rand_augment": 0, "rand_augment_deviation": 0, "mixup": 0, "cutmix": 0}
        check_numbers(self, "method.", at_least=at_least, shares=("switch", "erasing", "smoothing"))
        self.crops()  # which checks size and scale

    def crops(self) -> MultiCrop:
        return MultiCrop([CropKind(size=self.size, scale=self.scale)])

    @property
    def image(self) -> int:
        return self.size

    def build(
        self, backbone: Backbone, *, num_classes: int, total_steps: int, steps_per_epoch: int
    ) -> SupervisedRecipe:
        if num_classes < 2:
            raise InputError(
                f"supervised training needs labels of at least 2 classes, the data has {num_classes}; "
                "put images into one folder per class, or pretrain without labels"
            )
        return SupervisedRecipe(self, backbone, num_classes=num_classes)

    def scores(
        self, data: str, source: ImageSource, config: TrainConfig, *, world: World, precise: Precise
    ) -> ClassifierScores:
        return ClassifierScores(data, source, config, world=world, precise=precise)


class ClassifierScores(KnnScores):
    """kNN, and the classifier's own accuracy where the data has a validation set."""

    def scores(self, recipe: Recipe, stopped: Callable[[], bool]) -> Iterator[Score]:
        yield from super().scores(recipe, stopped)
        if self.has_held_out:
            found = self.outputs(recipe.exported(), recipe.network, self.queries, stopped)
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

    def prepare(self, batch: Batch, part: BatchPart) -> tuple[Tensor, Tensor]:
        """Crop, change, erase and blend this part's images: (B, 3, S, S) and soft labels (B, K)."""
        config, generator = self.config, part.generator()
        drawn = self.crops.draw(batch.sizes, generator, rank=part.index, world_size=part.num_parts)
        images = self.crops(batch.images, drawn)[0][0]
        num_images = len(images)
        if config.rand_augment > 0:
            chosen, strengths = draw_changes(
                num_images,
                generator,
                magnitude=config.rand_augment,
                deviation=config.rand_augment_deviation,
                part=part.index,
                num_parts=part.num_parts,
            )
            mean, std = (
                torch.tensor(scale).to(images, non_blocking=True)[:, None, None]
                for scale in (IMAGENET_MEAN, IMAGENET_STD)
            )
            images = (rand_augment((images * std + mean).clamp_(0, 1), chosen, strengths) - mean) / std
        every = draw_erasures(num_images * part.num_parts, generator, side=config.size, probability=config.erasing)
        images = erase(images, every[part.index * num_images : (part.index + 1) * num_images])
        targets = soft_targets(batch.labels, num_classes=self.num_classes, smoothing=config.smoothing)
        blend = draw_blend(generator, side=config.size, mixup=config.mixup, cutmix=config.cutmix, switch=config.switch)
        dtype = next(self.network.parameters()).dtype
        images = to_pixels_of(self.backbone, blend.images(images).to(dtype))
        return images, blend.targets(targets).to(dtype if dtype == torch.float64 else torch.float32)

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
