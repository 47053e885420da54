"""Tensors on several ranks: the same on all of them, or their rows in parts (`sharding=fsdp`)."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def local(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor that lies on this rank; other tensors as they are."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """A sharded tensor put together, on every rank; others as they are."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_from(part: Tensor, like: Tensor) -> Tensor:
    """The tensor of which each rank holds a part, as it does of `like`."""
    if not isinstance(like, DTensor):
        return part
    mesh, placements = like.device_mesh, like.placements
    return DTensor.from_local(part, mesh, placements, shape=like.shape, stride=like.stride()).full_tensor()


def part_of(tensor: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a tensor that every rank holds, as of `like`."""
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None).to_local()


@torch.no_grad()
def broadcast_(tensor: Tensor) -> None:
    """Fill a tensor with what the first rank has in it; as bytes, since gloo and NCCL send few types."""
    if tensor.numel():
        whole = tensor.detach().contiguous()
        dist.broadcast(whole.reshape(-1).view(torch.uint8), src=0)
        tensor.copy_(whole)
