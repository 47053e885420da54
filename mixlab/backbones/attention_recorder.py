"""The mixings of attention that is not ours: what torch's attention is called with."""

from collections.abc import Container
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mixlab.mixers import SoftmaxMixing


class AttentionRecorder(TorchFunctionMode):
    """Counts the calls of torch's attention over all tokens while it is active, and keeps the inputs of the `wanted`
    ones as mixings. Windows and shortened keys do not count. Heads may be folded into the images, (B H, L, P): they are
    told from windows by their number, which makes up the `width` of a token.

    Norms, rotary positions and position biases come along, since they are in what the call is given. Nothing is hooked
    into the model, and nothing stays on it.
    """

    def __init__(self, batch: int, num_tokens: int, wanted: Container[int], width: int) -> None:
        super().__init__()
        self.everything, self.wanted, self.width = (batch, num_tokens), wanted, width
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
        if query.ndim == 3:
            if len(query) * value.shape[-1] != self.everything[0] * self.width:
                return
            query, key, value = (self._unfolded(t) for t in (query, key, value))
            attn_mask = attn_mask if attn_mask is None or attn_mask.ndim < 3 else self._unfolded(attn_mask)
        if any((t.shape[0], t.shape[-2]) != self.everything or t.ndim != 4 for t in (query, key, value)) or enable_gqa:
            return
        if self.num_calls in self.wanted:
            q = query if scale is None else query * (scale * query.shape[-1] ** 0.5)
            self.mixings[self.num_calls] = SoftmaxMixing(q, key, value, is_causal, _as_bias(attn_mask, query))
        self.num_calls += 1

    def _unfolded(self, folded: Tensor) -> Tensor:
        """(B H, ...) -> (B, H, ...), image by image as timm folds them; (1, ...), which is for all, stays so."""
        return folded[None] if len(folded) == 1 else folded.unflatten(0, (self.everything[0], -1))


def _as_bias(mask: Tensor | None, query: Tensor) -> Tensor | None:
    """A mask as what is added to the scores (B or 1, H or 1, L, L)."""
    if mask is None:
        return None
    if not mask.is_floating_point():  # True where a token may be seen
        mask = query.new_zeros(mask.shape).masked_fill(~mask, float("-inf"))
    return mask.reshape(*(1,) * (4 - mask.ndim), *mask.shape)
