"""The selective scan, wherever the tensors are."""

from torch import Tensor

from mixlab.errors import InputError
from mixlab.ops.selective_scan.chunked import selective_scan_chunked


def selective_scan(
    q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, skip: Tensor, *, num_reverse: int = 0
) -> Tensor:
    """S scans at once; arguments and meaning in `reference.py`. Returns (B, L, S, E) in the dtype of v."""
    _check(q, k, v, dt, A, skip, num_reverse)
    return selective_scan_chunked(q, k, v, dt, A, skip, num_reverse=num_reverse)


def _check(q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, skip: Tensor, num_reverse: int) -> None:
    if q.dim() != 4 or v.dim() != 4:
        raise InputError(f"q {tuple(q.shape)} and v {tuple(v.shape)} must be (B, L, S, N) and (B, L, S, E)")
    if k.shape != q.shape or q.shape[:3] != v.shape[:3]:
        raise InputError(
            f"q {tuple(q.shape)} and k {tuple(k.shape)} must agree, and share B, L and S with v {tuple(v.shape)}"
        )
    _, _, num_scans, width = v.shape
    rates = (num_scans, width, q.shape[3])
    if dt.shape != v.shape or A.shape != rates or skip.shape != rates[:2]:
        raise InputError(
            f"dt {tuple(dt.shape)}, A {tuple(A.shape)} and skip {tuple(skip.shape)} must be {tuple(v.shape)}, {rates} "
            f"and {rates[:2]} for v {tuple(v.shape)}"
        )
    if not 0 <= num_reverse <= num_scans:
        raise InputError(f"num_reverse {num_reverse} is not between 0 and the {num_scans} scans")
