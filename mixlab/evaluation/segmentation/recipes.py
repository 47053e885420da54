"""Full configurations of segmentation: the papers' on ADE20K, and small ones on `shapes`."""

from __future__ import annotations

from mixlab.evaluation.segmentation.recipe import SegmentConfig
from mixlab.training.config import (
    CheckpointConfig,
    DataConfig,
    LogConfig,
    ModelConfig,
    OptimConfig,
    TrainConfig,
)


def segment(model: ModelConfig) -> TrainConfig:
    """UperNet on ADE20K: Dino-Mamba, "Semantic Segmentation Settings", and MambaOut §4.4. 160,000 steps of 16 crops."""
    return TrainConfig(
        method=SegmentConfig(score_every_epochs=13),  # of 1,263 steps: about every 16,000
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
