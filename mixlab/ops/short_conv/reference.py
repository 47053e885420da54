"""The short causal convolution in front of the scan, with its bias and SiLU."""

import torch.nn.functional as F
from torch import Tensor


def short_conv(x: Tensor, weight: Tensor, bias: Tensor, *, reverse: bool) -> Tensor:
    """silu(conv(x) + bias): x (B, L, C), weight (C, W), bias (C,) -> (B, L, C).

    Each token sees the W - 1 before it; in reverse, the W - 1 after it: the same filter on the flipped sequence.
    """
    length, (channels, width) = x.shape[1], weight.shape
    image = x.mT.unsqueeze(2)  # (B, C, 1, L), channels last in memory: the layout that depthwise convolutions like best
    taps = (weight.flip(-1) if reverse else weight).to(x.dtype)
    padded = F.conv2d(image, taps[:, None, None], bias.to(x.dtype), padding=(0, width - 1), groups=channels)
    start = width - 1 if reverse else 0
    return F.silu(padded[:, :, 0, start : start + length].mT)
