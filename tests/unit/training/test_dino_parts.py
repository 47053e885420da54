"""DINO's parts: the loss against the double loop that defines it, and all of them in a loop of one's own."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixlab.backbones.backbone import Backbone
from mixlab.backbones.zoo import create_model
from mixlab.data.loader import Batch
from mixlab.training.config import ModelConfig, OptimConfig, TrainConfig
from mixlab.training.dino import DinoConfig
from mixlab.training.dino_parts import DinoCentre, DinoHead, balanced_targets, dino_loss, teacher_targets
from mixlab.training.distributed import World
from mixlab.training.recipe import seed_for
from mixlab.training.update import Update


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


def test_the_parts_in_a_plain_loop_train_as_the_recipe_does() -> None:
    """As the docstring of `dino_parts` shows: the crops, both networks, the loss, the centre, the moving average."""
    method = DinoConfig(
        num_prototypes=24, hidden=16, bottleneck=8, global_size=32, local_size=16, num_local=2, teacher_momentum=0.9,
        frozen_prototype_epochs=0, teacher_warmup_epochs=0, teacher_temperature=0.04,
    )  # fmt: skip
    optim = OptimConfig(lr=0.1, lr_batch=6, min_lr=0.0, warmup_epochs=0, weight_decay=0.0, weight_decay_end=0.0)
    config = TrainConfig(method=method, model=ModelConfig(name="vit_tiny"), optim=optim, steps=10, batch=6)
    images = torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    numbers, sizes = torch.arange(6), torch.full((6, 2), 32)

    torch.manual_seed(0)
    recipe = method.build(create_small_vit(), num_classes=0, total_steps=10, steps_per_epoch=5)
    update = Update(recipe, replace(config, precision="fp32"), steps_per_epoch=5, world=World(torch.device("cpu")))
    theirs = [update([Batch(images, numbers, numbers, sizes)], step)["loss"].item() for step in range(3)]

    torch.manual_seed(0)
    backbone, head = create_small_vit(), DinoHead(dim=32, hidden=16, bottleneck=8, num_prototypes=24)
    student = nn.Sequential(backbone, head)
    teacher = copy.deepcopy(student).requires_grad_(False)
    centre, crops = DinoCentre(24), method.crops()
    optimizer = torch.optim.AdamW(student.parameters(), weight_decay=0.0)
    ours = []
    for step in range(3):
        rate, momentum = (
            end + (start - end) * (1 + math.cos(math.pi * step / 10)) / 2 for start, end in ((0.1, 0.0), (0.9, 1.0))
        )
        generator = torch.Generator().manual_seed(seed_for(0, step))
        views = crops(images, crops.draw(sizes, generator))
        with torch.no_grad():
            outputs = teacher(views[0].flatten(0, 1)).unflatten(0, (2, 6))
        targets = teacher_targets(outputs, centre.mean, temperature=0.04)
        centre.collect(outputs)
        logits = torch.cat([student(part.flatten(0, 1)).unflatten(0, (-1, 6)) for part in views])
        loss = dino_loss(logits, targets, temperature=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        centre.move(0.9)
        with torch.no_grad():
            for mine, new in zip(teacher.parameters(), student.parameters(), strict=True):
                mine.mul_(momentum).add_(new, alpha=1 - momentum)
        ours.append(loss.item())
    assert ours == pytest.approx(theirs, rel=1e-4) and len(set(ours)) == 3


def create_small_vit() -> Backbone:
    return create_model("vit_tiny", dim=32, depth=1, patch=8, image=32, head_dim=16)


def test_balanced_targets_are_those_of_sinkhorns_rounds() -> None:
    generator = torch.Generator().manual_seed(4)
    teacher = torch.rand(2, 5, 7, dtype=torch.float64, generator=generator) * 2 - 1  # cosines
    weights = np.exp(teacher.flatten(0, 1).numpy() / 0.06).T  # prototypes in rows, as in SwAV's text
    weights /= weights.sum()
    for _ in range(3):
        for row in weights:
            row /= row.sum() * len(weights)
        for column in weights.T:
            column /= column.sum() * weights.shape[1]
    found = balanced_targets(teacher, temperature=0.06, rounds=3)
    np.testing.assert_allclose(found.flatten(0, 1).numpy(), weights.T * weights.shape[1], rtol=1e-12)


def test_every_prototype_ends_with_the_same_share_of_a_batch_even_where_all_images_agree() -> None:
    teacher = torch.full((2, 8, 4), -1.0)
    teacher[..., 0] = 1.0  # every image prefers the first
    teacher += 1e-3 * torch.randn(teacher.shape, generator=torch.Generator().manual_seed(5))
    found = balanced_targets(teacher.bfloat16(), temperature=0.04, rounds=30)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 8))
    torch.testing.assert_close(found.mean((0, 1)), torch.full((4,), 0.25), rtol=1e-2, atol=0)
