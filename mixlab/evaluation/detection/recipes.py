"""Full configurations of detection: the papers' on COCO, and small ones on `shapes`."""

from __future__ import annotations

from mixlab.evaluation.detection.recipe import DetectionConfig
from mixlab.training.config import (
    CheckpointConfig,
    DataConfig,
    LogConfig,
    ModelConfig,
    OptimConfig,
    TrainConfig,
)


def detect(model: ModelConfig) -> TrainConfig:
    """The 1x schedule on COCO: 12 epochs of 16 images of 1333 x 800, a tenth of the rate after 8 and 11.

    Cascade Mask R-CNN as Dino-Mamba, "Object Detection and Instance Segmentation Settings"; Mask R-CNN for MambaOut and
    models of timm, as MambaOut §4.3.
    """
    single = model.name.startswith(("mambaout", "timm/"))
    decay = 0.05 if single else 0.1
    return TrainConfig(
        method=DetectionConfig(head="mask" if single else "cascade", keep_empty=False, score_every_epochs=1),
        model=model,
        optim=OptimConfig(
            lr=1e-4,
            lr_batch=16,
            decay="drops",
            drop_epochs=(8, 11),
            warmup_steps=500,
            warmup_start=1e-3,
            weight_decay=decay,
            weight_decay_end=decay,
        ),
        epochs=12,
        batch=16,
        checkpoint=CheckpointConfig(every_steps=1000),
        log=LogConfig(every_steps=50),
    )


def detect_64(model: ModelConfig) -> TrainConfig:
    """A small detector for images of about 64 px, without a GPU: minutes on two cores for `shapes`."""
    return TrainConfig(
        method=DetectionConfig(
            short=(64, 64),
            long=128,
            channels=32,
            hidden=128,
            mask_convs=2,
            anchor_scale=2.5,  # 10 to 40 px on the levels that count
            finest=10.0,
            candidates=200,
            proposals=50,
            anchors=64,
            regions=16,
            most=20,
        ),
        model=model,
        optim=OptimConfig(
            lr=1.5e-3,
            lr_batch=8,
            min_lr=1e-5,
            warmup_steps=100,
            weight_decay=0.05,
            weight_decay_end=0.05,
            clip=3.0,
        ),
        data=DataConfig(size=64, workers=0),
        steps=2000,
        batch=8,  # many small steps learn faster than few large ones
        precision="fp32",
        checkpoint=CheckpointConfig(every_steps=500, keep=2),
        log=LogConfig(every_steps=20, tensorboard=False),
    )
