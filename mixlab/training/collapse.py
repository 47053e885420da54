"""Collapse: how DINO can stop learning without an error, the figures that show it, and what to try."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

PATIENCE = 5  # reports in a row before a warning
UNIFORM_GAP = 0.05  # nats below ln K: the targets hold almost no information
ONE_OUTPUT = 0.5  # nats: fewer than two outputs in use over a whole batch
SAME_FEATURES = 0.01
FAST_CENTRE = 0.1  # of a cosine per step, where outputs lie in [-1, 1]


@dataclass(frozen=True)
class Symptom:
    name: str
    description: str
    advice: str


UNIFORM = Symptom(
    "uniform targets",
    "the teacher gives every output the same probability (entropy {teacher_entropy:.2f} of at most {largest:.2f})",
    "keep features apart (method.spread=0.1), lower method.teacher_temperature (0.04) or optim.lr",
)
ONE = Symptom(
    "one output",
    "the teacher gives all images the same output (entropy over the batch {batch_entropy:.2f})",
    "lower method.centre_momentum (0.9) so that the centre follows, lower optim.lr, or raise optim.warmup_epochs",
)
SAME = Symptom(
    "equal features",
    "the features of all images are the same (spread {feature_spread:.4f} of 1)",
    "keep features apart (method.spread=0.1), lower optim.lr, clip gradients (optim.clip=0.3), or raise "
    "method.teacher_momentum (0.9995 for small batches)",
)
CENTRE = Symptom(
    "restless centre",
    "the centre moves by {centre_drift:.3f} per step, much of the outputs' range",
    "raise method.centre_momentum (0.99 for small batches) or use a larger batch",
)


class CollapseWatch:
    """Looks at every report; warns once when a symptom has lasted, and again only after it went away."""

    def __init__(self, num_prototypes: int) -> None:
        self.largest = math.log(num_prototypes)
        self._lasted: dict[str, int] = {}

    def look(self, step: int, figures: Mapping[str, float]) -> list[str]:
        """Warnings to print."""
        values = {**figures, "largest": self.largest}
        present = {
            UNIFORM: figures["teacher_entropy"] > self.largest - UNIFORM_GAP,
            ONE: figures["batch_entropy"] < min(ONE_OUTPUT, self.largest / 2),
            SAME: figures["feature_spread"] < SAME_FEATURES,
            CENTRE: figures["centre_drift"] > FAST_CENTRE,
        }
        warnings = []
        for symptom, here in present.items():
            self._lasted[symptom.name] = self._lasted.get(symptom.name, 0) + 1 if here else 0
            if self._lasted[symptom.name] == PATIENCE:
                description = f"{symptom.name}: {symptom.description.format(**values)}"
                warnings.append(f"step {step}: this looks like a collapse, {description}. Try: {symptom.advice}")
        return warnings


@torch.no_grad()
def describe(targets: Tensor, features: Tensor) -> dict[str, Tensor]:
    """The figures in which a collapse shows, from targets (T, B, K) and the teacher's features (T, B, D).

    teacher_entropy  mean entropy of one image's target, in nats: ln K if all outputs are equal
    batch_entropy    entropy of the mean target: 0 if every image has the same one output
    feature_spread   1 if the features point in all directions, 0 if they are equal
    """
    mean = targets.mean((0, 1))
    unit = F.normalize(features.flatten(0, 1).to(targets.dtype), dim=-1)
    return {
        "teacher_entropy": torch.special.entr(targets).sum(-1).mean(),
        "batch_entropy": torch.special.entr(mean).sum(),
        "feature_spread": (1 - unit.mean(0).square().sum()).clamp_(min=0).sqrt_(),
    }
