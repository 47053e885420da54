"""The attention of timm's models as mixings, for every kind of block: by recording the calls of torch's attention.

Norms before or after, norms of q and k, rotary positions and position biases come along, since they are in what the
call is given. Nothing is hooked into the model, and nothing stays on it.
"""

from collections.abc import Container
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mixlab.mixers import SoftmaxMixing


class AttentionRecorder(TorchFunctionMode):
    """Counts the calls of attention over all tokens while it is active, and keeps the inputs of the `wanted` ones.

    Windows and shortened keys do not count.
    """

    def __init__(self, batch: int, num_tokens: int, wanted: Container[int]) -> None:
        super().__init__()
        self.everything, self.wanted = (batch, num_tokens), wanted
        self.num_calls = 0
        self.mixings: dict[int, SoftmaxMixing] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            self._record(*args, **kwargs)
        return func(*args, **kwargs)

    def _record(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        if any((t.shape[0], t.shape[-2]) != self.everything or t.ndim != 4 for t in (query, key, value)) or enable_gqa:
            return
        if self.num_calls in self.wanted:
            q = query if scale is None else query * (scale * query.shape[-1] ** 0.5)
            self.mixings[self.num_calls] = SoftmaxMixing(q, key, value, is_causal, _as_bias(attn_mask, query))
        self.num_calls += 1


def _as_bias(mask: Tensor | None, query: Tensor) -> Tensor | None:
    """A mask as what is added to the scores (B or 1, H or 1, L, L)."""
    if mask is None:
        return None
    if not mask.is_floating_point():  # True where a token may be seen
        mask = query.new_zeros(mask.shape).masked_fill(~mask, float("-inf"))
    return mask.reshape(*(1,) * (4 - mask.ndim), *mask.shape)
