"""The loss without loops against the double loop over views that defines it."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mixlab.training.dino_parts import dino_loss, teacher_targets


def slow_dino_loss(student: Tensor, teacher: Tensor, centre: Tensor, *, student_t: float, teacher_t: float) -> Tensor:
    """Every global view of the teacher against every other view of the student."""
    total, pairs = torch.zeros((), dtype=student.dtype), 0
    for t, output in enumerate(teacher):
        target = F.softmax((output - centre) / teacher_t, dim=-1)
        for v, view in enumerate(student):
            if v == t:
                continue
            total = total + torch.sum(-target * F.log_softmax(view / student_t, dim=-1), dim=-1).mean()
            pairs += 1
    return total / pairs


def random_outputs(num_views: int, num_targets: int, images: int, outputs: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(num_views * 100 + outputs)
    shapes = ((num_views, images, outputs), (num_targets, images, outputs), (outputs,))
    return [torch.rand(shape, generator=generator, dtype=torch.float64).mul(2).sub(1).to(dtype) for shape in shapes]


@pytest.mark.parametrize(("num_views", "num_targets"), [(2, 1), (2, 2), (3, 1), (10, 2), (7, 3), (4, 4)])
@pytest.mark.parametrize(("images", "outputs"), [(1, 3), (5, 64), (4, 1000)])
def test_value_and_gradient_are_those_of_the_double_loop(
    num_views: int, num_targets: int, images: int, outputs: int
) -> None:
    student, teacher, centre = random_outputs(num_views, num_targets, images, outputs, torch.float64)
    ours, theirs = student.clone().requires_grad_(), student.clone().requires_grad_()
    loss = dino_loss(ours, teacher_targets(teacher, centre, temperature=0.04), temperature=0.1)
    expected = slow_dino_loss(theirs, teacher, centre, student_t=0.1, teacher_t=0.04)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-12)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precisions_stay_close_to_float64_and_keep_their_dtype(dtype: torch.dtype) -> None:
    student, teacher, centre = random_outputs(10, 2, 8, 512, dtype)
    ours = student.clone().requires_grad_()
    targets = teacher_targets(teacher, centre.float(), temperature=0.07)
    loss = dino_loss(ours, targets, temperature=0.1)
    assert targets.dtype == loss.dtype == torch.float32
    exact = student.double().requires_grad_()
    expected = slow_dino_loss(exact, teacher.double(), centre.float().double(), student_t=0.1, teacher_t=0.07)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()
    expected.backward()
    assert ours.grad is not None and ours.grad.dtype == dtype
    error = (ours.grad.double() - exact.grad).norm() / exact.grad.norm()
    assert error < (1e-5 if dtype == torch.float32 else 5e-3)


def test_the_gradient_scales_with_what_comes_from_above() -> None:
    student, teacher, centre = random_outputs(4, 2, 3, 16, torch.float64)
    targets = teacher_targets(teacher, centre, temperature=0.05)
    plain, scaled = student.clone().requires_grad_(), student.clone().requires_grad_()
    dino_loss(plain, targets, temperature=0.1).backward()
    (dino_loss(scaled, targets, temperature=0.1) / 8).backward()
    torch.testing.assert_close(scaled.grad * 8, plain.grad)


def test_large_logits_do_not_overflow() -> None:
    student = torch.full((3, 2, 8), 1000.0)
    student[..., 0] = -1000.0
    loss = dino_loss(student, torch.full((2, 2, 8), 1 / 8), temperature=0.1)
    assert math.isfinite(loss.item())


def test_views_that_make_no_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="no pairs"):
        dino_loss(torch.zeros(1, 2, 4), torch.zeros(1, 2, 4), temperature=0.1)
    with pytest.raises(ValueError, match="differ in images or outputs"):
        dino_loss(torch.zeros(3, 2, 4), torch.zeros(2, 2, 5), temperature=0.1)
