"""Add a branch to the residual stream and normalise the sum for the next branch."""

from torch import Tensor


def add_rms_norm(branch: Tensor, stream: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """(B, L, D) twice and (D,) -> the new stream in float32 (float64 stays), and its RMSNorm in the dtype of the branch."""
    stream = stream + branch
    normed = stream * (stream.square().mean(-1, keepdim=True) + eps).rsqrt() * weight
    return stream, normed.to(branch.dtype)
