"""Recipes of small networks on small images: of 64 px on a CPU (tiny64), of 112 px (mini) and of 160 px on one GPU."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from mixlab.backbones.zoo import ZOO, fields_of_small, list_models
from mixlab.evaluation.detection.recipe import detect_64
from mixlab.evaluation.segmentation.recipe import SegmentConfig, segment_64
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
from mixlab.training.lejepa import LeJepaConfig
from mixlab.training.settings import override, with_method
from mixlab.training.supervised import SupervisedConfig

MAMBA_FAMILIES = ("vim", "mambareg", "plainmamba", "mamba2d", "localvim", "vmamba", "localvmamba", "efficientvmamba")
MINI_IMAGE = 64  # px of a view: 8 x 8 patches
MINI_DEPTHS = {"vit": 6, "linearvit": 6, "dinovim": 12, "dinomambareg": 12, "gatedconv": 12}  # 1.2 to 1.5 M parameters
# Matched parameters, as the widths of ViT-Ti and ViT-S give them: a layer without an MLP is half as large.
DEPTHS_160 = {"vit": 12, "linearvit": 12, "dinovim": 22, "dinomambareg": 22, "gatedconv": 22}
SIZES_160: dict[str, dict[str, Any]] = {
    "tiny": {"dim": 192, "patch": 8, "image": 80, "drop_path": 0.0},
    "small": {"dim": 384, "patch": 16, "image": 160, "drop_path": 0.0},
}
VIEWS_160 = {"tiny": (64, 32), "small": (128, 48)}  # px of global and local views
RATES_160 = {"tiny": 2e-3, "small": 1.5e-3}


def model_64(family: str) -> ModelConfig:
    """A backbone for images of about 64 px."""
    if family in ("vmamba", "localvmamba", "efficientvmamba"):
        name = "vmamba_tiny_s1l8" if family == "vmamba" else f"{family}_tiny"
        return ModelConfig(name=name, fields={"depths": [1, 1, 2, 1], "dims": [24, 48, 96, 144], "image": 64})
    if family == "mamba2d":
        return ModelConfig(name="mamba2d_small", fields={"depths": [4, 4], "dims": [64, 64], "image": 64})
    if family in MAMBA_FAMILIES:
        name = "plainmamba_l1" if family == "plainmamba" else f"{family}_tiny"
        return ModelConfig(name=name, fields={"patch": 8, "image": 64, "depth": 4, "dim": 64})
    if family == "mambaout":
        return ModelConfig(name="mambaout_femto", fields={"depths": [1, 1, 2, 1], "dims": [24, 48, 96, 144]})
    head_dim = 16 if family in ("vit", "linearvit") else 32  # a scan's matrices cost by the head
    return small_model(family, patch=8, image=64, depth=4, dim=64, head_dim=head_dim, state=16)


def small_model(family: str, **fields: Any) -> ModelConfig:
    """A family's smallest backbone with other sizes; fields that it does not have are left out."""
    name = smallest(family)
    return ModelConfig(name=name, fields=fields_of_small(name, fields))


def smallest(family: str) -> str:
    """The backbone from which a family's small ones are made."""
    return next(name for name in (f"{family}_tiny", family, *list_models(f"{family}_*")) if name in ZOO)


def dino_64(family: str) -> TrainConfig:
    """DINO on images of about 64 px, patch 8, without a GPU: minutes on two cores for `shapes`."""
    method = DinoConfig(
        num_prototypes=64,
        hidden=256,
        bottleneck=64,
        teacher_temperature=0.04,
        teacher_warmup_epochs=0,
        teacher_momentum=0.99,
        global_size=64,
        local_size=32,
        num_local=2,
        global_scale=(0.5, 1.0),
        local_scale=(0.15, 0.5),
        jitter=0.4,
        blur_sigma=(0.1, 0.6),
        spread=0.1,  # without it, 600 steps end at the same answer for every image
    )
    return TrainConfig(
        method=method,
        model=model_64(family),
        optim=OptimConfig(lr=5e-3, min_lr=1e-5, warmup_epochs=1, weight_decay=0.04, weight_decay_end=0.1, clip=3.0),
        **_on_cpu(epochs=18, batch=64),
    )


def lejepa_64(family: str) -> TrainConfig:
    """LeJEPA with the pixels, model and length of `dino_64`."""
    config = with_method(dino_64(family), LeJepaConfig, num_directions=256, hidden=256, embedding=32)
    return replace(config, optim=replace(config.optim, lr=2e-3, weight_decay=0.05, weight_decay_end=0.05))


def supervised_64(family: str) -> TrainConfig:
    """Classification of images of about 64 px without a GPU."""
    return TrainConfig(
        method=SupervisedConfig(size=64, scale=(0.35, 1.0), rand_augment=0.0, mixup=0.2, cutmix=0.0, erasing=0.0),
        model=model_64(family),
        optim=OptimConfig(lr=2e-3, lr_batch=64, warmup_epochs=1, weight_decay=0.05, weight_decay_end=0.05, clip=3.0),
        **_on_cpu(epochs=10, batch=64),
    )


def blur_for(view: int) -> tuple[float, float]:
    """Deviations that are as wide a share of a global view as DINO's, of at most 2 px, are of 224 px."""
    return 0.1, round(2.0 * view / 224, 1)


def model_mini(family: str) -> ModelConfig:
    depth = MINI_DEPTHS.get(family, 6)
    return small_model(family, patch=8, image=MINI_IMAGE, depth=depth, dim=128, head_dim=32, state=32, drop_path=0.05)


def dino_mini(family: str) -> TrainConfig:
    """DINO with crops of 64 and 32 px out of images held at 112 px in the device's memory."""
    method = DinoConfig(
        num_prototypes=2048,
        hidden=512,
        bottleneck=128,
        teacher_temperature=0.04,
        teacher_warmup_epochs=0,
        teacher_momentum=0.99,  # a short training needs a teacher that follows
        global_size=MINI_IMAGE,
        local_size=32,
        num_local=4,
        local_scale=(0.1, 0.4),
        blur_sigma=blur_for(MINI_IMAGE),
        spread=0.02,
    )
    return TrainConfig(
        method=method,
        model=model_mini(family),
        optim=OptimConfig(lr=2e-3, min_lr=1e-6, warmup_steps=200, weight_decay=0.04, weight_decay_end=0.4, clip=3.0),
        steps=3000,
        **_on_one_gpu(size=112, batch=128, graph=True),
    )


def lejepa_mini(family: str) -> TrainConfig:
    """LeJEPA with the pixels, model and length of `dino_mini`."""
    config = with_method(dino_mini(family), LeJepaConfig, hidden=512)
    return replace(config, optim=replace(config.optim, lr=1e-3, weight_decay=0.05, weight_decay_end=0.05))


def supervised_mini(family: str) -> TrainConfig:
    """Classification of the same pixels by the same models."""
    return TrainConfig(
        method=SupervisedConfig(
            size=MINI_IMAGE, scale=(0.25, 1.0), rand_augment=0.0, mixup=0.2, cutmix=1.0, erasing=0.0
        ),
        model=model_mini(family),
        optim=OptimConfig(lr=2e-3, min_lr=1e-6, warmup_steps=200, weight_decay=0.05, weight_decay_end=0.05, clip=3.0),
        steps=1500,
        **_on_one_gpu(size=112, batch=128, graph=True),
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


def model_160(family: str, size: str) -> ModelConfig:
    """A backbone for 100 tokens."""
    name = f"{family}_{size}"
    return ModelConfig(name=name, fields=fields_of_small(name, {**SIZES_160[size], "depth": DEPTHS_160[family]}))


def steps_160(family: str, size: str) -> int:
    """At most ten minutes on one H200 alone; steps of small networks take twice as long where layers without an MLP are
    twice as many."""
    if size == "tiny":
        return 4500
    return 12_000 if DEPTHS_160[family] == DEPTHS_160["vit"] else 6000


def dino_160(family: str, size: str) -> TrainConfig:
    """DINO in minutes on one H200 (docs/speedrun.md).

    Where the papers' recipes differ, it is for a small set: few prototypes, a teacher that follows, KoLeo (`spread`),
    Muon. Tune it with `--data heldout:FOLDER`, as it was. With each change, what was before goes into `changed` of the
    published records (docs/studies/speedrun) and onto the cards of shipped networks.
    """
    global_size, local_size = VIEWS_160[size]
    method = DinoConfig(
        num_prototypes=4096,
        teacher_temperature=0.04,
        teacher_warmup_epochs=0,
        teacher_momentum=0.99,
        global_size=global_size,
        local_size=local_size,
        num_local=6,
        blur_sigma=blur_for(global_size),
        spread=0.02,
    )
    optim = OptimConfig(
        name="muon", lr=RATES_160[size], warmup_steps=300, weight_decay=0.04, weight_decay_end=0.4, clip=3.0
    )
    return TrainConfig(
        method=method,
        model=model_160(family, size),
        optim=optim,
        steps=steps_160(family, size),
        **_on_one_gpu(size=160, batch=256),
    )


def lejepa_160(family: str, size: str) -> TrainConfig:
    """LeJEPA with the pixels, model and length of `dino_160`."""
    config = with_method(dino_160(family, size), LeJepaConfig)
    return replace(config, optim=replace(config.optim, weight_decay=0.05, weight_decay_end=0.05))


def supervised_160(family: str, size: str) -> TrainConfig:
    """Classification of the same pixels by the same models: the twin with labels, for half as many steps."""
    return TrainConfig(
        method=SupervisedConfig(
            size=VIEWS_160[size][0], scale=(0.25, 1.0), rand_augment=0.0, mixup=0.2, cutmix=1.0, erasing=0.0
        ),
        model=model_160(family, size),
        optim=OptimConfig(lr=1e-3, min_lr=1e-6, warmup_steps=300, weight_decay=0.05, weight_decay_end=0.05, clip=3.0),
        steps=steps_160(family, size) // 2,
        **_on_one_gpu(size=160, batch=256),
    )


def segment_160(family: str, size: str) -> TrainConfig:
    """`segment_mini` at 400 tokens, four times as many as the backbone was made for."""
    side = 2 * SIZES_160[size]["image"]
    sizes = (f"method.crop={side}", f"method.short_side={side}", f"method.long_side={2 * side}")
    return replace(override(segment_mini(family), sizes), model=model_160(family, size), data=DataConfig(size=side))


def _on_cpu(*, epochs: int, batch: int) -> dict[str, Any]:
    return {
        "data": DataConfig(size=64, workers=0),
        "epochs": epochs,
        "batch": batch,
        "precision": "fp32",
        "checkpoint": CheckpointConfig(every_steps=50, keep=2),
        "log": LogConfig(every_steps=10, tensorboard=False),
        "knn": KnnConfig(every_epochs=2, bank=2000, queries=1000),
    }


def _on_one_gpu(*, size: int, batch: int, graph: bool | None = None) -> dict[str, Any]:
    return {
        "data": DataConfig(size=size, resident=True),
        "batch": batch,
        "graph": graph,
        "checkpoint": CheckpointConfig(every_steps=500, keep=1),
        "log": LogConfig(every_steps=50, tensorboard=False),
        "knn": KnnConfig(every_epochs=0),  # no validation image is seen before the end
    }


# By size and kind of training; each takes the name of a family.
SMALL: dict[str, dict[str, Callable[[str], TrainConfig]]] = {
    "tiny64": {
        "dino": dino_64,
        "lejepa": lejepa_64,
        "supervised": supervised_64,
        "segment": lambda family: segment_64(model_64(family)),
        "detect": lambda family: detect_64(model_64(family)),
    },
    "mini": {"dino": dino_mini, "lejepa": lejepa_mini, "supervised": supervised_mini, "segment": segment_mini},
    **{
        f"{size}160": {
            "dino": partial(dino_160, size=size),
            "supervised": partial(supervised_160, size=size),
            "segment": partial(segment_160, size=size),
        }
        for size in SIZES_160
    },
}


def small_recipes(family: str, *sizes: str) -> dict[str, Callable[[], TrainConfig]]:
    """The recipes of a family at these sizes, by name."""
    return {f"{kind}_{family}_{size}": partial(make, family) for size in sizes for kind, make in SMALL[size].items()}
