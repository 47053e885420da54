"""The kernels of the cross-entropy between views against plain torch in float64."""

import pytest
import torch
from torch import Tensor

from mixlab.ops.view_entropy.op import runs_kernels, view_entropy
from tests.tolerances import TOLERANCES, relative_error

# views, targets, images, outputs: DINO's, those of small networks, and sizes that no program fills
SIZES = [(10, 2, 8, 65_536), (8, 2, 64, 4096), (2, 2, 1, 2048), (5, 2, 3, 2049), (3, 1, 7, 41), (6, 4, 2, 4095)]


def draw(
    num_views: int, num_targets: int, num_images: int, num_outputs: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    student = torch.randn(num_views, num_images, num_outputs, device="cuda").to(dtype)
    return student, (3 * torch.randn(num_targets, num_images, num_outputs, device="cuda")).softmax(-1)


def loss_and_gradient(student: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    leaf = student.clone().requires_grad_()
    loss = view_entropy(leaf, targets, temperature=0.1)
    return loss.detach(), torch.autograd.grad(3 * loss, leaf)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_kernels_give_the_loss_and_its_gradient(
    size: tuple[int, int, int, int], dtype: torch.dtype, poisoned: None
) -> None:
    student, targets = draw(*size, dtype)
    assert runs_kernels(student, targets)
    expected = loss_and_gradient(student.double(), targets.double())
    loss, gradient = loss_and_gradient(student, targets)
    assert relative_error(loss, expected[0]) < TOLERANCES[torch.float32]
    assert gradient.dtype == dtype and relative_error(gradient, expected[1]) < TOLERANCES[dtype]


def test_equal_inputs_give_equal_bits() -> None:
    student, targets = draw(10, 2, 16, 65_536, torch.bfloat16)
    first = loss_and_gradient(student, targets)
    for _ in range(20):
        assert all(
            torch.equal(one, other) for one, other in zip(loss_and_gradient(student, targets), first, strict=True)
        )


def test_a_logit_that_is_not_a_number_shows_in_the_loss() -> None:
    student, targets = draw(4, 2, 3, 5000, torch.bfloat16)
    student[3, 1, 4321] = torch.nan
    assert loss_and_gradient(student, targets)[0].isnan()
