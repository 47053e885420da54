"""Memory for the buffers of a scan on a CPU, which a thread keeps from layer to layer.

Freed and allocated again, it would go back to the system, and mapping new pages takes as long as computing in them.
"""

import math
import threading
from itertools import accumulate

import torch
from torch import Tensor

MOST = 2**26  # bytes that are kept; buffers that do not fit are allocated each time


class Pool:
    """What the thread keeps, while it is in use; a second one at the same time has memory of its own."""

    kept = threading.local()

    def __enter__(self) -> "Pool":
        self.memory: Tensor | None = getattr(self.kept, "memory", None)
        self.kept.memory = None
        return self

    def __exit__(self, *_: object) -> None:
        self.kept.memory = self.memory if type(self.memory) is Tensor else None  # no fake tensors

    def buffers(self, like: Tensor, shapes: list[tuple[int, ...]]) -> list[Tensor]:
        """Uninitialised, of the dtype of `like`; they hold until others are asked for."""
        sizes, width = [math.prod(shape) for shape in shapes], like.element_size()
        ends = [end * width for end in accumulate(sizes) if end * width <= MOST]
        fitting, num_bytes = len(ends), ends[-1] if ends else 0
        if self.memory is None or len(self.memory) < num_bytes:
            with torch.inference_mode(False):  # passes outside of it write here, too
                self.memory = torch.empty(num_bytes, dtype=torch.uint8, device="cpu")
        parts = self.memory[:num_bytes].view(like.dtype).split(sizes[:fitting])
        pooled = [part.view(shape) for part, shape in zip(parts, shapes[:fitting], strict=True)]
        return pooled + [like.new_empty(shape) for shape in shapes[fitting:]]
