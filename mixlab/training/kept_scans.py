"""What Mamba-2 scans read and make is kept for the backward pass in as many layers as the GPU has room for.

Kept or made again, the bits are the same: only time and memory differ (mixlab/ops/ssd/README.md).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from mixlab.mixers.mamba2 import Mamba2

SHARE = 0.3  # of the free memory: other runs on the same GPU may decide at the same moment


class KeptScans:
    """Watches passes for what each layer would keep; then lets layers do so, one after the other."""

    def __init__(self, network: nn.Module) -> None:
        mixers = [module for module in network.modules() if isinstance(module, Mamba2)]
        self.bytes = dict.fromkeys(mixers, 0)
        self.num_passes = 0
        for mixer in mixers:
            mixer.keep_scan = False  # an earlier run may have left it so

    @contextmanager
    def watching(self, num_passes: int) -> Iterator[None]:
        """Inside, so many passes run."""
        hooks = [mixer.register_forward_pre_hook(self._count) for mixer in self.bytes]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        self.num_passes += num_passes

    def _count(self, mixer: nn.Module, inputs: tuple[Any, ...]) -> None:
        if torch.is_grad_enabled() and isinstance(mixer, Mamba2):
            self.bytes[mixer] += mixer.scan_bytes(inputs[0])

    def keep(self, *, free_bytes: int) -> None:
        """With so much memory left."""
        room = SHARE * free_bytes
        for mixer, in_all in self.bytes.items():
            room -= in_all / self.num_passes
            mixer.keep_scan = room >= 0
