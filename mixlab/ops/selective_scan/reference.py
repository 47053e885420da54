"""What the selective scan of Mamba-1 means, spelt twice: token by token, and as a matrix for each channel.

Several scans run side by side: S of them, each with E channels of its own.
Shapes: q, k (B, L, S, N), shared by the channels of a scan; v, dt (B, L, S, E), dt positive; A (S, E, N), negative;
skip (S, E). L counts the places of a scan; which token stands where is the caller's business. The last `num_reverse`
scans read the sequence from the right. In Mamba's letters: q = C, k = B, v = u, dt = Δ after softplus, skip = D.
"""

import torch
from torch import Tensor


def selective_scan_recurrence(
    q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, skip: Tensor, *, num_reverse: int = 0
) -> Tensor:
    """state_t = exp(dt_t A) state_{t-1} + dt_t v_t k_tᵀ,  y_t = state_t q_t + skip v_t.  Returns (B, L, S, E)."""
    values = v
    q, k, v, dt = (flip_reverse_scans(t, num_reverse) for t in (q, k, v, dt))
    state = v.new_zeros(v.shape[0], *A.shape)  # (B, S, E, N): a decay for every channel and state
    outputs = []
    for t in range(v.shape[1]):
        decay = (dt[:, t, ..., None] * A).exp()
        state = decay * state + (dt[:, t] * v[:, t])[..., None] * k[:, t, :, None, :]
        outputs.append((state * q[:, t, :, None, :]).sum(-1))
    return flip_reverse_scans(torch.stack(outputs, dim=1), num_reverse) + skip * values


def selective_scan_matrix(q: Tensor, k: Tensor, dt: Tensor, A: Tensor, skip: Tensor) -> Tensor:
    """M (B, H, L, L) with y = M v for H channels from the left, one after the other: Σ_n q_n k_nᵀ ∘ decay_n, times dt,
    plus skip on the diagonal. q, k (B, L, H, N); dt (B, L, H); A (H, N); skip (H,)."""
    passed = steps_between(dt)  # (B, H, L, L)
    q, k = q.permute(3, 0, 2, 1), k.permute(3, 0, 2, 1)  # (N, B, H, L)
    weights = torch.zeros_like(passed)
    for own_q, own_k, rate in zip(q, k, A.mT, strict=True):  # one state at a time: N matrices would not fit
        weights = weights + own_q[..., :, None] * own_k[..., None, :] * (passed * rate[:, None, None]).exp()
    weights = weights.tril() * dt.mT[:, :, None, :]
    return weights + torch.diag_embed(skip[:, None].expand(-1, dt.shape[1])).to(weights)


def steps_between(dt: Tensor) -> Tensor:
    """(B, L, H) -> (B, H, L, L): the sum of the steps after token j up to token i; zero where i may not see j."""
    steps = dt.mT  # (B, H, L)
    length = steps.shape[-1]
    # Each entry sums its own steps: differences of one long cumulative sum lose the small steps after a large one.
    later = torch.ones(length, length, dtype=torch.bool, device=dt.device).tril(-1)
    return steps[..., :, None].expand(*steps.shape, length).masked_fill(~later, 0).cumsum(-2)


def flip_reverse_scans(places: Tensor, num_reverse: int) -> Tensor:
    """Turn the sequence of the reverse scans round: (B, L, S, ...) along L."""
    forward, reverse = places.tensor_split([places.shape[2] - num_reverse], dim=2)
    return torch.cat([forward, reverse.flip(1)], dim=2)
