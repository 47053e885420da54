"""The optimiser: which parameters decay, in few launches, clipping without asking the device; and schedules, which are
pure functions of the step: nothing to save, nothing to restore.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from mixlab.errors import InputError
from mixlab.training.config import OptimConfig
from mixlab.training.muon import Muon
from mixlab.training.sharded import local

CLIP_EPS = 1e-6  # DINO


def parameter_groups(
    network: nn.Module,
    no_decay: set[str],
    shares: Mapping[str, float] | None = None,
    muon: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Groups of trained parameters with their names: decayed, then not. Vectors never decay.

    `shares` names beginnings of names whose parameters learn at that share of the learning rate; `muon` those that
    decay and are not AdamW's.
    """
    trained = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    if unknown := no_decay - {name for name, _ in network.named_parameters()}:
        raise InputError(f"{', '.join(sorted(unknown))}: no such parameters; no_weight_decay() names what is not there")

    def kind(name: str, parameter: nn.Parameter) -> tuple[float, bool, bool]:
        share = next((share for start, share in (shares or {}).items() if name.startswith(start)), 1.0)
        decay = not (name in no_decay or parameter.ndim < 2)
        return share, decay, decay and name in muon

    kinds = [kind(name, parameter) for name, parameter in trained]
    groups = []
    all_shares = sorted({1.0, *(share for share, *_ in kinds)}, reverse=True)
    for share, (decay, by_muon) in product(all_shares, ((True, False), (False, False), (True, True))):
        chosen = [pair for pair, own in zip(trained, kinds, strict=True) if own == (share, decay, by_muon)]
        if by_muon and not chosen:
            continue
        about = {"names": [name for name, _ in chosen], "decay": decay, "share": share, "muon": by_muon}
        groups.append({"params": [parameter for _, parameter in chosen], **about})
    return groups


def build_optimizer(groups: list[dict[str, Any]], config: OptimConfig) -> AdamW:
    """AdamW, or Muon and AdamW, over `parameter_groups`; rates are set at every step."""
    device = next(parameter.device for group in groups for parameter in group["params"])
    fused = device.type == "cuda"
    kind = Muon if any(group["muon"] for group in groups) else AdamW
    return kind(groups, lr=0.0, betas=config.betas, weight_decay=0.0, fused=fused, foreach=None if fused else True)


def set_rates(optimizer: AdamW, *, lr: float, weight_decay: float) -> None:
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
        torch._foreach_mul_(shards, list(factors.unbind()))
    return torch.linalg.vector_norm(norms)


@torch.no_grad()
def move_towards_(targets: Iterable[Tensor], sources: Iterable[Tensor], share: float) -> None:
    """target += share (source - target), all in one operation: the exponential moving average."""
    torch._foreach_lerp_([local(t) for t in targets], [local(s) for s in sources], share)


def cosine(step: int, *, start: float, end: float, total: int) -> float:
    """From `start` at step 0 along half a cosine towards `end` at step `total`."""
    return end + 0.5 * (start - end) * (1 + math.cos(math.pi * min(step, total) / max(total, 1)))


def learning_rate(
    step: int,
    *,
    peak: float,
    end: float,
    warmup: int,
    total: int,
    start: float = 0.0,
    decay: str = "cosine",
    drops: tuple[int, ...] = (),
    steps_per_epoch: int = 1,
) -> float:
    """Linearly from `start` to `peak`, which the last warm-up step has (DINO), then as `decay` says. A warm-up of one
    step is that last step.

    cosine           along half a cosine towards `end`
    cosine_by_epoch  along half a cosine that begins with step 0, under the warm-up, and in stairs of an epoch: timm's,
                     and so MambaOut's and DeiT's
    poly             in a straight line towards `end`
    drops            a tenth of it after each step of `drops`
    """
    if decay == "cosine_by_epoch":
        step -= step % steps_per_epoch
        if step < warmup:
            return start + (peak - start) * step / warmup
        return cosine(step, start=peak, end=end, total=total)
    if step < warmup:
        return start + (peak - start) * step / (warmup - 1) if warmup > 1 else peak
    match decay:
        case "cosine":
            return cosine(step - warmup, start=peak, end=end, total=total - warmup)
        case "poly":
            return end + (peak - end) * (1 - min(step - warmup, total - warmup) / max(total - warmup, 1))
        case "drops":
            return peak * 0.1 ** sum(step >= drop for drop in drops)
    raise InputError(f"decay {decay!r} is unknown; choose cosine, cosine_by_epoch, poly or drops")


def linear_by_epoch(epoch: int, *, start: float, end: float, epochs: int) -> float:
    """From `start` in epoch 0 in equal steps to `end` in epoch `epochs` - 1, then `end`. A single epoch has `start`."""
    if epoch >= max(epochs - 1, 1) or epochs == 0:
        return end
    return start + (end - start) * epoch / max(epochs - 1, 1)
