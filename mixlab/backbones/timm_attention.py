"""The attention of timm's models as mixings, whoever wrote the block: by listening to torch's attention while they run.

Rotary positions, position biases and norms of q and k come along, since they are in what the call is given. Nothing is
hooked into the model, and nothing stays on it.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mixlab.mixers import SoftmaxMixing


def attention_mixings(model: nn.Module, images: Tensor, num_tokens: int) -> list[SoftmaxMixing]:
    """The mixing of each call of attention over all `num_tokens` tokens of one forward pass, in order."""
    with _Listener(len(images), num_tokens) as listener:
        model(images)
    return listener.heard


class _Listener(TorchFunctionMode):
    """Keeps what `scaled_dot_product_attention` is given; windows and shortened keys do not count."""

    def __init__(self, batch: int, num_tokens: int) -> None:
        super().__init__()
        self.batch, self.num_tokens = batch, num_tokens
        self.heard: list[SoftmaxMixing] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            self._hear(*args, **kwargs)
        return func(*args, **kwargs)

    def _hear(
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
        everything = (self.batch, self.num_tokens)
        if any((t.shape[0], t.shape[-2]) != everything or t.ndim != 4 for t in (query, key, value)) or enable_gqa:
            return
        q = query if scale is None else query * (scale * query.shape[-1] ** 0.5)
        bias = attn_mask
        if bias is not None and not bias.is_floating_point():  # a mask of who may be seen
            bias = query.new_zeros(bias.shape).masked_fill(~bias, float("-inf"))
        if bias is not None:
            bias = bias.reshape(*(1,) * (4 - bias.ndim), *bias.shape)
        self.heard.append(SoftmaxMixing(q, key, value, is_causal, bias))
