"""The short causal convolution in front of the scan, one per direction, with its bias and SiLU."""

import torch
import torch.nn.functional as F
from torch import Tensor


def short_conv(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """silu(conv(x) + bias) for each of R directions: x (B, L, C), weight (R, C, W), bias (R, C) -> (B, L, R, C).

    Direction 0 sees the W - 1 tokens before, direction 1 the W - 1 tokens after: the same filter on the flipped sequence.
    """
    outputs = []
    for direction, taps in enumerate(weight.to(x.dtype)):
        width = taps.shape[-1]
        padded = F.pad(x, (0, 0, width - 1, 0) if direction == 0 else (0, 0, 0, width - 1))
        taps = taps if direction == 0 else taps.flip(-1)
        outputs.append(sum(padded[:, w : w + x.shape[1]] * taps[:, w] for w in range(width)))
    return F.silu(torch.stack(outputs, dim=2) + bias.to(x.dtype))
