"""The cross-entropy between views: one kernel each way for CUDA tensors, plain torch for the rest."""

from typing import Any

import torch
from torch import Tensor

from mixlab.ops.backend import kernels_run
from mixlab.ops.operator import Operator
from mixlab.ops.view_entropy import reference

DTYPES = (torch.float32, torch.bfloat16)  # of logits; targets are in float32
MAX_TARGETS = 4  # whose numbers a program has in its registers
MAX_IMAGES = 65_535  # of a grid's second axis


def view_entropy(student: Tensor, targets: Tensor, *, temperature: float) -> Tensor:
    """Logits (V, B, K) and targets (T, B, K) -> the mean over images and pairs (`reference.py`), a scalar. Only the
    logits get a gradient.
    """
    run = _in_kernels if runs_kernels(student, targets) else _Plain.apply
    total: Tensor = run(student, targets.detach(), temperature)
    return total / (student.shape[1] * len(targets) * (len(student) - 1))


def runs_kernels(student: Tensor, targets: Tensor) -> bool:
    num_targets, num_images, _ = targets.shape
    fits = student.dtype in DTYPES and targets.dtype == torch.float32 and student.numel() > 0
    return fits and num_targets <= MAX_TARGETS and num_images <= MAX_IMAGES and kernels_run(student)


class _Plain(torch.autograd.Function):
    """Keeps the logits in their own precision and nothing else of their size until the backward pass."""

    @staticmethod
    def forward(ctx: Any, student: Tensor, targets: Tensor, temperature: float) -> Tensor:
        total, normaliser = reference.entropy_forward(student, targets, temperature)
        ctx.save_for_backward(student, targets, normaliser)
        ctx.temperature = temperature
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        student, targets, normaliser = ctx.saved_tensors
        return reference.entropy_backward(gradients[0], student, targets, normaliser, ctx.temperature), None, None


def _forward(student: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    from mixlab.ops.view_entropy.triton_view_entropy import (
        entropy_forward,
    )  # here: without a GPU there may be no Triton

    return entropy_forward(student, targets, temperature)


def _backward(
    scale: Tensor, student: Tensor, targets: Tensor, normaliser: Tensor, temperature: float
) -> list[Tensor]:  # fmt: skip
    from mixlab.ops.view_entropy.triton_view_entropy import entropy_backward

    return [entropy_backward(scale, student, targets, normaliser, temperature)]


_in_kernels = Operator(
    "view_entropy",
    forward=_forward,
    fake=lambda student, targets, _: (targets.new_empty(()), targets.new_empty(student.shape[:2])),
    backward=_backward,
    fake_backward=lambda scale, student, *_: [student.new_empty(student.shape)],
    keep=lambda student, targets, temperature, total, normaliser: ((student, targets, normaliser), (temperature,)),
    constant=(1,),  # targets
)
