"""Copies of one network on all ranks, whose gradients are averaged after the last backward pass of a step, and whose
batch statistics after the step.

DistributedDataParallel (DDP) averages during that pass, beside its kernels. A CUDA graph holds the kernels of its own
rank alone, so there the exchange comes after it, in a fixed order and in few large pieces. Both ways scale by 1 / ranks
and then sum. Two numbers have one sum, so two ranks get the same bits either way. Of more ranks, the order of summands
depends on where a number lies in its piece: the last bits may differ from DDP's. All ranks hold equal gradients anyway.
"""

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from mixlab.training.sharded import broadcast_

BUCKET_BYTES = 25 * 2**20  # as DistributedDataParallel's


class GradientExchange:
    """Makes the copies equal, and then their gradients whenever it is called. Every rank must call it."""

    def __init__(self, network: nn.Module) -> None:
        self.parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        for tensor in (*network.parameters(), *network.buffers()):
            broadcast_(tensor)

    @torch.no_grad()
    def __call__(self) -> None:
        for bucket in in_buckets(self._with_gradient()):
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients]).mul_(1 / dist.get_world_size())
            dist.all_reduce(flat)
            means = flat.split([gradient.numel() for gradient in gradients])
            for parameter, gradient, mean in zip(bucket, gradients, means, strict=True):
                # In place: a captured pass writes the gradients of the next step into the same memory.
                parameter.grad = gradient.copy_(mean.view_as(gradient))

    def _with_gradient(self) -> list[nn.Parameter]:
        """The parameters that have a gradient on any rank. The others keep none, so that nothing changes them."""
        has = torch.tensor([parameter.grad is not None for parameter in self.parameters], dtype=torch.uint8)
        dist.all_reduce(has, op=dist.ReduceOp.MAX)  # on the host: never waits for a GPU
        return [parameter for parameter, kept in zip(self.parameters, has.tolist(), strict=True) if kept]


class StatisticsExchange:
    """Averages the running statistics of batch norms over ranks, each of which has seen its own images. Otherwise ranks
    would score different networks, and a run that resumes would not have the statistics of one that did not stop.
    Norms in evaluation mode, such as those of a frozen backbone, stay as they are. Every rank must call it.
    """

    def __init__(self, network: nn.Module) -> None:
        self.norms = [
            part
            for part in network.modules()
            if isinstance(part, _BatchNorm) and not isinstance(part, nn.SyncBatchNorm) and part.running_mean is not None
        ]

    @torch.no_grad()
    def __call__(self) -> None:
        norms = [norm for norm in self.norms if norm.training]
        statistics = [value for norm in norms for value in (norm.running_mean, norm.running_var) if value is not None]
        if not statistics:
            return
        flat = torch.cat(statistics).div_(dist.get_world_size())
        dist.all_reduce(flat)
        torch._foreach_copy_(statistics, list(flat.split([len(value) for value in statistics])))


def in_buckets(parameters: Iterable[nn.Parameter], *, most: int = BUCKET_BYTES) -> Iterator[list[nn.Parameter]]:
    """Neighbours of one type, together no larger than `most` bytes; a larger one is alone."""
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        if bucket and (size + parameter.nbytes > most or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.nbytes
    if bucket:
        yield bucket
