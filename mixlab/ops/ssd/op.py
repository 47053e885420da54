"""The scan, wherever the tensors are."""

from torch import Tensor

from mixlab.ops.ssd.chunked import ssd_chunked


def ssd(q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, skip: Tensor, *, num_reverse: int = 0) -> Tensor:
    """The two-way selective scan; arguments and meaning in `reference.py`. Returns (B, L, H, P) in the dtype of v."""
    return ssd_chunked(q, k, v, dt, A, skip, num_reverse=num_reverse)
