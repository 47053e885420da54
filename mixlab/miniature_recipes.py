"""Recipes of `mixlab study miniature`: both papers on ten thousand photographs of about 112 px, minutes on one GPU.

All families share everything but the depth (without an MLP a layer is half as large) and the learning rate, which the
study tunes. Training lasts so many steps, not epochs: as long on any set of images.
"""

from __future__ import annotations

from typing import Any

from mixlab.evaluation.segmentation.recipe import SegmentConfig
from mixlab.training.config import (
    CheckpointConfig,
    DataConfig,
    KnnConfig,
    LogConfig,
    ModelConfig,
    OptimConfig,
    TrainConfig,
)
from mixlab.training.dino import DinoConfig
from mixlab.training.supervised import SupervisedConfig

IMAGE = 64  # px of a view: 8 x 8 patches
DEPTHS = {"vit": 6, "linearvit": 6, "dinovim": 12, "dinomambareg": 12, "gatedconv": 12}  # 1.2 to 1.5 M parameters


def small_model(family: str, **fields: Any) -> ModelConfig:
    """A family's tiny backbone with other sizes; fields that its mixer does not have are left out."""
    missing = {"vit": {"state"}, "linearvit": {"state"}, "gatedconv": {"state", "head_dim"}}.get(family, set())
    positions = {"position_image": fields["image"]} if family == "dinomambareg" else {}
    kept = {key: value for key, value in fields.items() if key not in missing}
    return ModelConfig(name=f"{family}_tiny", fields={**kept, **positions})


def model_mini(family: str) -> ModelConfig:
    return small_model(
        family, patch=8, image=IMAGE, depth=DEPTHS[family], dim=128, head_dim=32, state=32, drop_path=0.05
    )


def dino_mini(family: str) -> TrainConfig:
    """DINO with crops of 64 and 32 px out of images held at 112 px in the device's memory."""
    method = DinoConfig(
        num_prototypes=2048,
        hidden=512,
        bottleneck=128,
        teacher_temperature=0.04,
        teacher_warmup_epochs=0,
        teacher_momentum=0.99,  # a short training needs a teacher that follows
        global_size=IMAGE,
        local_size=32,
        num_local=4,
        local_scale=(0.1, 0.4),
        blur_sigma=(0.1, 0.6),  # as wide a share of a view as DINO's 2 px are of 224
        spread=0.02,
    )
    return TrainConfig(
        method=method,
        model=model_mini(family),
        optim=OptimConfig(lr=2e-3, min_lr=1e-6, warmup_steps=200, weight_decay=0.04, weight_decay_end=0.4, clip=3.0),
        steps=3000,
        **_on_one_gpu(),
    )


def supervised_mini(family: str) -> TrainConfig:
    """Classification of the same pixels by the same models."""
    return TrainConfig(
        method=SupervisedConfig(size=IMAGE, scale=(0.25, 1.0), rand_augment=0.0, mixup=0.2, cutmix=1.0, erasing=0.0),
        model=model_mini(family),
        optim=OptimConfig(lr=2e-3, min_lr=1e-6, warmup_steps=200, weight_decay=0.05, weight_decay_end=0.05, clip=3.0),
        steps=1500,
        **_on_one_gpu(),
    )


def segment_mini(family: str) -> TrainConfig:
    """A small UperNet at 224 px: 784 tokens, twelve times as many as in pretraining."""
    return TrainConfig(
        method=SegmentConfig(
            crop=224,
            short_side=224,
            long_side=448,
            scale=(0.8, 1.6),
            channels=64,
            auxiliary_channels=32,
            dropout=0.0,
            norm="group",  # few images a batch
        ),
        model=model_mini(family),
        optim=OptimConfig(
            lr=5e-4,
            lr_batch=16,
            min_lr=1e-6,
            decay="poly",
            warmup_steps=50,
            weight_decay=0.05,
            weight_decay_end=0.05,
            clip=3.0,
        ),
        data=DataConfig(size=224),
        steps=600,
        batch=16,
        graph=True,
        checkpoint=CheckpointConfig(every_steps=300, keep=1),
        log=LogConfig(every_steps=50, tensorboard=False),
    )


def _on_one_gpu() -> dict[str, Any]:
    return {
        "data": DataConfig(size=112, resident=True),
        "batch": 128,
        "graph": True,
        "checkpoint": CheckpointConfig(every_steps=500, keep=1),
        "log": LogConfig(every_steps=50, tensorboard=False),
        "knn": KnnConfig(every_epochs=0),
    }
