"""Add a branch to the residual stream and normalise the sum for the next branch."""

import torch
import torch.nn.functional as F
from torch import Tensor


def add_norm(
    branch: Tensor, stream: Tensor, weight: Tensor, bias: Tensor | None, factors: Tensor | None = None, *, eps: float
) -> tuple[Tensor, Tensor]:
    """(B, L, D) twice and (D,) -> the new stream, in the stream's dtype, and its norm in the dtype of the branch.

    LayerNorm where there is a bias, RMSNorm where there is none. Factors (B,) scale the branch of each image.
    """
    stream = stream + (branch if factors is None else branch * factors[:, None, None])
    weight = weight.to(stream.dtype)
    if bias is None and stream.device.type == "cpu" and not stream.requires_grad:
        lengths = torch.linalg.vector_norm(stream, dim=-1, keepdim=True)  # rms_norm stores the squares
        scale = (lengths.square() / weight.numel() + eps).rsqrt()
        return stream, (stream * scale).mul_(weight).to(branch.dtype)
    if bias is None:
        return stream, F.rms_norm(stream, weight.shape, weight, eps).to(branch.dtype)
    return stream, F.layer_norm(stream, weight.shape, weight, bias.to(stream.dtype), eps).to(branch.dtype)
