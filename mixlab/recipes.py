"""Full configurations as functions: `RECIPES["dino_dinovim_base"]()`. The papers' own, and small ones.

dino_NAME              DINO on ImageNet, Dino-Mamba §5.1
lejepa_NAME            LeJEPA on ImageNet: lejepa_FAMILY_mini and lejepa_FAMILY_tiny64 as for DINO
dino_FAMILY_mini, supervised_FAMILY_mini, segment_FAMILY_mini
                       photographs of about 112 px such as Imagenette: a minute on one GPU (`mixlab study miniature`).
                       Families share all but the depth (without an MLP a layer is half as large) and the learning rate,
                       which the study tunes; the length is given in steps, so it does not depend on the data set
dino_FAMILY_small160, dino_FAMILY_tiny160, lejepa_vit_small160, supervised_FAMILY_SIZE160, segment_FAMILY_SIZE160
                       photographs of 160 px: about 22 million parameters and patches of 16 px, or 5.5 million and
                       patches of 8, in every family; minutes on one GPU (`mixlab speedrun`, `mixlab study small`)
dino_FAMILY_tiny64     DINO on 64 px images such as `shapes`: minutes on two cores
supervised_NAME        classification on ImageNet: MambaOut Table 5, visual Mambas with their own drop path; for vit_*,
                       vit_causal_* and linearvit_* DeiT's
supervised_FAMILY_tiny64, supervised_mambaout_femto64
segment_NAME           UperNet on ADE20K, both papers
segment_FAMILY_tiny64, segment_mambaout_femto64
detect_NAME            Cascade Mask R-CNN on COCO, Dino-Mamba; Mask R-CNN for mambaout_NAME, MambaOut
detect_FAMILY_tiny64, detect_mambaout_femto64
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from mixlab.backbones.visual_mambas import VISUAL_MAMBAS
from mixlab.backbones.zoo import SIZES, ZOO, ZooEntry, fields_of_small, known_fields, list_models
from mixlab.errors import InputError, did_you_mean
from mixlab.evaluation.dense_recipe import MAMBAOUT_DROP_PATH
from mixlab.evaluation.detection.recipe import detect, detect_64
from mixlab.evaluation.methods import train_config
from mixlab.evaluation.segmentation.recipe import SegmentConfig, segment, segment_64
from mixlab.plugins import Registry, check_plugins
from mixlab.run.directory import RunDirectory, read_json
from mixlab.training.config import (
    CheckpointConfig,
    DataConfig,
    KnnConfig,
    LogConfig,
    MethodConfig,
    ModelConfig,
    OptimConfig,
    TrainConfig,
)
from mixlab.training.dino import DinoConfig
from mixlab.training.lejepa import LeJepaConfig
from mixlab.training.settings import has_begun, is_older, override
from mixlab.training.supervised import SupervisedConfig

RECIPE_FAMILIES = ("vit", "linearvit", "dinovim", "dinomambareg", "gatedconv")
DEIT_FAMILIES = ("vit", "linearvit")
# As released; 0.1 for LocalMamba's, and for those of which no rate is known.
MAMBA_DROP_PATH = {
    "vim_tiny": 0.0, "vim_small": 0.05, "plainmamba_l1": 0.2, "plainmamba_l2": 0.2, "plainmamba_l3": 0.4,
    "vmamba_tiny": 0.2, "vmamba_small": 0.3, "vmamba_base": 0.6, "vmamba_base_s1l20": 0.5,
}  # fmt: skip
MAMBA_FAMILIES = ("vim", "mambareg", "plainmamba", "mamba2d", "localvim", "vmamba", "localvmamba", "efficientvmamba")
BIG_TRANSFORMERS = ("vit_base", "linearvit_base")
MINI_IMAGE = 64  # px of a view: 8 x 8 patches
# Matched parameters, as the widths of ViT-Ti and ViT-S give them: a layer without an MLP is half as large.
SIZES_160: dict[str, dict[str, Any]] = {
    "tiny": {"dim": 192, "patch": 8, "image": 80, "drop_path": 0.0},
    "small": {"dim": 384, "patch": 16, "image": 160, "drop_path": 0.1},
}
# px of global and local views, steps: at equal cost, tiny networks learn more from many small views than from few large
VIEWS_160 = {"tiny": (64, 32, 4500), "small": (160, 64, 5040)}
DEPTHS_160 = {"vit": 12, "linearvit": 12, "dinovim": 22, "dinomambareg": 22, "gatedconv": 22}
MINI_DEPTHS = {"vit": 6, "linearvit": 6, "dinovim": 12, "dinomambareg": 12, "gatedconv": 12}  # 1.2 to 1.5 M parameters


def dino(name: str) -> TrainConfig:
    """DINO on ImageNet as Dino-Mamba §5.1 has it: 100 epochs, batch 1024, 2 x 224 + 8 x 96 px.

    The teacher of a Mamba drops paths, as in Dino-Mamba's released code; other teachers do not, as in DINO's.
    """
    return TrainConfig(
        method=DinoConfig(teacher_drop_path=name.startswith(("dinovim", "dinomambareg"))),
        model=with_drop_path(name, 0.1),
        optim=OptimConfig(
            lr=5e-4,
            min_lr=1e-6,
            warmup_epochs=10,
            weight_decay=0.04,
            weight_decay_end=0.4,
            clip=0.3 if name in BIG_TRANSFORMERS else 3.0,  # DINO's arguments for ViT-B; Dino-Mamba's for the rest
        ),
        epochs=100,
        batch=1024,
    )


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


def lejepa(name: str) -> TrainConfig:
    """LeJEPA on ImageNet: its loss, rate and decay (its §6), with the crops, epochs and batch of our DINO recipes."""
    return replace(
        dino(name),
        method=LeJepaConfig(),
        optim=OptimConfig(lr=5e-4, lr_batch=1024, min_lr=1e-6, weight_decay=0.05, weight_decay_end=0.05, clip=3.0),
    )


def lejepa_64(family: str) -> TrainConfig:
    """LeJEPA with the pixels, model and length of `dino_64`."""
    config = with_method(dino_64(family), LeJepaConfig, num_directions=256, hidden=256, embedding=32)
    return replace(config, optim=replace(config.optim, lr=2e-3, weight_decay=0.05, weight_decay_end=0.05))


def lejepa_mini(family: str) -> TrainConfig:
    """LeJEPA with the pixels, model and length of `dino_mini`."""
    config = with_method(dino_mini(family), LeJepaConfig, hidden=512)
    return replace(config, optim=replace(config.optim, lr=1e-3, weight_decay=0.05, weight_decay_end=0.05))


def with_method(config: TrainConfig, method: type[MethodConfig], **settings: Any) -> TrainConfig:
    """The same training by another method of the same kind, such as another `ViewsConfig` or `SupervisedConfig`.

    What both kinds have keeps the recipe's values: views, crops, augmentation. `settings` are the method's own.
    """
    shared = next(base for base in method.__mro__ if isinstance(config.method, base))
    if not is_dataclass(shared) or not fields(shared):
        raise InputError(
            f"{method.__name__} has no settings in common with {type(config.method).__name__}, the method of this "
            "recipe; start from a recipe of its own kind"
        )
    if unknown := [name for name in settings if name not in {field.name for field in fields(method)}]:
        hint = did_you_mean(unknown[0], [field.name for field in fields(method)], otherwise="see its class")
        raise InputError(f"{method.__name__} has no setting {unknown[0]!r}; {hint}")
    kept = {field.name: getattr(config.method, field.name) for field in fields(shared)}
    return replace(config, method=method(**{**kept, **settings}))


def supervised(name: str, *, drop_path: float) -> TrainConfig:
    """Classification on ImageNet as MambaOut, Table 5, has it: 300 epochs, batch 4096 (set `accumulate`).

    What the table leaves out (the smallest rates, interpolation, draws of mixup) is from MambaOut's released code.
    """
    field = "drop_path_rate" if name.startswith("mambaout") else "drop_path"
    return TrainConfig(
        method=SupervisedConfig(),
        model=ModelConfig(name=name, fields={field: drop_path}),
        optim=OptimConfig(
            lr=4e-3,
            lr_batch=4096,
            min_lr=1e-5,
            warmup_epochs=20,
            warmup_start=1e-6 / 4e-3,
            decay="cosine_by_epoch",
            weight_decay=0.05,
            weight_decay_end=0.05,
        ),
        epochs=300,
        batch=4096,
    )


def deit(name: str) -> TrainConfig:
    """Classification on ImageNet as DeiT's released code has it, without distillation: 300 epochs, batch 1024.

    MambaOut §5 and its Figure 3 (b), fully visible and causal ViTs, build on it.
    """
    method = SupervisedConfig(
        mix_every=256,  # a process's batch, on four GPUs
        erase_first=True,
        interpolation="bicubic",
        repeats=3,
    )
    return TrainConfig(
        method=method,
        model=with_drop_path(name, 0.1),
        optim=OptimConfig(
            lr=5e-4,
            lr_batch=512,
            min_lr=1e-5,
            warmup_epochs=5,
            warmup_start=1e-6 / 1e-3,
            decay="cosine_by_epoch",
            weight_decay=0.05,
            weight_decay_end=0.05,
        ),
        epochs=300,
        batch=1024,
    )


def supervised_64(family: str) -> TrainConfig:
    """Classification of images of about 64 px without a GPU."""
    return TrainConfig(
        method=SupervisedConfig(size=64, scale=(0.35, 1.0), rand_augment=0.0, mixup=0.2, cutmix=0.0, erasing=0.0),
        model=model_64(family),
        optim=OptimConfig(lr=2e-3, lr_batch=64, warmup_epochs=1, weight_decay=0.05, weight_decay_end=0.05, clip=3.0),
        **_on_cpu(epochs=10, batch=64),
    )


def with_drop_path(name: str, rate: float) -> ModelConfig:
    """A backbone with stochastic depth, where it has that."""
    known = known_fields(name)
    return ModelConfig(name=name, fields={"drop_path": rate} if known is None or "drop_path" in known else {})


def mamba_drop_path(name: str) -> float:
    """That of its own name, or of the first name that it begins with."""
    return next((rate for key, rate in MAMBA_DROP_PATH.items() if name == key or name.startswith(f"{key}_s")), 0.1)


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


def family_of(name: str) -> str:
    """The name of a backbone without its size."""
    return next((name.removesuffix(f"_{size}") for size in SIZES if name.endswith(f"_{size}")), name)


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
        method=SupervisedConfig(
            size=MINI_IMAGE, scale=(0.25, 1.0), rand_augment=0.0, mixup=0.2, cutmix=1.0, erasing=0.0
        ),
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


def model_160(family: str, size: str) -> ModelConfig:
    """A backbone for 100 tokens."""
    name = f"{family}_{size}"
    return ModelConfig(name=name, fields=fields_of_small(name, {**SIZES_160[size], "depth": DEPTHS_160[family]}))


def dino_160(family: str, size: str) -> TrainConfig:
    """DINO in minutes on one H200: ViT-S 6, tiny networks 2 to 4 (docs/speedrun.md).

    Where the papers' recipes differ, it is for a small set: few prototypes, a teacher that follows, KoLeo (`spread`).
    Tune it with `--data heldout:FOLDER`. So were the rates of tiny networks: of ViT, and of a gated CNN for all that
    have no MLP.
    """
    global_size, local_size, steps = VIEWS_160[size]
    lr = 2e-3 if size == "tiny" and DEPTHS_160[family] > DEPTHS_160["vit"] else 1e-3
    method = DinoConfig(
        num_prototypes=4096,
        teacher_temperature=0.04,
        teacher_warmup_epochs=0,
        teacher_momentum=0.99,
        global_size=global_size,
        local_size=local_size,
        num_local=6,
        spread=0.02,
    )
    return TrainConfig(
        method=method,
        model=model_160(family, size),
        optim=OptimConfig(lr=lr, min_lr=1e-6, warmup_steps=300, weight_decay=0.04, weight_decay_end=0.4, clip=3.0),
        steps=steps,
        **_resident_160(),
    )


def lejepa_160(family: str, size: str) -> TrainConfig:
    """LeJEPA with the pixels, model and length of `dino_160`."""
    config = with_method(dino_160(family, size), LeJepaConfig)
    return replace(config, optim=replace(config.optim, weight_decay=0.05, weight_decay_end=0.05))


def supervised_160(family: str, size: str) -> TrainConfig:
    """Classification of the same pixels by the same models: the twin with labels, for half as many steps."""
    view, _, steps = VIEWS_160[size]
    return TrainConfig(
        method=SupervisedConfig(size=view, scale=(0.25, 1.0), rand_augment=0.0, mixup=0.2, cutmix=1.0, erasing=0.0),
        model=model_160(family, size),
        optim=OptimConfig(lr=1e-3, min_lr=1e-6, warmup_steps=300, weight_decay=0.05, weight_decay_end=0.05, clip=3.0),
        steps=steps // 2,
        **_resident_160(),
    )


def segment_160(family: str, size: str) -> TrainConfig:
    """`segment_mini` at 400 tokens, four times as many as the backbone was made for."""
    side = 2 * SIZES_160[size]["image"]
    sizes = (f"method.crop={side}", f"method.short_side={side}", f"method.long_side={2 * side}")
    return replace(override(segment_mini(family), sizes), model=model_160(family, size), data=DataConfig(size=side))


def _resident_160() -> dict[str, Any]:
    return {
        "data": DataConfig(size=160, resident=True),
        "batch": 256,
        "checkpoint": CheckpointConfig(every_steps=500, keep=1),
        "log": LogConfig(every_steps=50, tensorboard=False),
        "knn": KnnConfig(every_epochs=0),  # no validation image is seen before the end
    }


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


def _on_one_gpu() -> dict[str, Any]:
    return {
        "data": DataConfig(size=112, resident=True),
        "batch": 128,
        "graph": True,
        "checkpoint": CheckpointConfig(every_steps=500, keep=1),
        "log": LogConfig(every_steps=50, tensorboard=False),
        "knn": KnnConfig(every_epochs=0),
    }


OWN: dict[str, Callable[[], TrainConfig]] = {
    **{f"dino_{name}": partial(dino, name) for family in RECIPE_FAMILIES for name in list_models(f"{family}_*")},
    **{f"lejepa_{name}": partial(lejepa, name) for family in RECIPE_FAMILIES for name in list_models(f"{family}_*")},
    **{f"lejepa_{family}_mini": partial(lejepa_mini, family) for family in RECIPE_FAMILIES},
    **{f"lejepa_{family}_tiny64": partial(lejepa_64, family) for family in RECIPE_FAMILIES},
    **{f"dino_{family}_mini": partial(dino_mini, family) for family in RECIPE_FAMILIES},
    **{f"supervised_{family}_mini": partial(supervised_mini, family) for family in RECIPE_FAMILIES},
    **{f"segment_{family}_mini": partial(segment_mini, family) for family in RECIPE_FAMILIES},
    **{
        f"{kind}_{family}_{size}160": partial(make, family, size)
        for kind, make in (("dino", dino_160), ("supervised", supervised_160), ("segment", segment_160))
        for family in RECIPE_FAMILIES
        for size in SIZES_160
    },
    "lejepa_vit_small160": partial(lejepa_160, "vit", "small"),
    **{f"dino_{family}_tiny64": partial(dino_64, family) for family in RECIPE_FAMILIES},
    **{
        f"supervised_mambaout_{size}": partial(supervised, f"mambaout_{size}", drop_path=rate)
        for size, rate in MAMBAOUT_DROP_PATH.items()
    },
    **{
        f"supervised_{name}": partial(supervised, name, drop_path=0.1)  # DeiT's rate, on which MambaOut §5 builds
        for family in ("dinovim", "dinomambareg", "gatedconv")
        for name in list_models(f"{family}_*")
    },
    **{f"dino_{name}": partial(dino, name) for name in VISUAL_MAMBAS},
    **{f"lejepa_{name}": partial(lejepa, name) for name in VISUAL_MAMBAS},
    **{f"supervised_{name}": partial(supervised, name, drop_path=mamba_drop_path(name)) for name in VISUAL_MAMBAS},
    **{
        f"{task}_{family}_tiny64": partial(make, family)
        for task, make in (("dino", dino_64), ("lejepa", lejepa_64), ("supervised", supervised_64))
        for family in MAMBA_FAMILIES
    },
    **{f"segment_{family}_tiny64": partial(segment_64, model_64(family)) for family in MAMBA_FAMILIES},
    **{f"detect_{family}_tiny64": partial(detect_64, model_64(family)) for family in MAMBA_FAMILIES},
    **{f"supervised_{name}": partial(deit, name) for family in DEIT_FAMILIES for name in list_models(f"{family}_*")},
    **{f"supervised_{family}_tiny64": partial(supervised_64, family) for family in RECIPE_FAMILIES},
    "supervised_mambaout_femto64": partial(supervised_64, "mambaout"),
    **{f"segment_{name}": partial(segment, ModelConfig(name=name)) for name in list_models()},
    **{f"segment_{family}_tiny64": partial(segment_64, model_64(family)) for family in RECIPE_FAMILIES},
    "segment_mambaout_femto64": partial(segment_64, model_64("mambaout")),
    **{f"detect_{name}": partial(detect, ModelConfig(name=name)) for name in list_models()},
    **{f"detect_{family}_tiny64": partial(detect_64, model_64(family)) for family in RECIPE_FAMILIES},
    "detect_mambaout_femto64": partial(detect_64, model_64("mambaout")),
}


RECIPES: Registry[Callable[[], TrainConfig]] = Registry("recipe", OWN)
R = TypeVar("R", bound=Callable[[], TrainConfig])


def register_recipe(recipe: R | str) -> Any:
    """Make a full configuration known by its name: a decorator of a function that returns a `TrainConfig`.

    The recipe is called as the function is, or `@register_recipe("another_name")`.
    """
    if isinstance(recipe, str):

        def register(function: R) -> R:
            RECIPES[str(recipe)] = function
            return function

        return register
    if not callable(recipe):
        raise InputError(f"a recipe is a function that returns a TrainConfig; got a {type(recipe).__name__}")
    RECIPES[recipe.__name__] = recipe
    return recipe


def _derive_recipes(name: str, entry: ZooEntry) -> None:
    """What every registered backbone gets: the recipes of ImageNet and COCO, and small ones of its family."""
    origin = ZOO.origin(name)
    if origin is None:
        return  # ours are above, with what was published of each
    model, family = ModelConfig(name=name), family_of(name)
    found: dict[str, Callable[[], TrainConfig]] = {
        f"dino_{name}": partial(dino, name),
        f"lejepa_{name}": partial(lejepa, name),
        f"supervised_{name}": partial(deit, name),
        f"segment_{name}": partial(segment, model),
        f"detect_{name}": partial(detect, model),
    }
    if name == smallest(family):
        found |= {
            f"dino_{family}_mini": partial(dino_mini, family),
            f"lejepa_{family}_mini": partial(lejepa_mini, family),
            f"supervised_{family}_mini": partial(supervised_mini, family),
            f"segment_{family}_mini": partial(segment_mini, family),
            f"dino_{family}_tiny64": partial(dino_64, family),
            f"lejepa_{family}_tiny64": partial(lejepa_64, family),
            f"supervised_{family}_tiny64": partial(supervised_64, family),
            f"segment_{family}_tiny64": partial(segment_64, model_64(family)),
            f"detect_{family}_tiny64": partial(detect_64, model_64(family)),
        }
    for recipe, make in found.items():
        RECIPES.derive(recipe, make, origin)


ZOO.follow(_derive_recipes)


def recipe_for(run: Path, name: str) -> TrainConfig:
    """The config of a recipe for a run; one that is older than some of its settings resumes as it recorded."""
    file = run / "config.json"
    stored = read_json(file) if file.is_file() else {}
    check_plugins(stored.get("plugins"), run)
    config = find_recipe(name)
    settings = stored.get("settings")
    if stored.get("recipe") == name and isinstance(settings, dict) and has_begun(RunDirectory(run)):
        return train_config(settings) if is_older(settings, config) else config
    return config


def find_recipe(name: str) -> TrainConfig:
    """The config of a recipe, or the one in another run's config.json."""
    if name.endswith(".json"):
        stored = read_json(Path(name))
        if "settings" not in stored:
            raise InputError(f"{name} is not the config.json of a training run; give one, or a recipe's name")
        check_plugins(stored.get("plugins"), name)
        return train_config(stored["settings"])
    if name not in RECIPES:
        hint = did_you_mean(name, RECIPES, otherwise=f"recipes are {', '.join(RECIPES)}")
        raise InputError(f"unknown recipe {name!r}; {hint}")
    config = RECIPES[name]()
    if not isinstance(config, TrainConfig):
        raise InputError(f"the recipe {name} gives a {type(config).__name__}; its function must return a TrainConfig")
    return config
