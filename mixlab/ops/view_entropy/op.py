"""The cross-entropy between views: one kernel each way for CUDA tensors, plain torch for the rest."""

from typing import Any

import torch
from torch import Tensor

from mixlab.ops.backend import kernels_run
from mixlab.ops.operator import on_their_device
from mixlab.ops.view_entropy import reference

DTYPES = (torch.float32, torch.bfloat16)  # of logits; targets are in float32
MAX_TARGETS = 4  # whose numbers a program has in its registers
MAX_IMAGES = 65_535  # of a grid's second axis


def view_entropy(student: Tensor, targets: Tensor, *, temperature: float) -> Tensor:
    """Logits (V, B, K) and targets (T, B, K) -> the mean over images and pairs (`reference.py`), a scalar. Only the
    logits get a gradient.
    """
    entropy: Tensor = _ViewEntropy.apply(student, targets, temperature)
    return entropy


def runs_kernels(student: Tensor, targets: Tensor) -> bool:
    num_targets, num_images, _ = targets.shape
    fits = student.dtype in DTYPES and targets.dtype == torch.float32 and student.numel() > 0
    return fits and num_targets <= MAX_TARGETS and num_images <= MAX_IMAGES and kernels_run(student)


class _ViewEntropy(torch.autograd.Function):
    """Keeps the logits in their own precision and nothing else of their size until the backward pass."""

    @staticmethod
    def forward(ctx: Any, student: Tensor, targets: Tensor, temperature: float) -> Tensor:
        ctx.kernels = runs_kernels(student, targets)
        forward = _kernels_forward if ctx.kernels else reference.entropy_forward
        total, normaliser = forward(student, targets, temperature)
        ctx.save_for_backward(student, targets, normaliser)
        ctx.temperature = temperature
        ctx.count = student.shape[1] * len(targets) * (len(student) - 1)
        return total / ctx.count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        student, targets, normaliser = ctx.saved_tensors
        backward = _kernels_backward if ctx.kernels else reference.entropy_backward
        return backward(gradients[0] / ctx.count, student, targets, normaliser, ctx.temperature), None, None


@on_their_device
def _kernels_forward(student: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    from mixlab.ops.view_entropy.triton_view_entropy import (
        entropy_forward,
    )  # here: without a GPU there may be no Triton

    return entropy_forward(student, targets, temperature)


@on_their_device
def _kernels_backward(
    scale: Tensor, student: Tensor, targets: Tensor, normaliser: Tensor, temperature: float
) -> Tensor:  # fmt: skip
    from mixlab.ops.view_entropy.triton_view_entropy import entropy_backward

    return entropy_backward(scale, student, targets, normaliser, temperature)
