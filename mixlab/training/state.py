"""The state of a run: every tensor under one name, and the numbers that an optimiser keeps beside them."""

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from itertools import chain
from random import Random
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
    """Names: MODULE/PARAMETER for the recipe's modules, optimizer/MOMENT/PARAMETER; MOMENT:0 is the first of a list."""

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
            f"optimizer/{part_key}/{name}": part
            for name, key, value in self._moments()
            for part_key, part in _parts(key, value)
            if isinstance(part, Tensor)
        }
        return dict(self._modules()) | moments

    def numbers(self) -> dict[str, Any]:
        """What the optimiser keeps beside tensors, and what it changed in its groups; nothing of AdamW and Muon."""
        if lost := sorted(key for key, _ in _attributes(self.optimizer).items() - self._attributes_at_start.items()):
            raise self._refusal(f"changes its attribute {lost[0]!r}; keep that in its state or its groups")
        state: dict[str, dict[str, Any]] = {}
        for name, key, value in self._moments():
            if not isinstance(value, Tensor):
                state.setdefault(name, {})[key] = _without_tensors(value)
        groups = []
        for before, group in zip(self._groups_at_start, self.optimizer.param_groups, strict=True):
            changed = {key: value for key, value in _own_part(group).items() if _differs(value, before.get(key))}
            for key, value in changed.items():
                if not all(_is_plain(part) for _, part in _parts(key, value)):
                    raise self._refusal(f"keeps a {type(value).__name__} as {key!r} of its groups; keep numbers there")
            groups.append({key: _without_tensors(value) for key, value in changed.items()})
        return {"state": state, "groups": groups} if state or any(groups) else {}

    def load(self, stored: Iterable[tuple[str, Tensor]] | None, numbers: Mapping[str, Any] | None = None) -> None:
        """Put everything back. The first rank gives the tensors, the others give None."""
        for name, own in numbers["state"].items() if numbers else ():  # first: they have the places of tensors in lists
            if name not in self._parameters:
                raise InputError(
                    f"the optimiser's state in the checkpoint is of {name}, which is not there; {OTHER_RUN}"
                )
            self.optimizer.state[self._parameters[name]].update(own)
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
        for group, changed in zip(self.optimizer.param_groups, numbers["groups"], strict=True) if numbers else ():
            group.update(changed)

    def _modules(self) -> Iterator[tuple[str, Tensor]]:
        for prefix, module in self.recipe.modules().items():
            for name, value in module.state_dict().items():
                yield f"{prefix}/{name}", value

    def _moments(self) -> Iterator[tuple[str, str, Any]]:
        """What the optimiser keeps of each parameter: the parameter's name, the optimiser's name for it, the value."""
        for name, parameter in self._parameters.items():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if not isinstance(key, str) or set(key) & set("/:"):
                    raise self._refusal(f"keeps a state called {key!r}; use words without / and :")
                for _, part in _parts(key, value):
                    self._check_moment(key, part, parameter)
                yield name, key, value

    def _check_moment(self, key: str, value: Any, parameter: Tensor) -> None:
        """Refuse what no checkpoint could hold."""
        if not isinstance(value, Tensor) and not _is_plain(value):
            kind = type(value).__name__
            raise self._refusal(f"keeps a {kind} as {key!r}; keep tensors, numbers and lists of them")
        is_whole = isinstance(value, Tensor) and value.ndim and not isinstance(value, DTensor)
        if is_whole and isinstance(parameter, DTensor):
            raise self._refusal(
                f"keeps {key!r} of a part of each parameter, which lie on all ranks; make it by "
                "torch.zeros_like(parameter), or set sharding=ddp"
            )

    def _moment(self, name: str, shape: list[int], dtype: torch.dtype) -> Tensor | None:
        """The place of a moment, made where it is not yet: beside its parameter, but for the counter `step`, which
        torch's optimisers keep on the host unless they run on the device as a whole."""
        _, key, parameter_name = name.split("/", 2)
        parameter = self._parameters.get(parameter_name)
        if parameter is None:
            return None
        key, *places = key.split(":")
        moments: Any = self.optimizer.state[parameter]
        moments.setdefault(key, None)
        last: Any = key
        for place in places:
            inside = moments[last]
            if not (isinstance(inside, list) and place.isdecimal() and int(place) < len(inside)):
                return None
            moments, last = inside, int(place)
        if moments[last] is None:
            group = self.optimizer.param_groups[0]
            on_host = key == "step" and not (group.get("fused") or group.get("capturable"))
            moments[last] = (
                torch.zeros_like(parameter, dtype=dtype)
                if list(parameter.shape) == shape and not on_host
                else torch.zeros(shape, dtype=dtype, device="cpu" if on_host else local(parameter).device)
            )
        target: Tensor = moments[last]
        return target

    def _refusal(self, what: str) -> WorkError:
        kind = type(self.optimizer)
        return WorkError(f"the optimiser {kind.__qualname__} of {kind.__module__} {what}, or no run could resume")


def _own_part(group: Mapping[str, Any]) -> dict[str, Any]:
    """Of a group of parameters, what the optimiser itself may change."""
    return {key: value for key, value in group.items() if key not in OF_THE_LOOP}


def _attributes(optimizer: Optimizer) -> dict[str, Any]:
    """What an optimiser keeps in itself, to be compared with later: numbers, tensors and generators."""
    found = {key: _mark(value) for key, value in vars(optimizer).items()}
    return {key: mark for key, mark in found.items() if mark is not None}


def _mark(value: Any) -> Any:
    """A value that is another once this one has changed; None of what is not watched."""
    match value:
        case bool():  # torch notes there what it has warned of
            return None
        case int() | float():
            return value
        case Tensor():
            return id(value), value._version
        case Random():
            return value.getstate()
        case torch.Generator():
            return value.get_state().numpy().tobytes()
    return None


def _differs(value: Any, before: Any) -> bool:
    if type(value) is not type(before):
        return True
    return not torch.equal(value, before) if isinstance(value, Tensor) else bool(value != before)


def _parts(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A value by its key; of a list its parts, and those of lists in it, by their places: `factors:0`."""
    if not isinstance(value, list):
        yield key, value
        return
    for place, part in enumerate(value):
        yield from _parts(f"{key}:{place}", part)


def _without_tensors(value: Any) -> Any:
    """A copy of a list with None where a tensor is; anything else as it is."""
    if not isinstance(value, list):
        return value
    return [None if isinstance(part, Tensor) else _without_tensors(part) for part in value]


def _is_plain(value: Any) -> bool:
    """Whether JSON gives it back as it is."""
    return value is None or isinstance(value, str | int | float)
