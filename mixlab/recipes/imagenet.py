"""Recipes of ImageNet: DINO as Dino-Mamba has it, LeJEPA, and classification as MambaOut or DeiT have it."""

from dataclasses import replace

from mixlab.backbones.zoo import known_fields
from mixlab.evaluation.dense_recipe import MAMBAOUT_DROP_PATH
from mixlab.training.config import ModelConfig, OptimConfig, TrainConfig
from mixlab.training.dino import DinoConfig
from mixlab.training.lejepa import LeJepaConfig
from mixlab.training.supervised import SupervisedConfig

DEIT_FAMILIES = ("vit", "linearvit")
# As released; 0.1 for LocalMamba's, and for those of which no rate is known: DeiT's, on which MambaOut §5 builds.
MAMBA_DROP_PATH = {
    "vim_tiny": 0.0, "vim_small": 0.05, "plainmamba_l1": 0.2, "plainmamba_l2": 0.2, "plainmamba_l3": 0.4,
    "vmamba_tiny": 0.2, "vmamba_small": 0.3, "vmamba_base": 0.6, "vmamba_base_s1l20": 0.5,
}  # fmt: skip
BIG_TRANSFORMERS = ("vit_base", "linearvit_base")


def dino(name: str) -> TrainConfig:
    """DINO on ImageNet as Dino-Mamba §5.1 has it: 100 epochs, batch 1024, 2 x 224 + 8 x 96 px.

    The teacher of a Mamba drops paths, as in Dino-Mamba's released code; other teachers do not, as in DINO's. Gradients
    are clipped parameter by parameter, as in both; but a Mamba's two directions are one parameter here (of their
    convolutions, steps, decays, skips and norms), and two there.
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


def lejepa(name: str) -> TrainConfig:
    """LeJEPA on ImageNet: its loss, rate and decay (its §6), with the crops, epochs and batch of our DINO recipes."""
    return replace(
        dino(name),
        method=LeJepaConfig(),
        optim=OptimConfig(lr=5e-4, lr_batch=1024, min_lr=1e-6, weight_decay=0.05, weight_decay_end=0.05, clip=3.0),
    )


def supervised(name: str) -> TrainConfig:
    """Classification on ImageNet as MambaOut, Table 5, has it: 300 epochs, batch 4096 (set `accumulate`).

    What the table leaves out (the smallest rates, interpolation, draws of mixup) is from MambaOut's released code. That
    trains for 10 epochs more, at the smallest rate (timm's `cooldown_epochs`), of which the paper does not speak.
    """
    family, _, size = name.partition("_")
    fields = {"drop_path": mamba_drop_path(name)}
    if family == "mambaout":
        fields = {"drop_path_rate": MAMBAOUT_DROP_PATH[size]}
    return TrainConfig(
        method=SupervisedConfig(),
        model=ModelConfig(name=name, fields=fields),
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

    MambaOut §5 and its Figure 3 (b), fully visible and causal ViTs, build on it. Of an image's three copies DeiT gives
    each to another GPU; here they are in one batch, so that mixup may blend two of them.
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


def with_drop_path(name: str, rate: float) -> ModelConfig:
    """A backbone with stochastic depth, where it has that."""
    known = known_fields(name)
    return ModelConfig(name=name, fields={"drop_path": rate} if known is None or "drop_path" in known else {})


def mamba_drop_path(name: str) -> float:
    """That of its own name, or of a name that it begins with."""
    start = next((key for key in MAMBA_DROP_PATH if name.startswith(f"{key}_s")), "")
    return MAMBA_DROP_PATH.get(name, MAMBA_DROP_PATH.get(start, 0.1))
