"""The cross-entropy between views and its gradient, each in one pass; a program takes OUTPUTS logits of all views of an
image, so that it reads the targets once.
"""

# mypy: disallow-untyped-defs=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixlab.ops.view_entropy.reference import pairs_per_view

OUTPUTS = 2048  # of a program: eight for each thread
NUM_WARPS = 8


@triton.jit
def _targets_of_all(targets_ptr, b, k, inside, num_images, K, T: tl.constexpr, OUTPUTS: tl.constexpr):
    """Their sum over T, for an image."""
    total = tl.zeros((OUTPUTS,), tl.float32)
    for t in tl.static_range(T):
        total += tl.load(targets_ptr + (t * num_images + b) * K + k, mask=inside, other=0.0)
    return total


@triton.jit
def _entropy_forward_kernel(
    student_ptr, targets_ptr, parts_ptr, plane, num_images, K, num_parts, per_temperature,
    V: tl.constexpr, T: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    part, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    k = part * OUTPUTS + tl.arange(0, OUTPUTS)
    inside = k < K
    all_targets = _targets_of_all(targets_ptr, b, k, inside, num_images, K, T, OUTPUTS)
    for v in tl.static_range(V):
        row = v * num_images + b
        logits = tl.load(student_ptr + row * K + k, mask=inside, other=-float("inf")).to(tl.float32) * per_temperature
        wanted = all_targets
        if v < T:
            wanted = all_targets - tl.load(targets_ptr + row * K + k, mask=inside, other=0.0)
        largest = tl.max(logits, 0)
        place = parts_ptr + row * num_parts + part
        tl.store(place, largest)
        tl.store(place + plane, tl.sum(tl.exp(logits - largest), 0))
        tl.store(place + 2 * plane, tl.sum(tl.where(inside, logits * wanted, 0.0), 0))


@triton.jit
def _entropy_backward_kernel(
    scale_ptr, student_ptr, targets_ptr, normaliser_ptr, gradient_ptr, num_images, K, per_temperature,
    V: tl.constexpr, T: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(1).to(tl.int64)
    k = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    inside = k < K
    all_targets = _targets_of_all(targets_ptr, b, k, inside, num_images, K, T, OUTPUTS)
    scale = tl.load(scale_ptr) * per_temperature
    for v in tl.static_range(V):
        row = v * num_images + b
        logits = tl.load(student_ptr + row * K + k, mask=inside, other=0.0).to(tl.float32) * per_temperature
        gradient = tl.exp(logits - tl.load(normaliser_ptr + row))
        if v < T:
            gradient = gradient * (T - 1) + tl.load(targets_ptr + row * K + k, mask=inside, other=0.0)
        else:
            gradient = gradient * T
        gradient = (gradient - all_targets) * scale
        tl.store(gradient_ptr + row * K + k, gradient.to(gradient_ptr.dtype.element_ty), mask=inside)


def entropy_forward(student: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    student, targets = student.contiguous(), targets.contiguous()
    num_views, num_images, num_outputs = student.shape
    num_parts = -(-num_outputs // OUTPUTS)
    parts = torch.empty(3, num_views, num_images, num_parts, dtype=torch.float32, device=student.device)
    _entropy_forward_kernel[(num_parts, num_images)](
        student, targets, parts, parts.stride(0), num_images, num_outputs, num_parts, 1 / temperature,
        V=num_views, T=len(targets), OUTPUTS=OUTPUTS, num_warps=NUM_WARPS,
    )  # fmt: skip
    largest, sums, agreement = parts
    normaliser = (largest + sums.log()).logsumexp(-1)  # (V, B)
    return (pairs_per_view(num_views, len(targets), normaliser) * normaliser).sum() - agreement.sum(), normaliser


def entropy_backward(
    scale: Tensor, student: Tensor, targets: Tensor, normaliser: Tensor, temperature: float
) -> Tensor:  # fmt: skip
    student, targets = student.contiguous(), targets.contiguous()
    num_views, num_images, num_outputs = student.shape
    gradient = torch.empty(student.shape, dtype=student.dtype, device=student.device)
    _entropy_backward_kernel[(-(-num_outputs // OUTPUTS), num_images)](
        scale.float(), student, targets, normaliser, gradient, num_images, num_outputs, 1 / temperature,
        V=num_views, T=len(targets), OUTPUTS=OUTPUTS, num_warps=NUM_WARPS,
    )  # fmt: skip
    return gradient
