"""The state of a run: every tensor under one name, and the numbers that an optimiser keeps beside them."""

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from mixlab.errors import InputError, WorkError
from mixlab.training.distributed import copy_from_first_, from_first
from mixlab.training.optim import OURS
from mixlab.training.recipe import Recipe
from mixlab.training.sharded import local

OTHER_RUN = "resume with the settings of the run, or start again in another --run directory"
OF_THE_LOOP = ("params", "muon", "lr", "weight_decay", *OURS)  # of a group: not the optimiser's to remember


class TrainingState:
    """Names: MODULE/PARAMETER for the recipe's modules, optimizer/MOMENT/PARAMETER."""

    def __init__(self, recipe: Recipe, optimizer: Optimizer) -> None:
        self.recipe, self.optimizer = recipe, optimizer
        groups: list[dict[str, Any]] = optimizer.param_groups
        pairs = chain.from_iterable(zip(group["names"], group["params"], strict=True) for group in groups)
        self._parameters: dict[str, Tensor] = dict(pairs)
        self._groups_at_start = [deepcopy(_own_part(group)) for group in groups]
        self._attributes_at_start = _attributes(optimizer)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors themselves, not copies."""
        moments = {
            f"optimizer/{key}/{name}": value for name, key, value in self._moments() if isinstance(value, Tensor)
        }
        return dict(self._modules()) | moments

    def numbers(self) -> dict[str, Any]:
        """What the optimiser keeps beside tensors, and what it changed in its groups; nothing of AdamW and Muon."""
        if lost := sorted(key for key, _ in _attributes(self.optimizer).items() - self._attributes_at_start.items()):
            raise self._refusal(f"counts in its attribute {lost[0]!r}; keep that in its state or its groups")
        state: dict[str, dict[str, Any]] = {}
        for name, key, value in self._moments():
            if not isinstance(value, Tensor):
                state.setdefault(name, {})[key] = value
        groups = []
        for before, group in zip(self._groups_at_start, self.optimizer.param_groups, strict=True):
            changed = {key: value for key, value in _own_part(group).items() if _differs(value, before.get(key))}
            for key, value in changed.items():
                if not _is_plain(value):
                    raise self._refusal(f"keeps a {type(value).__name__} as {key!r} of its groups; keep numbers there")
            groups.append(changed)
        return {"state": state, "groups": groups} if state or any(groups) else {}

    def load(self, stored: Iterable[tuple[str, Tensor]] | None, numbers: Mapping[str, Any] | None = None) -> None:
        """Put everything back. The first rank gives the tensors, the others give None."""
        values = iter(stored if stored is not None else ())
        expected = dict(self._modules())
        seen = set()
        while True:
            name, value = next(values, (None, None))
            name = from_first(name)
            if name is None:
                break
            about: Any = None if value is None else (list(value.shape), value.dtype)
            shape, dtype = from_first(about)
            target = self._moment(name, shape, dtype) if name.startswith("optimizer/") else expected.get(name)
            if target is None or list(target.shape) != shape:
                found = "is not there" if target is None else f"has shape {list(target.shape)}"
                raise InputError(f"the checkpoint holds {name} {shape}, which in this model {found}; {OTHER_RUN}")
            copy_from_first_(target, value)
            seen.add(name)
        if missing := [name for name in expected if name not in seen]:
            raise InputError(
                f"the checkpoint lacks {len(missing)} tensors of this model, {missing[0]} first; {OTHER_RUN}"
            )
        if numbers:
            for name, own in numbers["state"].items():
                self.optimizer.state[self._parameters[name]].update(own)
            for group, changed in zip(self.optimizer.param_groups, numbers["groups"], strict=True):
                group.update(changed)

    def _modules(self) -> Iterator[tuple[str, Tensor]]:
        for prefix, module in self.recipe.modules().items():
            for name, value in module.state_dict().items():
                yield f"{prefix}/{name}", value

    def _moments(self) -> Iterator[tuple[str, str, Any]]:
        """What the optimiser keeps of each parameter: the parameter's name, the optimiser's name for it, the value."""
        for name, parameter in self._parameters.items():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if not isinstance(key, str) or "/" in key:
                    raise self._refusal(f"keeps a state called {key!r}; use words without /")
                if isinstance(value, Tensor):
                    if isinstance(parameter, DTensor) and value.ndim and not isinstance(value, DTensor):
                        raise self._refusal(
                            f"keeps {key!r} of a part of each parameter, which lie on all ranks; make it by "
                            "torch.zeros_like(parameter), or set sharding=ddp"
                        )
                elif not _is_plain(value):
                    raise self._refusal(f"keeps a {type(value).__name__} as {key!r}; keep tensors and numbers")
                yield name, key, value

    def _moment(self, name: str, shape: list[int], dtype: torch.dtype) -> Tensor | None:
        """The place of a moment, made where it is not yet: beside its parameter, but for the counter `step`, which
        torch's optimisers keep on the host unless they run on the device as a whole."""
        _, key, parameter_name = name.split("/", 2)
        parameter = self._parameters.get(parameter_name)
        if parameter is None:
            return None
        moments = self.optimizer.state[parameter]
        if key not in moments:
            group = self.optimizer.param_groups[0]
            on_host = key == "step" and not (group.get("fused") or group.get("capturable"))
            moments[key] = (
                torch.zeros_like(parameter, dtype=dtype)
                if list(parameter.shape) == shape and not on_host
                else torch.zeros(shape, dtype=dtype, device="cpu" if on_host else local(parameter).device)
            )
        target: Tensor = moments[key]
        return target

    def _refusal(self, what: str) -> WorkError:
        kind = type(self.optimizer)
        return WorkError(f"the optimiser {kind.__qualname__} of {kind.__module__} {what}, or no run could resume")


def _own_part(group: Mapping[str, Any]) -> dict[str, Any]:
    """Of a group of parameters, what the optimiser itself may change."""
    return {key: value for key, value in group.items() if key not in OF_THE_LOOP}


def _attributes(optimizer: Optimizer) -> dict[str, Any]:
    """Numbers and tensors that an optimiser keeps in itself; of a tensor, which one it is and how often it changed."""
    found = {key: value for key, value in vars(optimizer).items() if isinstance(value, int | float | Tensor)}
    return {
        key: (id(value), value._version) if isinstance(value, Tensor) else value
        for key, value in found.items()
        if not isinstance(value, bool)  # torch notes there what it has warned of
    }


def _differs(value: Any, before: Any) -> bool:
    if type(value) is not type(before):
        return True
    return not torch.equal(value, before) if isinstance(value, Tensor) else bool(value != before)


def _is_plain(value: Any) -> bool:
    """Whether JSON gives it back as it is."""
    return value is None or isinstance(value, str | int | float)
