"""The optimiser: which parameters decay, in few launches, clipping without asking the device. `OPTIMIZERS` is the
table; docs/add_an_optimizer.md adds one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from inspect import signature
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer

from mixlab.errors import InputError
from mixlab.ops.scale_each.op import scale_each_
from mixlab.plugins import Registry, named, takes
from mixlab.training.muon import Muon
from mixlab.training.sharded import local

if TYPE_CHECKING:
    from mixlab.training.config import OptimConfig

Groups = list[dict[str, Any]]
MakeOptimizer = Callable[[Groups, "OptimConfig"], Optimizer]
OURS = ("names", "decay", "share")  # of a group of parameters, beside what its optimiser has there
CLIP_EPS = 1e-6  # DINO


def parameter_groups(
    network: nn.Module,
    no_decay: set[str],
    shares: Mapping[str, float] | None = None,
    muon: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Groups of trained parameters with their names: decayed, then not. Vectors never decay.

    `shares` names beginnings of names whose parameters learn at that share of the learning rate; `muon` the matrices
    that are not AdamW's.
    """
    trained = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    if unknown := no_decay - {name for name, _ in network.named_parameters()}:
        raise InputError(f"{', '.join(sorted(unknown))}: no such parameters; no_weight_decay() names what is not there")

    def kind(name: str, parameter: nn.Parameter) -> tuple[float, bool, bool]:
        share = next((share for start, share in (shares or {}).items() if name.startswith(start)), 1.0)
        decay = not (name in no_decay or parameter.ndim < 2)
        return share, decay, parameter.ndim > 1 and name in muon

    kinds = [kind(name, parameter) for name, parameter in trained]
    groups = []
    all_shares = sorted({1.0, *(share for share, *_ in kinds)}, reverse=True)
    for share, (decay, by_muon) in product(all_shares, ((True, False), (False, False), (True, True), (False, True))):
        chosen = [pair for pair, own in zip(trained, kinds, strict=True) if own == (share, decay, by_muon)]
        if by_muon and not chosen:
            continue
        about = {"names": [name for name, _ in chosen], "decay": decay, "share": share, "muon": by_muon}
        groups.append({"params": [parameter for _, parameter in chosen], **about})
    return groups


def _adamw(groups: Groups, config: OptimConfig) -> AdamW:
    return _by(AdamW, groups, config)


def _muon(groups: Groups, config: OptimConfig) -> AdamW:
    return _by(Muon, groups, config)


def _by(kind: type[AdamW], groups: Groups, config: OptimConfig) -> AdamW:
    device = next(parameter.device for group in groups for parameter in group["params"])
    fused = device.type == "cuda"
    return kind(groups, lr=0.0, betas=config.betas, weight_decay=0.0, fused=fused, foreach=None if fused else True)


OPTIMIZERS: Registry[MakeOptimizer] = Registry("optimizer", {"adamw": _adamw, "muon": _muon})


def register_optimizer(function: MakeOptimizer | str) -> Any:
    """Register a function that builds a `torch.optim.Optimizer`, as `optim.name=NAME`; a decorator.

    The function takes groups of parameters, as torch's optimisers do, and the run's `OptimConfig`. Before every step
    the loop sets `lr` and `weight_decay` of each group. Checkpoints have what the optimiser keeps in `state`, and what
    it changes in its groups. NAME is that of the function, or that in `@register_optimizer("another_name")`.
    """

    def add(name: str, make: MakeOptimizer) -> None:
        if not takes(make, "groups", "config"):
            raise InputError(
                f"the optimiser {name} must be built as {name}(groups, config); got {name}{signature(make)}"
            )
        OPTIMIZERS[name] = make

    return named("optimizer", function, add)


def build_optimizer(groups: Groups, config: OptimConfig) -> Optimizer:
    """The optimiser of a run over `parameter_groups`; rates are set at every step."""
    make, plugin = OPTIMIZERS[config.name], OPTIMIZERS.origin(config.name)
    if plugin is None:
        return make(groups, config)
    groups = [group for group in groups if group["params"]]
    made = make([dict(group) for group in groups], config)
    if fault := _fault_of(made, groups):
        raise InputError(f"the optimiser {config.name!r} of the plugin {plugin} {fault}")
    return made


def _fault_of(made: Any, groups: Groups) -> str:
    """What is wrong with what a plugin built; empty where nothing is."""
    if not isinstance(made, Optimizer):
        return f"is a {type(made).__name__}; return a torch.optim.Optimizer"
    if not takes(made.step):
        return f"has {type(made).__name__}.step{signature(made.step)}; it is called without a closure"
    given, trained = (
        {id(parameter) for group in part for parameter in group["params"]} for part in (groups, made.param_groups)
    )
    if given != trained:
        return f"trains {len(given & trained)} of {len(given)} parameters; hand it the groups as they are"
    for group in made.param_groups:
        if lacking := [name for name in (*OURS, "lr") if name not in group]:
            why = "so the schedule has no effect" if lacking == ["lr"] else "hand it the groups as they are"
            return f"has groups without {lacking[0]!r}; {why}"
    return ""


def set_rates(optimizer: Optimizer, *, lr: float, weight_decay: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr * group["share"]
        group["weight_decay"] = weight_decay if group["decay"] else 0.0


def gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


@torch.no_grad()
def clip_each_(gradients: Sequence[Tensor], limit: float | None) -> Tensor:
    """Scale every gradient whose own norm is above `limit` down to it, in place. Returns the norm of all before."""
    shards = [local(gradient) for gradient in gradients]
    norms = torch.stack(torch._foreach_norm(shards))  # (num_parameters,)
    if any(isinstance(gradient, DTensor) for gradient in gradients):
        norms = norms.square_()
        dist.all_reduce(norms)  # the shards of one gradient lie on all ranks
        norms = norms.sqrt_()
    if limit is not None:
        factors = (limit / (norms + CLIP_EPS)).clamp_(max=1.0)
        scale_each_(shards, factors)
    return torch.linalg.vector_norm(norms)


@torch.no_grad()
def move_towards_(targets: Iterable[Tensor], sources: Iterable[Tensor], share: float) -> None:
    """target += share (source - target), all in one operation: the exponential moving average."""
    torch._foreach_lerp_([local(t) for t in targets], [local(s) for s in sources], share)
