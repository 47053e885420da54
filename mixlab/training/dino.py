"""DINO (Caron et al. 2021): from all views, a student predicts the outputs of a teacher, its own moving average, on the
global views. `dino_parts` has the parts; here they are one method of the training loop, with its watch for collapse.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from mixlab.backbones.backbone import Backbone
from mixlab.data.packed import PackedBatch
from mixlab.training.config import check_numbers
from mixlab.training.dino_parts import (
    DinoCentre,
    DinoHead,
    balanced_targets,
    dino_loss,
    koleo_loss,
    teacher_targets,
)
from mixlab.training.distributed import rows_of_all
from mixlab.training.muon import linear_weights
from mixlab.training.optim import move_towards_
from mixlab.training.recipe import BatchPart
from mixlab.training.schedules import cosine, linear_by_epoch
from mixlab.training.views import (
    NUM_GLOBAL,
    CollapseWatch,
    Symptom,
    ViewsConfig,
    ViewsNetwork,
    ViewsRecipe,
    feature_spread,
)


@dataclass(frozen=True, kw_only=True)
class DinoConfig(ViewsConfig):
    """The defaults are the values of Dino-Mamba §5.1. What the paper leaves open is as in its released code and in
    facebookresearch/dino; where the two differ, or differ from the paper, a comment says so.
    """

    kind: ClassVar[str] = "dino"
    title: ClassVar[str] = "DINO pretraining"
    label: ClassVar[str] = "DINO"
    curves: ClassVar[Mapping[str, tuple[str, str]]] = {"teacher_entropy": ("entropy of the teacher", "nats")}
    earlier: ClassVar[Mapping[str, Any]] = {
        "norm_last_layer": True,
        "decay_tokens": False,
        "teacher_drop_path": False,
        "balance": 0,
    }
    num_prototypes: int = 65_536
    hidden: int = 2048
    bottleneck: int = 256
    norm_last_layer: bool = True  # False: the prototypes' lengths are learned; both codes have the choice
    student_temperature: float = 0.1
    teacher_temperature_start: float = 0.04
    teacher_temperature: float = 0.07  # the paper; the default of both codes is 0.04 throughout
    teacher_warmup_epochs: int = 30  # the paper; 0 in both codes
    teacher_momentum: float = 0.996  # cosine to 1
    centre_momentum: float = 0.9
    teacher_drop_path: bool = False  # the teacher drops paths as the student does: Dino-Mamba's code, not DINO's
    decay_tokens: bool = True  # class tokens, registers and positions decay as matrices do, in both codes
    frozen_prototype_epochs: int = 1
    spread: float = 0.0  # weight of KoLeo, which keeps the features of a pass apart: for small sets and batches
    balance: int = 0  # rounds of Sinkhorn's algorithm instead of the centre, 3 in DINOv2: see `balanced_targets`

    def __post_init__(self) -> None:
        sizes = dict.fromkeys(("num_prototypes", "hidden", "bottleneck"), 1)
        epochs = dict.fromkeys(("teacher_warmup_epochs", "frozen_prototype_epochs", "spread", "balance"), 0)
        check_numbers(
            self,
            "method.",
            at_least={**sizes, **epochs},
            above_zero=("student_temperature", "teacher_temperature_start", "teacher_temperature"),
            shares=("teacher_momentum", "centre_momentum"),
        )
        super().__post_init__()

    def watch(self) -> CollapseWatch:
        return CollapseWatch(SYMPTOMS, largest=math.log(self.num_prototypes))

    def build(self, backbone: Backbone, *, num_classes: int, total_steps: int, steps_per_epoch: int) -> DinoRecipe:
        frozen = self.frozen_prototype_epochs * steps_per_epoch
        if total_steps <= frozen:
            warnings.warn(
                f"this run never trains its prototypes: they are frozen for {frozen} steps, and it has {total_steps}; "
                "train for longer, or set method.frozen_prototype_epochs=0",
                stacklevel=2,
            )
        rises = self.teacher_temperature != self.teacher_temperature_start
        if rises and self.teacher_warmup_epochs * steps_per_epoch > total_steps:
            warnings.warn(
                f"the teacher's temperature rises for {self.teacher_warmup_epochs} epochs, longer than the run; "
                "train for longer, or set method.teacher_warmup_epochs to fewer",
                stacklevel=2,
            )
        return DinoRecipe(self, backbone, total_steps=total_steps)


class DinoRecipe(ViewsRecipe):
    config: DinoConfig

    def __init__(self, config: DinoConfig, backbone: Backbone, *, total_steps: int) -> None:
        self.total_steps = total_steps
        head = DinoHead(
            dim=backbone.dim,
            hidden=config.hidden,
            bottleneck=config.bottleneck,
            num_prototypes=config.num_prototypes,
            norm_last_layer=config.norm_last_layer,
        )
        super().__init__(config, ViewsNetwork(backbone, head))
        self.student = self.network
        self.teacher = copy.deepcopy(self.student).requires_grad_(False).train(config.teacher_drop_path)
        self.centre = DinoCentre(config.num_prototypes)
        exchanged = {"features (method.spread)": config.spread, "targets (method.balance)": config.balance}
        self.shared = " and ".join(what for what, used in exchanged.items() if used)

    def modules(self) -> dict[str, nn.Module]:
        return {"network": self.student, "teacher": self.teacher, "centre": self.centre}

    def prepare(self, batch: PackedBatch, part: BatchPart) -> tuple[Tensor, ...]:
        """The teacher's temperature, then the views of each size."""
        temperature = linear_by_epoch(
            part.epoch,
            start=self.config.teacher_temperature_start,
            end=self.config.teacher_temperature,
            epochs=self.config.teacher_warmup_epochs,
        )
        mean = self.centre.mean
        return torch.full((), temperature, dtype=mean.dtype, device=mean.device), *self.views(batch, part)

    def loss(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        temperature, *views = inputs
        with torch.no_grad():
            teacher, features = self.teacher([views[0][:NUM_GLOBAL]])  # local views may have the same size
            if self.config.balance:
                targets = balanced_targets(teacher, temperature=temperature, rounds=self.config.balance)
            else:
                targets = teacher_targets(teacher, self.centre.mean, temperature=temperature)
            self.centre.collect(teacher)
        student, student_features = self.run(views)
        loss = dino_loss(student, targets, temperature=self.config.student_temperature)
        if self.config.spread:
            seen = rows_of_all(student_features[: len(targets)].transpose(0, 1)).transpose(0, 1)
            loss = loss + self.config.spread * koleo_loss(seen)
        return loss, describe_collapse(targets, features)

    def muon_weights(self) -> set[str]:
        return super().muon_weights() | linear_weights(self.network, inside=DinoHead)  # its prototypes are the last

    def before_update(self, part: BatchPart) -> None:
        if part.epoch < self.config.frozen_prototype_epochs:
            for parameter in cast("DinoHead", self.student.head).last_layer():
                parameter.grad = None

    def after_update(self, part: BatchPart) -> dict[str, Tensor]:
        momentum = cosine(part.step, start=self.config.teacher_momentum, end=1.0, total=self.total_steps)
        move_towards_(self.teacher.parameters(), self.student.parameters(), 1 - momentum)
        for ours, theirs in zip(self.teacher.buffers(), self.student.buffers(), strict=True):
            ours.copy_(theirs)
        return {"centre_drift": self.centre.move(self.config.centre_momentum)}

    def no_weight_decay(self) -> set[str]:
        backbone = self.student.backbone
        exempt = backbone.no_weight_decay() - (backbone.token_names() if self.config.decay_tokens else set())
        return {f"backbone.{name}" for name in exempt}

    def exported(self) -> Backbone:
        return self.teacher.backbone


# Kinds of collapse, by the metrics of a report; `largest` is ln K.
SYMPTOMS = (
    Symptom(
        "uniform targets",
        lambda f: f["teacher_entropy"] > f["largest"] - 0.05,  # nats: the targets hold almost no information
        "the teacher gives every output the same probability (entropy {teacher_entropy:.2f} of at most {largest:.2f})",
        "keep features apart (method.spread=0.1), lower method.teacher_temperature (0.04) or optim.lr",
    ),
    Symptom(
        "one output",
        lambda f: f["batch_entropy"] < min(0.5, f["largest"] / 2),  # nats: fewer than two outputs over a whole batch
        "the teacher gives all images the same output (entropy over the batch {batch_entropy:.2f})",
        "lower method.centre_momentum (0.9) so that the centre follows, lower optim.lr, or raise optim.warmup_epochs",
    ),
    Symptom(
        "equal features",
        lambda f: f["feature_spread"] < 0.01,
        "the features of all images are the same (spread {feature_spread:.4f} of 1)",
        "keep features apart (method.spread=0.1), lower optim.lr, clip gradients (optim.clip=0.3), or raise "
        "method.teacher_momentum (0.9995 for small batches)",
    ),
    Symptom(
        "restless centre",
        lambda f: f["centre_drift"] > 0.1,  # of a cosine per step, where outputs lie in [-1, 1]
        "the centre moves by {centre_drift:.3f} per step, much of the outputs' range",
        "raise method.centre_momentum (0.99 for small batches) or use a larger batch",
    ),
)


@torch.no_grad()
def describe_collapse(targets: Tensor, features: Tensor) -> dict[str, Tensor]:
    """The metrics that show a collapse, from targets (T, B, K) and the teacher's features (T, B, D).

    teacher_entropy  mean entropy of one image's target, in nats: ln K if all outputs are equal
    batch_entropy    entropy of the mean target: 0 if every image has the same one output
    feature_spread   1 if the features point in all directions, 0 if they are equal
    """
    mean = targets.mean((0, 1))
    return {
        "teacher_entropy": torch.special.entr(targets).sum(-1).mean(),
        "batch_entropy": torch.special.entr(mean).sum(),
        "feature_spread": feature_spread(features.to(targets.dtype)),
    }
