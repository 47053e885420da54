"""Add a branch to the residual stream and normalise the sum for the next branch."""

import torch.nn.functional as F
from torch import Tensor


def add_rms_norm(branch: Tensor, stream: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """(B, L, D) twice and (D,) -> the new stream, in the stream's dtype, and its RMSNorm in the dtype of the branch."""
    stream = stream + branch
    return stream, F.rms_norm(stream, weight.shape, weight.to(stream.dtype), eps).to(branch.dtype)
