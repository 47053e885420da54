"""Many linear probes at once: heads that read the same features are one matrix product.

Each head is trained as torch.optim.SGD would train it alone: gradient plus decay, momentum 0.9, a step down. The
gradient of the mean cross-entropy is written out (probabilities minus the truth), so that the product with the features
can go straight into the momentum, and no gradient is ever stored.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mixlab.errors import InputError
from mixlab.evaluation.features import FeaturePlan, HeadInput
from mixlab.training.distributed import World

MOMENTUM = 0.9  # DINO's probe, as the next two
INIT_STD = 0.01
LR_BATCH = 256  # learning rates are given for this batch and grow in proportion
TRAINED = ("weight", "bias", "weight_momentum", "bias_momentum")  # everything that training changes


class Head(NamedTuple):
    """One probe of the grid."""

    blocks: int
    strategy: str
    lr: float
    weight_decay: float

    @property
    def input(self) -> HeadInput:
        return HeadInput(self.blocks, self.strategy)


def new_head(width: int, num_classes: int, *, seed: int) -> nn.Linear:
    """A probe before training: small normal weights, no bias; the same for the same seed and sizes."""
    head = nn.utils.skip_init(nn.Linear, width, num_classes)
    with torch.no_grad():
        head.weight.normal_(0.0, INIT_STD, generator=torch.Generator().manual_seed(seed))
        head.bias.zero_()
    return head


class HeadGroup:
    """The heads of one input: G linear layers from F features to K classes, and their momenta."""

    def __init__(self, heads: Sequence[Head], *, width: int, num_classes: int, seed: int, device: torch.device) -> None:
        first = new_head(width, num_classes, seed=seed)
        self.heads = tuple(heads)
        self.weight = first.weight.detach().to(device).repeat(len(heads), 1, 1)  # (G, K, F)
        self.bias = torch.zeros(len(heads), num_classes, device=device)
        self.weight_momentum, self.bias_momentum = torch.zeros_like(self.weight), torch.zeros_like(self.bias)
        self.lr = torch.tensor([head.lr for head in heads], device=device)
        self.weight_decay = torch.tensor([head.weight_decay for head in heads], device=device)
        self.decays = any(head.weight_decay for head in heads)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that training changes, (G, ...)."""
        return {name: getattr(self, name) for name in TRAINED}

    def finite(self) -> Tensor:
        """Whether the weights of each head are finite, bool (G,)."""
        return self.weight.sum((1, 2)).isfinite().cpu()

    def logits(self, x: Tensor) -> Tensor:
        """(B, F) -> (B, G, K)."""
        flat = torch.addmm(self.bias.flatten(), x, self.weight.flatten(0, 1).mT)
        return flat.unflatten(1, self.bias.shape)

    def step(self, x: Tensor, labels: Tensor, lr_scale: float) -> Tensor:
        """One step of SGD on (B, F) and int64 (B,). Returns the loss of each head before it, (G,)."""
        error = self.logits(x).softmax(-1)
        truth = labels[:, None, None].expand(-1, len(self.heads), 1)
        loss = -error.gather(2, truth)[..., 0].clamp(min=1e-30).log().mean(0)
        error.scatter_add_(2, truth, error.new_full((), -1.0).expand(truth.shape))
        share = 1 / len(x)
        self.weight_momentum.flatten(0, 1).addmm_(error.flatten(1).mT, x, beta=MOMENTUM, alpha=share)
        self.bias_momentum.mul_(MOMENTUM).add_(error.sum(0), alpha=share)
        if self.decays:
            self.weight_momentum.addcmul_(self.weight, self.weight_decay[:, None, None])
            self.bias_momentum.addcmul_(self.bias, self.weight_decay[:, None])
        self.weight.addcmul_(self.weight_momentum, self.lr[:, None, None], value=-lr_scale)
        self.bias.addcmul_(self.bias_momentum, self.lr[:, None], value=-lr_scale)
        return loss


def check_rates(lrs: Sequence[float], weight_decays: Sequence[float]) -> None:
    fits = all(0 < lr < math.inf for lr in lrs) and all(0 <= decay < math.inf for decay in weight_decays)
    if not lrs or not weight_decays or not fits:
        raise InputError(f"lr {tuple(lrs)} and wd {tuple(weight_decays)}: give some lr above 0 and some wd from 0")


class HeadGrid:
    """Every input with every learning rate and weight decay. With ranks, head i belongs to rank i mod ranks."""

    def __init__(
        self,
        plan: FeaturePlan,
        *,
        lrs: Sequence[float],
        weight_decays: Sequence[float],
        num_classes: int,
        seed: int = 0,
        world: World | None = None,
    ) -> None:
        if num_classes < 2:
            raise InputError(f"{num_classes} classes cannot be classified; give labels of at least 2")
        check_rates(lrs, weight_decays)
        self.plan, self.num_classes = plan, num_classes
        self.world = world or World(torch.device("cpu"))
        self.heads = tuple(Head(*head, lr, wd) for head, lr, wd in product(plan.inputs, lrs, weight_decays))
        self.groups: dict[HeadInput, HeadGroup] = {}
        for head_input in plan.inputs:
            own = [head for number, head in enumerate(self.heads) if head.input == head_input and self._is_own(number)]
            if own:
                self.groups[head_input] = HeadGroup(
                    own, width=plan.width_of(head_input), num_classes=num_classes, seed=seed, device=self.world.device
                )

    @property
    def own_heads(self) -> list[int]:
        """Numbers of this rank's heads, in the order of `predict` and `step`."""
        return [number for number in range(len(self.heads)) if self._is_own(number)]

    @torch.no_grad()
    def step(self, features: Tensor, labels: Tensor, *, lr_scale: float) -> Tensor:
        """Train every head on one batch, (B, F) float32 and int64 (B,). Returns the losses of this rank's heads."""
        losses = [
            group.step(self.plan.take(features, head_input), labels, lr_scale)
            for head_input, group in self.groups.items()
        ]
        return torch.cat(losses) if losses else features.new_zeros(0)

    def seconds_of_step(self, batch: int) -> float:
        """How long one step takes; before training, which it leaves as it was."""
        features = torch.ones(batch, self.plan.width, device=self.world.device)
        labels = torch.zeros(batch, dtype=torch.int64, device=self.world.device)
        for _ in range(2):  # the first one also warms up
            start = time.perf_counter()
            self.step(features, labels, lr_scale=0.0).cpu()
            seconds = time.perf_counter() - start
        for group in self.groups.values():
            group.weight_momentum.zero_()
            group.bias_momentum.zero_()
        return seconds

    @torch.no_grad()
    def predict(self, features: Tensor) -> Tensor:
        """The class that each of this rank's heads predicts, (heads, B)."""
        found = [
            group.logits(self.plan.take(features, head_input)).argmax(-1).mT
            for head_input, group in self.groups.items()
        ]
        return torch.cat(found) if found else features.new_zeros(0, len(features), dtype=torch.int64)

    def finite(self) -> Tensor:
        """The same of all heads of this rank, bool (heads,)."""
        parts = [group.finite() for group in self.groups.values()]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.bool)

    def _is_own(self, number: int) -> bool:
        return number % self.world.size == self.world.rank


def collect_heads(grid: HeadGrid) -> dict[str, Tensor]:
    """Every tensor of every head, named BLOCKS/STRATEGY/KIND, (G, ...), on the first rank; {} on the others."""
    if grid.world.size == 1:
        return {
            _name(head_input, kind): tensor
            for head_input, group in grid.groups.items()
            for kind, tensor in group.tensors().items()
        }
    whole: dict[str, Tensor] = {}
    for head_input, owners, kind in _pieces(grid):
        own = grid.groups[head_input].tensors()[kind].cpu() if head_input in grid.groups else None
        if grid.world.is_first:
            whole[_name(head_input, kind)] = _gather(owners, own, _shape(grid, head_input, kind))
        elif own is not None:
            dist.send(own.contiguous(), dst=0)
    return whole


@torch.no_grad()
def spread_heads(grid: HeadGrid, whole: dict[str, Tensor]) -> None:
    """Put heads back that `collect_heads` gave; the first rank has them all, the others give {}."""
    if grid.world.is_first:
        expected = {_name(head, kind): (len(owners), *_shape(grid, head, kind)) for head, owners, kind in _pieces(grid)}
        found = {name: tuple(tensor.shape) for name, tensor in whole.items()}
        if expected != found:
            odd = sorted(expected.items() ^ found.items())[0][0]
            raise InputError(
                f"saved heads do not fit this grid: {odd} is {found.get(odd, 'missing')}, expected "
                f"{expected.get(odd, 'none')}; resume with the settings of the run, or choose another --name"
            )
    for head_input, owners, kind in _pieces(grid):
        group = grid.groups.get(head_input)
        target = group.tensors()[kind] if group is not None else None
        if grid.world.is_first:
            full = whole[_name(head_input, kind)]
            for rank in sorted(set(owners)):
                rows = full[[row for row, owner in enumerate(owners) if owner == rank]]
                if rank != 0:
                    dist.send(rows.contiguous(), dst=rank)
                elif target is not None:
                    target.copy_(rows)
        elif target is not None:
            received = torch.empty(target.shape)
            dist.recv(received, src=0)
            target.copy_(received)


def _pieces(grid: HeadGrid) -> Iterator[tuple[HeadInput, list[int], str]]:
    """Inputs with the owner of each of their heads, in one order on all ranks."""
    for head_input in grid.plan.inputs:
        owners = [n % grid.world.size for n, head in enumerate(grid.heads) if head.input == head_input]
        for kind in TRAINED:
            yield head_input, owners, kind


def _gather(owners: list[int], own: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    full = torch.empty(len(owners), *shape)
    for rank in sorted(set(owners)):
        rows = [row for row, owner in enumerate(owners) if owner == rank]
        part = own if rank == 0 else torch.empty(len(rows), *shape)
        assert part is not None
        if rank != 0:
            dist.recv(part, src=rank)
        full[rows] = part
    return full


def _shape(grid: HeadGrid, head_input: HeadInput, kind: str) -> tuple[int, ...]:
    width = (grid.plan.width_of(head_input),) if kind.startswith("weight") else ()
    return (grid.num_classes, *width)


def _name(head_input: HeadInput, kind: str) -> str:
    return f"{head_input.blocks}/{head_input.strategy}/{kind}"
