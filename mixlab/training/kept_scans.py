"""What Mamba-2 scans read and make is kept for the backward pass in as many layers as the GPU has room for.

Kept or made again, the bits are the same: only time and memory differ (mixlab/ops/ssd/README.md).
"""

from typing import Any

import torch
from torch import nn

from mixlab.mixers.mamba2 import Mamba2

SHARE = 0.5  # of the free memory: other runs may start on the same GPU


class KeptScans:
    """Watches the first passes for what each layer would keep; then `keep` lets layers do so, one after the other."""

    def __init__(self, network: nn.Module) -> None:
        mixers = [module for module in network.modules() if isinstance(module, Mamba2)]
        self.bytes = dict.fromkeys(mixers, 0)
        self._watches = [mixer.register_forward_pre_hook(self._count) for mixer in mixers]

    def _count(self, mixer: nn.Module, inputs: tuple[Any, ...]) -> None:
        if torch.is_grad_enabled() and isinstance(mixer, Mamba2):
            self.bytes[mixer] += mixer.scan_bytes(inputs[0])

    def keep(self, *, free_bytes: int, num_passes: int) -> None:
        """After so many passes, with so much memory left."""
        for watch in self._watches:
            watch.remove()
        room = SHARE * free_bytes
        for mixer, in_all in self.bytes.items():
            room -= in_all / num_passes
            mixer.keep_scan = room >= 0
