"""DINO's loss: every view must predict what the teacher says of each other global view.

With targets q_t (softmax of the centred teacher) and student logits s_v, the mean of -q_t · log softmax(s_v / τ) over
pairs v ≠ t needs no loop over pairs, because a target sums to one and the rest is linear in it:

    Σ_v n_v logsumexp(s_v / τ)  -  Σ_v (Q - [v < T] q_v) · s_v / τ,      Q = Σ_t q_t,   n_v = T - [v < T]
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mixlab.errors import InputError


def dino_loss(student: Tensor, targets: Tensor, *, temperature: float) -> Tensor:
    """Student logits (V, B, K), of which the first T views are the teacher's; targets (T, B, K). A scalar."""
    num_views, num_targets = len(student), len(targets)
    if num_views < 2 or num_targets < 1 or num_targets > num_views:
        raise InputError(f"{num_views} views and {num_targets} of the teacher make no pairs; give at least 2 and 1")
    if student.shape[1:] != targets.shape[1:]:
        shapes = f"student {tuple(student.shape)} and targets {tuple(targets.shape)}"
        raise InputError(f"{shapes} differ in images or outputs; give both networks the same views and heads")
    loss: Tensor = _CrossViewEntropy.apply(student, targets, temperature)
    return loss


def teacher_targets(teacher: Tensor, centre: Tensor, *, temperature: float | Tensor) -> Tensor:
    """softmax((teacher - centre) / temperature) over the outputs, at least in float32."""
    return (teacher.to(centre.dtype) - centre).div_(temperature).softmax(-1)


def crowding(features: Tensor) -> Tensor:
    """How close each image's feature is to its nearest other one in the batch: features (V, B, D) -> a scalar.

    The mean over views and images of -log |u - nearest u|, u the features as unit vectors (KoLeo: Sablayrolles et al.
    2019). Small sets let DINO settle on one answer for all images; this term drives them apart.
    """
    unit = F.normalize(features, dim=-1, eps=1e-8)
    with torch.no_grad():
        cosines = unit @ unit.mT  # (V, B, B)
        cosines.diagonal(dim1=-2, dim2=-1).fill_(-torch.inf)
        nearest = cosines.argmax(-1, keepdim=True).expand_as(unit)  # (V, B, D)
    distance = (unit - unit.gather(1, nearest)).norm(dim=-1)
    return -(distance + 1e-8).log().mean()


class _CrossViewEntropy(torch.autograd.Function):
    """Keeps the logits in their own precision and nothing else of their size until the backward pass."""

    @staticmethod
    def forward(ctx: Any, student: Tensor, targets: Tensor, temperature: float) -> Tensor:
        num_views, num_images, _ = student.shape
        num_targets = len(targets)
        logits = student.to(targets.dtype) / temperature  # (V, B, K)
        normaliser = logits.logsumexp(-1)  # (V, B)
        pairs = _pairs_per_view(num_views, num_targets, normaliser)
        agreement = (logits.sum(0) * targets.sum(0)).sum() - (logits[:num_targets] * targets).sum()
        ctx.save_for_backward(student, targets, normaliser)
        ctx.temperature = temperature
        ctx.count = num_images * num_targets * (num_views - 1)
        return ((pairs * normaliser).sum() - agreement) / ctx.count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        student, targets, normaliser = ctx.saved_tensors
        num_targets = len(targets)
        gradient = student.to(targets.dtype).div(ctx.temperature).sub_(normaliser[..., None]).exp_()
        gradient *= _pairs_per_view(len(student), num_targets, normaliser)[..., None]
        gradient -= targets.sum(0)
        gradient[:num_targets] += targets
        gradient *= gradients[0] / (ctx.temperature * ctx.count)
        return gradient.to(student.dtype), None, None


def _pairs_per_view(num_views: int, num_targets: int, like: Tensor) -> Tensor:
    """How many targets each view is compared with: all, but not its own, (V, 1)."""
    pairs = torch.full((num_views, 1), float(num_targets), dtype=like.dtype, device=like.device)
    pairs[:num_targets] -= 1
    return pairs
