"""One process or many: devices and collectives. Reads the environment variables of `torchrun`."""

import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from mixlab.backbones.backbone import Backbone
from mixlab.data.cores import num_cores, own_cores
from mixlab.data.index_file import trusting_indexes
from mixlab.errors import InputError
from mixlab.training.config import Sharding
from mixlab.training.exchange import GradientExchange
from mixlab.training.pieces import Pieces
from mixlab.training.recipe import Recipe
from mixlab.training.sharded import broadcast_

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """This process among all."""

    device: torch.device
    rank: int = 0
    size: int = 1
    is_first_here: bool = True  # the first of this machine's
    cores: float | None = None  # this process's share, where it is not alone; see `data.cores`

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def choose_device(text: str | None = "auto") -> torch.device:
    """`auto`, or None, is a GPU where there is one; `cpu`, `cuda` and `cuda:N` are taken at their word."""
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if text is None or text == "auto":
        return torch.device("cuda" if num_gpus else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise InputError(f"device {text!r} does not exist; choose auto, cpu, cuda or cuda:N")
    device = torch.device(text)
    if device.type == "cuda" and (device.index or 0) >= num_gpus:
        seen = f"{num_gpus} GPU{'s' * (num_gpus > 1)} here, counted from 0" if num_gpus else "no GPU here"
        raise InputError(f"device {text!r}, but torch sees {seen}; leave it out or give --device cpu")
    return device


def make_current(device: torch.device) -> None:
    """Kernels of Triton are launched on the current GPU, wherever their tensors are."""
    if device.index is not None:
        torch.cuda.set_device(device)


def num_workers(asked: int | None, world: World) -> int:
    """Data loading processes per rank: as given, or this rank's share of the cores but one."""
    if asked is not None and asked < 0:
        raise InputError(f"{asked} processes cannot read data; give 0 or more, or leave it out")
    return asked if asked is not None else max(0, int((world.cores or num_cores()) + 1e-6) - 1)


def describe_workers(asked: int | None, world: World) -> str:
    """How many processes read data, and why so many."""
    number = num_workers(asked, world)
    what = (
        f"{number} process{'es' * (number != 1)} read{'s' * (number == 1)} data"
        if number
        else "no extra process reads data"
    )
    per_rank = " for each rank" if world.size > 1 else ""
    cores = f"{world.cores or num_cores():.4g}"
    why = f"workers is {asked}" if asked is not None else f"of {cores} core{'s' * (cores != '1')}"
    return f"{what}{per_rank} ({why})"


@contextmanager
def join_world(device: str | None = None) -> Iterator[World]:
    """Join the processes that torchrun started, or stay alone. `device` is as in `choose_device`; `cuda` and `auto`
    give each rank a GPU of its own.
    """
    chosen = choose_device(device)
    if "WORLD_SIZE" not in os.environ or "RANK" not in os.environ:
        make_current(chosen)
        yield World(chosen)
        return
    if "MASTER_ADDR" not in os.environ:
        raise InputError("RANK and WORLD_SIZE are set, but not MASTER_ADDR; start with torchrun, or unset the two")
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if chosen.type == "cuda" and chosen.index is None:
        chosen = choose_device(f"cuda:{int(os.environ.get('LOCAL_RANK', rank))}")
    make_current(chosen)
    # gloo beside nccl: what ranks agree on lives on the host and never waits for a GPU
    dist.init_process_group("cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo")
    try:
        own = own_cores()
        everyone = from_all(own)
        is_first_here = own.machine not in [other.machine for other in everyone[:rank]]
        yield World(chosen, rank, size, is_first_here, own.share(everyone))
    finally:
        dist.destroy_process_group()


def distribute(
    recipe: Recipe,
    sharding: Sharding,
    *,
    world: World,
    find_unused: bool,
    after_passes: bool = False,
    pieces: Pieces | None = None,
) -> None:
    """Let the recipe's network run on all ranks: copies whose gradients are averaged, during the last pass of a step or
    after it, or one network in shards, which may have been built in pieces.
    """
    if world.size == 1:
        return
    if sharding == "fsdp":
        recipe.shard(lambda module: shard_module(module, pieces))
        if pieces is not None:
            pieces.put_rest_together()
        return
    if after_passes:
        recipe.exchange = GradientExchange(recipe.network)
        return
    known = signature(DistributedDataParallel).parameters
    sync_buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # before 2.13
    kept: dict[str, Any] = {sync_buffers: False}
    recipe.run = DistributedDataParallel(
        recipe.network,
        device_ids=[world.device.index] if world.device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        find_unused_parameters=find_unused,
        **kept,
    )


def shard_module(module: nn.Module, pieces: Pieces | None = None) -> None:
    """FSDP2: layers, backbone and the rest are gathered when they run, and only then. Without parameters: nothing."""
    if not any(True for _ in module.parameters()):
        return
    # A summary may be a view of the tokens; nobody adds to it in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
    layers = {id(layer) for child in module.modules() if isinstance(child, nn.ModuleList) for layer in child}
    for part in reversed(list(module.modules())):  # the innermost first
        is_unit = id(part) in layers or part is module or isinstance(part, Backbone)  # which is scored on its own
        if is_unit and not isinstance(part, FSDPModule | nn.ModuleList | nn.ModuleDict):
            if pieces is not None:
                pieces.put_together(tensor for tensor in part.parameters() if not isinstance(tensor, DTensor))
            fully_shard(part, reshard_after_forward=True)


def settle_roots(modules: Iterable[nn.Module]) -> None:
    """Say that these modules, where they are sharded, are wholes. FSDP2 takes for one whatever runs first, and a whole
    whose part ran before it fails. torch has no public call for this.
    """
    for module in modules:
        if isinstance(module, FSDPModule):
            module._get_fsdp_state()._lazy_init()


def mean_over_ranks_(tensor: Tensor) -> Tensor:
    """The mean over all ranks, in place."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()
    return tensor


def largest_of_ranks(value: Tensor) -> Tensor:
    """The largest over all ranks, in place."""
    if dist.is_initialized():
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return value


def any_rank(flag: bool) -> bool:
    """Logical or over all ranks, known on every rank."""
    if not dist.is_initialized():
        return flag
    shared = torch.tensor(int(flag))
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return bool(shared)


def from_first(value: T) -> T:
    """What the first rank holds, on every rank."""
    if not dist.is_initialized():
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
    return box[0]


def once_per_machine(world: World, look: Callable[[], T]) -> T:
    """What `look` finds in files. One rank of each machine compares stored indexes with the files and brings them up to
    date; the others take them as they are. Where the first rank fails, all do, with its error or their own.
    """
    if world.size == 1:
        return look()
    if world.is_first_here:
        try:
            found = look()
        finally:
            from_all(None)
        return found
    from_all(None)
    with trusting_indexes():
        return look()


def only_first(look: Callable[[], T]) -> T:
    """What the first rank finds, on every rank; an error of its own on all of them."""
    if not dist.is_initialized():
        return look()
    found: list[T] = []
    failure: Exception | None = None
    if dist.get_rank() == 0:
        try:
            found = [look()]
        except Exception as error:
            failure = error
    found, failure = from_first((found, failure))
    if failure is not None:
        raise failure
    return found[0]


def from_all(value: T) -> list[T]:
    """What each rank holds, in the order of ranks."""
    if not dist.is_initialized():
        return [value]
    box: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(box, value)
    return box


def entries_of_all(entries: Mapping[str, T]) -> dict[str, T]:
    """The entries of all ranks, such as the files that each could not read, and why."""
    return {name: value for part in from_all(dict(entries)) for name, value in part.items()}


def gather_rows(tensor: Tensor) -> Tensor:
    """Equal numbers of rows from each rank, one under the other."""
    if not dist.is_initialized():
        return tensor
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():  # a recipe says so in `shared`
        raise RuntimeError("processes exchange rows during a pass")
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor.contiguous())
    return torch.cat(parts)


def rows_of_all(tensor: Tensor) -> Tensor:
    """`gather_rows` that gradients flow back through. Ranks' gradients are averaged later, so each gives its sum."""
    return tensor if not dist.is_initialized() else _RowsOfAll.apply(tensor)


class _RowsOfAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        ctx.num_rows = len(tensor)
        return gather_rows(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].contiguous()
        dist.all_reduce(total)
        start = dist.get_rank() * ctx.num_rows
        return total[start : start + ctx.num_rows]


@torch.no_grad()
def copy_from_first_(target: Tensor, value: Tensor | None) -> None:
    """Fill `target`, sharded or not, with what the first rank holds; other ranks give None."""
    if not dist.is_initialized():
        assert value is not None
        target.copy_(value)
        return
    full = torch.empty(target.shape, dtype=target.dtype, device=target.device)
    if value is not None:
        full.copy_(value)
    if isinstance(target, DTensor):
        target.copy_(distribute_tensor(full, target.device_mesh, target.placements))
    else:
        broadcast_(full)
        target.copy_(full)
