"""The scan in plain torch, linear in the length: a matrix inside each chunk, a state between chunks.

One chunk is the matrix form; more chunks are the recurrence of whole blocks. Runs, differentiates and exports anywhere;
where nothing is recorded on a CPU, `in_place.py` is faster.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNKS = range(48, 97)  # chunk lengths of equal speed on a CPU; the one that pads least is taken
MIN_LOG_DECAY = -40.0  # e⁻⁴⁰ = 4e-18 is nothing beside 1 even in float64; keeps the sums inside a chunk small and exact
MIN_LOG_FACTOR = -80.0  # e⁻⁸⁰ = 2e-35 is nothing, yet no denormal number, which would slow a CPU down thirty times


def ssd_chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dt: Tensor,
    A: Tensor,
    skip: Tensor,
    *,
    num_reverse: int = 0,
    chunk: int | None = None,
) -> Tensor:
    """The scan of `reference.ssd_recurrence`, same arguments. Returns (B, L, H, P) in the dtype of v."""
    chunk = chunk or chunk_length(v.shape[1])
    num_forward = v.shape[2] - num_reverse
    num_groups = q.shape[2] * num_forward // v.shape[2]
    parts = []
    if num_forward:
        groups, heads = slice(None, num_groups), slice(None, num_forward)
        forward = (q[:, :, groups], k[:, :, groups], v[:, :, heads], dt[..., heads], A[heads], skip[heads])
        parts.append(_scan(*forward, chunk=chunk, reverse=False))
    if num_reverse:
        groups, heads = slice(num_groups, None), slice(num_forward, None)
        backward = (q[:, :, groups], k[:, :, groups], v[:, :, heads], dt[..., heads], A[heads], skip[heads])
        parts.append(_scan(*backward, chunk=chunk, reverse=True))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def chunk_length(length: int) -> int:
    """The whole sequence if it is short; otherwise the chunk that leaves the least padding: 198 tokens are 3 x 66."""
    return length if length <= CHUNKS[-1] else min(CHUNKS, key=lambda chunk: (-length % chunk, abs(chunk - 64)))


def _scan(q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, skip: Tensor, *, chunk: int, reverse: bool) -> Tensor:
    """One direction. J heads share a group's q and k; c counts chunks of T tokens."""
    length, groups = v.shape[1], q.shape[2]
    num_chunks = -(-length // chunk)
    pad = num_chunks * chunk - length
    if pad:
        q, k, v = (F.pad(t, (0, 0, 0, 0, 0, pad)) for t in (q, k, v))
        dt = F.pad(dt, (0, 0, 0, pad))
    q, k = (t.unflatten(1, (num_chunks, chunk)).permute(0, 3, 1, 2, 4) for t in (q, k))  # (B, G, c, T, N)
    v = v.unflatten(2, (groups, -1)).unflatten(1, (num_chunks, chunk)).permute(0, 3, 1, 2, 4, 5)  # (B, G, c, T, J, P)
    dt = dt.unflatten(2, (groups, -1)).unflatten(1, (num_chunks, chunk)).permute(0, 3, 1, 4, 2)  # (B, G, c, J, T)

    steps = (dt * A.view(groups, 1, -1, 1)).clamp_min(MIN_LOG_DECAY)
    so_far = (
        steps.flip(-1).cumsum(-1).flip(-1) if reverse else steps.cumsum(-1)
    )  # log decay since the chunk was entered
    skip = skip.view(groups, -1, 1)
    y = _inside(q, k, v, dt, so_far, skip, reverse=reverse)
    if num_chunks > 1:
        whole = so_far[..., :1] if reverse else so_far[..., -1:]
        left_at_exit = _decay(whole - so_far) * dt  # (B, G, c, J, T)
        fed = (v * left_at_exit.mT.unsqueeze(-1)).to(v.dtype).flatten(-2)
        states = (k.mT @ fed).unflatten(-1, v.shape[-2:])  # (B, G, c, N, J, P)
        entered = _carry(states, _decay(whole.squeeze(-1)), reverse=reverse).to(v.dtype).flatten(-2)
        read = (q @ entered).unflatten(-1, v.shape[-2:])  # (B, G, c, T, J, P)
        y = torch.addcmul(y, read, _decay(so_far).mT.unsqueeze(-1).to(read.dtype))
    return y.permute(0, 2, 3, 1, 4, 5).flatten(3, 4).flatten(1, 2)[:, :length]  # (B, L, H, P)


def _inside(q: Tensor, k: Tensor, v: Tensor, dt: Tensor, so_far: Tensor, skip: Tensor, *, reverse: bool) -> Tensor:
    """What tokens read of their own chunk and of themselves: (B, G, c, T, J, P)."""
    scores = _visible(q @ k.mT, reverse=reverse)
    decay = _decay(so_far[..., :, None] - so_far[..., None, :])  # (B, G, c, J, T, T)
    passed = torch.diag_embed(skip.unsqueeze(1).expand(-1, -1, -1, q.shape[3])).to(decay.dtype)  # (G, 1, J, T, T)
    weights = torch.addcmul(passed, scores.unsqueeze(3) * decay, dt[..., None, :])
    return torch.einsum("bgcjts,bgcsjp->bgctjp", weights.to(v.dtype), v)


def _visible(scores: Tensor, *, reverse: bool) -> Tensor:
    """Zero where a token may not look."""
    return scores.triu() if reverse else scores.tril()


def records_gradients(*tensors: Tensor) -> bool:
    """Whether autograd, or what compiles or exports, looks at each step."""
    recording = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    transformed = type(tensors[0]) is not Tensor or torch._C._are_functorch_transforms_active()
    return recording or torch.compiler.is_compiling() or transformed


def _decay(log_decay: Tensor) -> Tensor:
    """The factor of a log decay; where the sign says that a token lies ahead, some finite number."""
    return log_decay.clamp(MIN_LOG_FACTOR, 0.0).exp()


def _carry(states: Tensor, decay: Tensor, *, reverse: bool) -> Tensor:
    """The state with which each chunk is entered, from what each adds (B, G, c, N, J, P) and keeps (B, G, c, J)."""
    state = torch.zeros_like(states[:, :, 0])
    entered = []
    chunks = list(zip(states.unbind(2), decay.unbind(2), strict=True))
    for added, kept in reversed(chunks) if reverse else chunks:
        entered.append(state)
        state = torch.addcmul(added, state, kept[:, :, None, :, None].to(added.dtype))
    return torch.stack(entered[::-1] if reverse else entered, dim=2)
