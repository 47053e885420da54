"""Every tensor of a run under one name, out of and back into a recipe and its optimiser, sharded or not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW

from mixlab.backbones.weights import build_architecture, save_weights
from mixlab.backbones.weights.saving import save_tensors
from mixlab.errors import InputError
from mixlab.training.distributed import copy_from_first_, from_first, whole
from mixlab.training.optim import local
from mixlab.training.recipe import Recipe

MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # AdamW's


class TrainingState:
    """Names: MODULE/PARAMETER for the recipe's modules, optimizer/MOMENT/PARAMETER for AdamW."""

    def __init__(self, recipe: Recipe, optimizer: AdamW) -> None:
        self.recipe, self.optimizer = recipe, optimizer
        groups: list[dict[str, Any]] = optimizer.param_groups
        pairs = chain.from_iterable(zip(group["names"], group["params"], strict=True) for group in groups)
        self._parameters: dict[str, Tensor] = dict(pairs)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors themselves, not copies."""
        found = dict(self._modules())
        for name, parameter in self._parameters.items():
            moments = self.optimizer.state.get(parameter, {})
            found |= {f"optimizer/{moment}/{name}": moments[moment] for moment in MOMENTS if moment in moments}
        return found

    def load(self, stored: Iterable[tuple[str, Tensor]] | None) -> None:
        """Put every tensor back. The first rank gives them, the others give None."""
        values = iter(stored if stored is not None else ())
        expected = dict(self._modules())
        seen = set()
        while True:
            name, value = next(values, (None, None))
            name = from_first(name)
            if name is None:
                break
            target = self._moment(name) if name.startswith("optimizer/") else expected.get(name)
            shape = from_first(None if value is None else list(value.shape))
            if target is None or list(target.shape) != shape:
                found = "is not there" if target is None else f"has shape {list(target.shape)}"
                raise InputError(
                    f"the checkpoint holds {name} {shape}, which in this model {found}; "
                    "resume with the settings of the run, or start again in another --run directory"
                )
            copy_from_first_(target, value)
            seen.add(name)
        if missing := [name for name in expected if name not in seen]:
            raise InputError(
                f"the checkpoint lacks {len(missing)} tensors of this model, {missing[0]} first; "
                "resume with the settings of the run, or start again in another --run directory"
            )

    def _modules(self) -> Iterator[tuple[str, Tensor]]:
        for prefix, module in self.recipe.modules().items():
            for name, value in module.state_dict().items():
                yield f"{prefix}/{name}", value

    def _moment(self, name: str) -> Tensor | None:
        """The place of an AdamW moment, made where it is not yet."""
        _, moment, parameter_name = name.split("/", 2)
        parameter = self._parameters.get(parameter_name)
        if parameter is None or moment not in MOMENTS:
            return None
        moments = self.optimizer.state[parameter]
        if moment not in moments:
            fused = self.optimizer.param_groups[0]["fused"]
            moments[moment] = (
                torch.zeros((), dtype=torch.float32, device=local(parameter).device if fused else "cpu")
                if moment == "step"
                else torch.zeros_like(parameter)
            )
        target: Tensor = moments[moment]
        return target


def export_weights(recipe: Recipe, folder: Path, *, is_first: bool, metadata: dict[str, str]) -> None:
    """RUN/weights.safetensors, and RUN/classifier.safetensors or as the recipe's head is called.

    Every rank takes part, the first one writes.
    """
    backbone = recipe.exported()
    tensors = {name: whole(value) for name, value in backbone.state_dict().items()}
    head = {name: whole(value).detach().cpu().contiguous() for name, value in recipe.exported_head().items()}
    if not is_first:
        return
    fresh = build_architecture(backbone.architecture())  # the trained one may be sharded, compiled or wrapped
    fresh.to(next(iter(tensors.values())).dtype)
    fresh.load_state_dict(tensors)
    save_weights(fresh, folder / "weights.safetensors", extra_metadata=metadata)
    if head:
        save_tensors(head, folder / f"{recipe.head_name}.safetensors", metadata=metadata)
