"""Where and how an evaluation runs. Nothing here but the precision changes a number by more than rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from mixlab.training.distributed import World
from mixlab.training.precision import Precise, autocast

PrecisionChoice = Literal["auto", "bf16", "fp32"]
PrecisionInUse = Literal["bf16", "fp32"]
Bar = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]  # description and total -> a step function
Say = Callable[[str], None]


@contextmanager
def no_bar(description: str, total: int) -> Iterator[Callable[[int], None]]:
    yield lambda count: None


@dataclass(frozen=True)
class Machine:
    """The processes that share the work, and how each goes about it."""

    world: World
    workers: int = 0  # processes that read images, per rank
    batch: int = 256  # images through the network at a time
    features: Path | None = None  # where extracted features are kept for later calls; None: nowhere
    bar: Bar = no_bar
    say: Say = lambda text: None

    @classmethod
    def of(cls, network: nn.Module) -> Machine:
        """This process alone, on the network's device."""
        return cls(World(next(network.parameters()).device))


def precision_in_use(asked: PrecisionChoice, device: torch.device) -> PrecisionInUse:
    """The precision in which networks run; `auto` is bf16 on a GPU and fp32 elsewhere."""
    if asked == "auto":
        return "bf16" if device.type == "cuda" else "fp32"
    return asked


def run_precision(precision: PrecisionChoice, device: torch.device) -> Precise:
    """Networks run inside of what this gives."""
    return autocast(precision_in_use(precision, device), device)
