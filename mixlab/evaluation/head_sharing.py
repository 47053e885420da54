"""Heads of a grid between ranks: all of them to the first rank to be written, and back out to those who train them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from mixlab.errors import InputError
from mixlab.evaluation.feature_plan import HeadInput
from mixlab.evaluation.head_grid import HeadGrid

KINDS = ("weight", "bias", "weight_momentum", "bias_momentum")


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
                f"{expected.get(odd, 'none')}; go on with the settings of the run, or choose another --name"
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
        for kind in KINDS:
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
