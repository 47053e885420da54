"""What segmentation and detection share as recipes of the training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from mixlab.backbones.backbone import Backbone
from mixlab.errors import InputError
from mixlab.evaluation.pyramid import Pyramid
from mixlab.training.config import MethodConfig
from mixlab.training.live_scores import Score, Scores
from mixlab.training.recipe import Recipe, drop_empty
from mixlab.training.sharded import whole
from mixlab.training.stopping import never

BACKBONE = "pyramid.backbone."
MAMBAOUT_DROP_PATH = {"femto": 0.025, "kobe": 0.025, "tiny": 0.2, "small": 0.4, "base": 0.6}  # Table 5; kobe as femto


@dataclass(frozen=True, kw_only=True)
class DenseConfig(MethodConfig):
    """A task on maps: the backbone below a pyramid and a head."""

    earlier: ClassVar[Mapping[str, Any]] = {"drop_path": None}
    unused: ClassVar[tuple[str, ...]] = ("data.size",)  # readers of dense tasks have sizes of their own
    frozen: bool = False  # train the pyramid and the head alone
    backbone_lr: float = 1.0  # the backbone's share of the learning rate: below 1 it keeps what it knows for longer
    drop_path: float | None = None  # of the backbone, however it was trained before; None: as it was built
    taps: tuple[int, int, int, int] | None = None  # layers of a plain backbone; None: evenly over its depth
    score_every_epochs: int = 0  # on the validation set, during the run; 0: at the end alone
    score_images: int = 200  # of the live score, at most

    def as_begun(self, stored: Mapping[str, Any]) -> Self:
        """Itself for a run that began with the settings `stored`: what is newer than the run as it was before."""
        return self if "drop_path" in stored else replace(self, drop_path=None)


def published_drop_path(name: str) -> float | None:
    """Stochastic depth of a fine-tuned backbone. The papers do not say: that of its published training. None for
    models of timm, which have it as they were built.
    """
    if name.startswith("timm/"):
        return None
    return MAMBAOUT_DROP_PATH.get(name.removeprefix("mambaout_"), 0.1) if name.startswith("mambaout") else 0.1


class DenseNetwork(nn.Module):
    """A head on a pyramid; `forward` is left to the task."""

    pyramid: Pyramid


class DenseRecipe(Recipe):
    """Exports the backbone as any run does, and all that stands on it as the head."""

    network: DenseNetwork
    num_classes: int

    def __init__(self, network: DenseNetwork, *, backbone_lr: float, drop_path: float | None) -> None:
        if drop_path is not None:
            network.pyramid.backbone.set_drop_path(drop_path)
        if backbone_lr <= 0:
            raise InputError(f"method.backbone_lr is {backbone_lr}; give a share above 0, or method.frozen=true")
        self.network, self.backbone_lr = network, backbone_lr
        drop_empty(network)
        self.run = network

    @property
    def backbone(self) -> Backbone:
        return self.network.pyramid.backbone

    def modules(self) -> dict[str, nn.Module]:
        return {"network": self.network}

    def exported(self) -> Backbone:
        return self.backbone

    def exported_head(self) -> dict[str, Tensor]:
        state = self.network.state_dict()
        return {name: whole(value) for name, value in state.items() if not name.startswith(BACKBONE)}

    def load_head(self, head: dict[str, Tensor]) -> None:
        """Put back what `exported_head` gave."""
        backbone = {f"{BACKBONE}{name}": value for name, value in self.backbone.state_dict().items()}
        self.network.load_state_dict({**backbone, **head})

    def no_weight_decay(self) -> set[str]:
        return {f"{BACKBONE}{name}" for name in self.backbone.no_weight_decay()}

    def lr_shares(self) -> dict[str, float]:
        return {} if self.backbone_lr == 1 else {BACKBONE: self.backbone_lr}

    def shard(self, shard: Callable[[nn.Module], None]) -> None:
        """Not here: ranks evaluate images of different sizes, and shards would wait for passes that only one makes."""
        raise InputError("sharding=fsdp is for pretraining; dense tasks run on many devices with sharding=ddp")


class DenseScores(Scores):
    """Scores by any function of the network and of when to stop, in evaluation mode and without gradients."""

    def __init__(self, every_epochs: int, measure: Callable[[nn.Module, Callable[[], bool]], Iterator[Score]]) -> None:
        self.every_epochs, self.measure = every_epochs, measure
        self.wanted = every_epochs > 0

    def __call__(self, recipe: Recipe, stopped: Callable[[], bool] = never) -> Iterator[Score]:
        mode = recipe.network.training
        recipe.network.eval()
        try:
            with torch.no_grad():
                found = list(self.measure(recipe.network, stopped))
        finally:
            recipe.network.train(mode)
        yield from found
