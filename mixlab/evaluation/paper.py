"""Published values of Dino-Mamba ("RNN as Linear Transformer", CVPR 2026), shown beside ours for equal settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mixlab.data.imagenet_labels import NUM_TRAIN

NUM_CLASSES = 1000
EPOCHS = 100

# Table 1, per cent: (model, features that the head reads) -> top-1. 1,536 features are the light heads.
TABLE_1 = {
    ("vit_small", 1536): 77.0,
    ("vit_base", 1536): 78.2,
    ("linearvit_base", 1536): 74.7,
    ("dinovim_small", 1536): 76.7,
    ("dinovim_base", 1536): 78.1,
    ("dinovim_tiny", 2048): 73.7,
    ("dinovim_small", 2048): 77.4,
    ("dinovim_base", 6144): 78.3,
    ("dinomambareg_base", 6144): 78.5,
}
# Their heads read class token and mean of the last block, as DINO's of ViT-B; the others class tokens of more blocks.
READ_AS_DINO = ("vit_base", "linearvit_base")

# How the networks of its tables were pretrained, as far as it decides what they know; in the names of `DinoConfig`.
PRETRAINING = {"kind": "dino", "global_size": 224, "local_size": 96, "num_local": 8, "num_prototypes": 65_536}
PRETRAINING_BATCH = 1024
# Dino-Mamba, §5.1; the figures of ViT are those of DINO (Caron et al., 2021, Table 2), whose trainings were longer.
PRETRAINING_EPOCHS = {"vit_small": 800, "vit_base": 400}
PRETRAINING_EPOCHS_ELSE = 100

# Tables 5 and 6, per cent, DinoVim-S: (blocks, strategy, lr, wd) -> top-1. The text gives lr 1e-3 and wd 0 for all that
# is not varied, and wd 1e-3 where the learning rate is.
ABLATION_MODEL = "dinovim_small"
BASE = (4, "cls", 1e-3, 0.0)
ABLATIONS = {
    (1, "cls", 1e-3, 0.0): 71.8,
    (2, "cls", 1e-3, 0.0): 75.6,
    (3, "cls", 1e-3, 0.0): 76.7,
    (4, "cls", 1e-3, 0.0): 77.2,
    (4, "cls", 1e-3, 1e-2): 75.7,
    (4, "cls", 1e-3, 5e-3): 76.4,
    (4, "cls", 1e-3, 1e-3): 77.3,
    (4, "cls", 2.5e-4, 1e-3): 77.1,
    (4, "cls", 5e-4, 1e-3): 77.2,
    (4, "cls", 2e-3, 1e-3): 77.4,
    (4, "mean", 1e-3, 0.0): 75.9,
    (4, "max", 1e-3, 0.0): 74.6,
    (4, "cls+mean", 1e-3, 0.0): 76.5,
    (4, "cls+max", 1e-3, 0.0): 76.3,
}

# Table 4, per cent, in the names of `robustness.SETS`
TABLE_4_COLUMNS = ("v2-mf", "v2-t07", "v2-ti", "sketch", "a", "r", "real")
TABLE_4 = {
    "linearvit_base": (62.5, 71.0, 76.9, 21.6, 9.6, 32.7, 81.3),
    "dinovim_base": (66.6, 75.0, 80.2, 27.6, 14.2, 33.1, 84.3),
    "vit_base": (66.6, 75.4, 80.7, 25.5, 15.4, 38.0, 84.6),
}


def pretrained_as_published(model: str, config: Mapping[str, Any]) -> bool:
    """Whether a run, by its config.json, trained this model as the paper's figures need it: data, crops and epochs."""
    settings = config.get("settings", {})
    method, fields = settings.get("method", {}), settings.get("model", {}).get("fields", {})
    steps = NUM_TRAIN // PRETRAINING_BATCH
    return (
        all(method.get(name) == value for name, value in PRETRAINING.items())
        and not fields.keys() - {"drop_path"}
        and settings.get("batch") == PRETRAINING_BATCH
        and (config.get("steps_per_epoch"), config.get("total_steps")) == (steps, pretraining_epochs(model) * steps)
    )


def pretraining_epochs(model: str) -> int:
    """The length of the pretraining behind the paper's figures of a model."""
    return PRETRAINING_EPOCHS.get(model, PRETRAINING_EPOCHS_ELSE)


@dataclass(frozen=True)
class ProbeSetting:
    """How a backbone was trained and probed: decides whether the paper's value is comparable."""

    model: str
    pretrained: bool  # as the paper's, and read as there: the branch of Dino-Mamba's models, the stream of the others
    num_classes: int
    num_train: int
    epochs: int
    augmented: bool

    def is_the_papers(self) -> bool:
        return (
            self.pretrained
            and (self.num_classes, self.num_train, self.epochs) == (NUM_CLASSES, NUM_TRAIN, EPOCHS)
            and self.augmented
        )


def probe_figure(setting: ProbeSetting, *, blocks: int, strategy: str, lr: float, weight_decay: float) -> float | None:
    """The share in Tables 5 and 6 for one head of the grid; None where the paper measured something else."""
    if not setting.is_the_papers() or setting.model != ABLATION_MODEL:
        return None
    found = ABLATIONS.get((blocks, strategy, lr, weight_decay))
    return None if found is None else found / 100


def best_probe_figure(setting: ProbeSetting, *, width: int, strategy: str) -> float | None:
    """The accuracy in Table 1 for the best head on this number of features."""
    if not setting.is_the_papers() or strategy != ("cls+mean" if setting.model in READ_AS_DINO else "cls"):
        return None
    found = TABLE_1.get((setting.model, width))
    return None if found is None else found / 100


def robustness_figure(model: str, name: str) -> float | None:
    """The share in Table 4."""
    if model not in TABLE_4 or name not in TABLE_4_COLUMNS:
        return None
    return TABLE_4[model][TABLE_4_COLUMNS.index(name)] / 100
