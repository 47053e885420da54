"""Checkpoints are written while training goes on: a copy on the host is hashed and written by a thread.

One is written at a time: a save that comes before the last one is on the disk waits for it. A write that failed raises
at the next step, and at every `wait`.
"""

import secrets
import threading
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from mixlab.training.checkpoint import Checkpoints, Gather, alone
from mixlab.training.distributed import World, from_all, from_first
from mixlab.training.sharded import local, whole


class HostCopies:
    """Copies of tensors in memory that is allocated once: pinned where they come from a GPU, which then goes on."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def allocate(self, tensors: Mapping[str, Tensor]) -> None:
        """Memory for copies of tensors like these, where there is none yet. It is touched, or the first copy would wait
        for the system to find each page of it."""
        for name, tensor in tensors.items():
            known = self._buffers.get(name)
            if known is None or known.shape != tensor.shape or known.dtype != tensor.dtype:
                self._buffers[name] = _allocate(tensor).zero_()

    @torch.no_grad()
    def take(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], torch.cuda.Event | None]:
        """The copies, sharded tensors whole, and what to wait for before they are read."""
        on_gpu = any(tensor.is_cuda for tensor in tensors.values())
        self.allocate(tensors)
        for name, tensor in tensors.items():
            self._buffers[name].copy_(whole(tensor), non_blocking=True)
        event = torch.cuda.Event() if on_gpu else None
        if event is not None:
            event.record()  # later steps change the tensors, but after the copies: in the order of the stream
        return {name: self._buffers[name] for name in tensors}, event


def _allocate(tensor: Tensor) -> Tensor:
    try:
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    except RuntimeError:  # no more memory may be pinned; then the copy waits for the GPU
        return torch.empty(tensor.shape, dtype=tensor.dtype)


class CheckpointWriter:
    """Writes the checkpoints of a run in a thread. Every rank has one, and calls it at the same steps."""

    def __init__(self, checkpoints: Checkpoints, *, world: World, sharded: bool) -> None:
        self.checkpoints, self.world = checkpoints, world
        self._copies = HostCopies()
        self._thread: threading.Thread | None = None
        self._preparing: threading.Thread | None = None
        self._error: BaseException | None = None
        self._gather: Gather | None = None  # where every rank writes its own shards
        if sharded and world.size > 1 and self._is_shared():
            group = dist.new_group(backend="gloo")  # of its own: the threads use it while the loop uses others
            self._gather = lambda value: _gather_over(group, value)

    def prepare(self, tensors: Mapping[str, Tensor]) -> threading.Thread:
        """Allocate memory for copies of these in a thread, so that the first save takes no longer than others."""
        own = {
            name: tensor if self._gather is None else local(tensor)
            for name, tensor in tensors.items()
            if self.world.is_first or (self._gather is not None and isinstance(tensor, DTensor))
        }
        thread = threading.Thread(target=self._copies.allocate, args=(own,), name="room for checkpoints", daemon=True)
        thread.start()
        self._preparing = thread
        return thread

    def start(self, step: int, tensors: Mapping[str, Tensor], state: dict[str, Any]) -> None:
        """Copy the tensors, and write them while the caller goes on and changes them."""
        self.wait()
        if self._preparing is not None:
            self._preparing.join()
            self._preparing = None
        if self._gather is not None:
            own = {name: part for name, tensor in tensors.items() if (part := self._part(tensor)) is not None}
            self._write(step, own, state, self._gather)
        elif self.world.is_first:
            self._write(step, tensors, state, alone)
        else:
            for tensor in tensors.values():
                whole(tensor)  # each rank gives its shard

    def wait(self) -> None:
        """Until the last checkpoint is on the disk; what went wrong with it is raised here."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def check(self) -> None:
        """Raise what went wrong, without waiting."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def settle(self) -> None:
        """As `wait`, where another error is being raised, which counts."""
        if self._thread is not None:
            self._thread.join()

    def _write(self, step: int, tensors: Mapping[str, Tensor], state: dict[str, Any], gather: Gather) -> None:
        copies, copied = self._copies.take(tensors)

        def write() -> None:
            try:
                if copied is not None:
                    copied.synchronize()
                self.checkpoints.save(step, copies, state, rank=self.world.rank, gather=gather)
            except BaseException as error:  # raised again in the main thread
                self._error = error

        self._thread = threading.Thread(target=write, name=f"checkpoint of step {step}", daemon=True)
        self._thread.start()

    def _part(self, tensor: Tensor) -> Tensor | None:
        """What this rank writes of a tensor: its rows of a sharded one; others are the first rank's."""
        if isinstance(tensor, DTensor):
            if tensor.placements == (Shard(0),):
                return tensor.to_local()
            tensor = whole(tensor)
        return tensor if self.world.is_first else None

    def _is_shared(self) -> bool:
        """Whether every rank sees the folder. Where one does not, the first rank writes everything."""
        folder, name = self.checkpoints.folder, from_first(f".shared-{secrets.token_hex(4)}")
        if self.world.is_first:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
        from_all(None)  # it is there now
        seen = all(from_all((folder / name).is_file()))
        if self.world.is_first:
            (folder / name).unlink(missing_ok=True)
        return seen


def _gather_over(group: Any, value: Any) -> list[Any]:
    box: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(box, value, group=group)
    return box
