"""The cross-entropy of views with targets of other views, and its gradient, in plain torch.

With a student's logits s (V, B, K), targets q (T, B, K) that sum to one, and a temperature τ, the sum of
-q_t · log softmax(s_v / τ) over pairs v ≠ t needs no loop over pairs, because it is linear in s but for its normaliser:

    Σ_v n_v logsumexp(s_v / τ)  -  Σ_v (Q - [v < T] q_v) · s_v / τ,      Q = Σ_t q_t,   n_v = T - [v < T]
"""

import torch
from torch import Tensor


def entropy_forward(student: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The sum over images and pairs; and the normalisers (V, B), for the backward pass."""
    num_targets = len(targets)
    logits = student.to(targets.dtype) / temperature  # (V, B, K)
    normaliser = logits.logsumexp(-1)
    agreement = (logits.sum(0) * targets.sum(0)).sum() - (logits[:num_targets] * targets).sum()
    return (pairs_per_view(len(student), num_targets, normaliser) * normaliser).sum() - agreement, normaliser


def entropy_backward(
    scale: Tensor, student: Tensor, targets: Tensor, normaliser: Tensor, temperature: float
) -> Tensor:  # fmt: skip
    """The gradient of the student's logits, in their dtype, if that of the sum over pairs is `scale`, a scalar."""
    num_targets = len(targets)
    gradient = student.to(targets.dtype).div(temperature).sub_(normaliser[..., None]).exp_()
    gradient *= pairs_per_view(len(student), num_targets, normaliser)[..., None]
    gradient -= targets.sum(0)
    gradient[:num_targets] += targets
    gradient *= scale / temperature
    return gradient.to(student.dtype)


def pairs_per_view(num_views: int, num_targets: int, like: Tensor) -> Tensor:
    """How many targets each view is compared with: all, but not its own, (V, 1)."""
    pairs = torch.full((num_views, 1), float(num_targets), dtype=like.dtype, device=like.device)
    pairs[:num_targets] -= 1
    return pairs
