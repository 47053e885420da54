"""The selective scan in plain torch, linear in the length. Runs, differentiates and exports anywhere.

The sequence is cut into chunks, and all chunks take their steps at the same time: first to find the state that each
leaves, then, from the state with which each is entered, for the outputs. Every decay is a factor from 0 to 1 that is
multiplied, never divided by, so that no decay is too strong.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mixlab.ops.selective_scan.reference import flip_reverse_scans

MIN_LOG_DECAY = -80.0  # e⁻⁸⁰ = 2e-35 is nothing, yet no denormal number, which would slow a CPU down thirty times
CACHED = 2**17  # numbers of all states that advance together: more would not stay in a CPU's cache


def selective_scan_chunked(
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
    """The scan of `reference.selective_scan_recurrence`, same arguments. Returns (B, L, S, E) in the dtype of v."""
    # The batch must not decide in a graph that is exported for any batch; there, few steps count.
    chunk = chunk or chunk_length(v.shape[1], None if torch.compiler.is_compiling() else v.shape[0] * A.numel())
    dtype = torch.promote_types(v.dtype, torch.float32)
    inputs = (q.to(dtype), k.to(dtype), v.to(dtype), dt.to(dtype), A.to(dtype), skip.to(dtype))
    if torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
        # Steps are taken again in the backward pass: their states are N times as much as everything else.
        y = checkpoint(_scan, *inputs, num_reverse, chunk, use_reentrant=False)
    else:
        y = _scan(*inputs, num_reverse, chunk)
    return y.to(v.dtype)


def chunk_length(length: int, states: int | None = None) -> int:
    """The steps of a chunk: as many as there are chunks, or more where so many `states` of fewer fill the cache."""
    num_chunks = math.isqrt(length) if states is None else min(math.isqrt(length), CACHED // states)
    return math.ceil(length / max(num_chunks, 1))


def _scan(q: Tensor, k: Tensor, v: Tensor, dt: Tensor, A: Tensor, skip: Tensor, num_reverse: int, chunk: int) -> Tensor:
    length = v.shape[1]
    values = v
    q, k, v, dt = (flip_reverse_scans(t, num_reverse) if num_reverse else t for t in (q, k, v, dt))
    fed = dt * v
    num_chunks = -(-length // chunk)
    q, k, fed, dt = (_cut(t, num_chunks, chunk) for t in (q, k, fed, dt))  # (T, B, S, c, ·)
    rates = A.mT.unsqueeze(1)  # (S, 1, N, E)
    steps = list(zip(dt.unbind(), fed.unbind(), k.unbind(), q.unbind(), strict=True))
    state = torch.zeros((), dtype=v.dtype, device=v.device)
    if num_chunks > 1:
        for step, given, key, _ in steps:
            state = _advance(state, step, given, key, rates)
        state = _carry(state, _decay(dt.sum(0), rates))
    outputs = []
    for step, given, key, query in steps:
        state = _advance(state, step, given, key, rates)
        outputs.append((query.unsqueeze(-1) * state).sum(-2))  # (B, S, c, E); a product would round under autocast
    y = torch.stack(outputs, dim=3).flatten(2, 3)[:, :, :length].transpose(1, 2)  # (B, L, S, E)
    return (flip_reverse_scans(y, num_reverse) if num_reverse else y) + skip * values


def _cut(places: Tensor, num_chunks: int, chunk: int) -> Tensor:
    """(B, L, S, F) -> (T, B, S, c, F): step t of every chunk side by side; no step is taken in the padding."""
    padded = F.pad(places, (0, 0, 0, 0, 0, num_chunks * chunk - places.shape[1]))
    return padded.unflatten(1, (num_chunks, chunk)).permute(2, 0, 3, 1, 4).contiguous()


def _advance(state: Tensor, step: Tensor, given: Tensor, key: Tensor, rates: Tensor) -> Tensor:
    """One step of all chunks: state (B, S, c, N, E)."""
    return torch.addcmul(key.unsqueeze(-1) * given.unsqueeze(-2), _decay(step, rates), state)


def _decay(step: Tensor, rates: Tensor) -> Tensor:
    """(B, S, c, E) and (S, 1, N, E) -> (B, S, c, N, E)."""
    return (step.unsqueeze(-2) * rates).clamp_min(MIN_LOG_DECAY).exp()


def _carry(left: Tensor, decay: Tensor) -> Tensor:
    """The state with which each chunk is entered, from what each leaves and keeps: all (B, S, c, N, E)."""
    state = torch.zeros_like(left[:, :, 0])
    entered = []
    for added, kept in zip(left.unbind(2), decay.unbind(2), strict=True):
        entered.append(state)
        state = torch.addcmul(added, state, kept)
    return torch.stack(entered, dim=2)
