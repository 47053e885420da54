"""What the scan means, spelt twice: token by token, and as a matrix. Everything else is tested against this file.

Shapes: q, k (B, L, G, N); v (B, L, H, P); dt (B, L, H), positive; A (H,), negative; skip (H,).
Heads come in G groups of H / G that share q and k. The last `num_reverse` heads read the sequence from the right.
In Mamba-2's letters: q = C, k = B, v = x, skip = D.
"""

import torch
from torch import Tensor


def ssd_recurrence(
    q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, skip: Tensor, *, num_reverse: int = 0
) -> Tensor:
    """state_t = exp(dt_t A) state_{t-1} + dt_t k_t v_tᵀ,  y_t = state_tᵀ q_t + skip v_t.  Returns (B, L, H, P)."""
    num_heads = v.shape[2]
    q, k = per_head(q, num_heads), per_head(k, num_heads)
    q, k, values, dt = (flip_reverse_heads(t, num_reverse) for t in (q, k, v, dt))
    state = v.new_zeros(v.shape[0], num_heads, q.shape[-1], v.shape[-1])  # (B, H, N, P)
    outputs = []
    for t in range(v.shape[1]):
        decay = (dt[:, t] * A).exp()[..., None, None]
        state = decay * state + (dt[:, t, :, None] * k[:, t])[..., None] * values[:, t, :, None, :]
        outputs.append((q[:, t, :, None, :] @ state).squeeze(-2))
    y = flip_reverse_heads(torch.stack(outputs, dim=1), num_reverse)
    return y + skip[:, None] * v


def ssd_matrix(q: Tensor, k: Tensor, dt: Tensor, A: Tensor, skip: Tensor, *, num_reverse: int = 0) -> Tensor:
    """M (B, H, L, L) with y = M v for each head: (q kᵀ) ∘ decay ∘ triangle, times dt, plus skip on the diagonal."""
    num_heads = dt.shape[2]
    scores = torch.einsum("bihn,bjhn->bhij", per_head(q, num_heads), per_head(k, num_heads))
    weights = scores * dt.mT[:, :, None, :] * decay_matrix(dt, A, num_reverse=num_reverse)
    return weights + torch.diag_embed(skip[:, None].expand(-1, dt.shape[1])).to(weights)


def decay_matrix(dt: Tensor, A: Tensor, *, num_reverse: int = 0) -> Tensor:
    """The mask of the scan (B, H, L, L): what of token j is left at token i, and zero where i may not see j."""
    log_decay = flip_reverse_heads(dt * A, num_reverse).mT  # (B, H, L)
    length = log_decay.shape[-1]
    # Each entry sums its own steps: differences of one long cumulative sum lose the small decays after a large one.
    steps = log_decay[..., :, None].expand(*log_decay.shape, length)
    ones = torch.ones(length, length, dtype=torch.bool, device=dt.device)
    sums = steps.masked_fill(~ones.tril(-1), 0).cumsum(-2).masked_fill(~ones.tril(), -torch.inf)
    mask = sums.exp()
    forward, reverse = mask.tensor_split([mask.shape[1] - num_reverse], dim=1)
    return torch.cat([forward, reverse.flip(-1, -2)], dim=1)


def per_head(shared: Tensor, num_heads: int) -> Tensor:
    """(B, L, G, N) -> (B, L, H, N)."""
    return shared.repeat_interleave(num_heads // shared.shape[2], dim=2)


def flip_reverse_heads(tokens: Tensor, num_reverse: int) -> Tensor:
    """Turn the sequence of the reverse heads round: (B, L, H, ...) along L."""
    forward, reverse = tokens.tensor_split([tokens.shape[2] - num_reverse], dim=2)
    return torch.cat([forward, reverse.flip(1)], dim=2)
