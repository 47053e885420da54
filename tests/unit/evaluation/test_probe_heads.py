"""The grid against each of its heads trained alone by torch's own SGD."""

import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mixlab.evaluation.features import FeaturePlan, HeadInput
from mixlab.evaluation.probe.heads import LR_BATCH, Head, HeadGrid, new_head
from mixlab.training.distributed import World

INPUTS = (HeadInput(1, "cls"), HeadInput(3, "cls"), HeadInput(2, "cls+mean"), HeadInput(3, "max"))
PLAN = FeaturePlan(INPUTS, "stream", (("cls", (6, 6, 6)), ("mean", (6, 6)), ("max", (6, 6, 6))))
LRS, WEIGHT_DECAYS = (2.5e-2, 0.3), (0.0, 1e-2)
NUM_CLASSES, BATCH, STEPS, EPOCHS = 5, 32, 40, 3


def make_batches(num: int, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Features that say something of the label, so that training moves."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(NUM_CLASSES, PLAN.width, generator=generator)
    labels = [torch.randint(NUM_CLASSES, (BATCH,), generator=generator) for _ in range(num)]
    return [(centres[part] + 2 * torch.randn(BATCH, PLAN.width, generator=generator), part) for part in labels]


def columns_of(head: Head) -> list[int]:
    """What a head reads, written out by hand: cls 0-17, mean 18-29, max 30-47, the last layers last."""
    ends = {"cls": (18, 6), "mean": (30, 6), "max": (48, 6)}
    parts = (ends[pool] for pool in head.strategy.split("+"))
    return [column for end, width in parts for column in range(end - width * head.blocks, end)]


def train_alone(head: Head, batches: list[tuple[Tensor, Tensor]], *, seed: int, epochs: int) -> torch.nn.Linear:
    """One head as DINO's script trains it."""
    columns = columns_of(head)
    linear = new_head(len(columns), NUM_CLASSES, seed=seed)
    lr = head.lr * BATCH / LR_BATCH
    optimizer = torch.optim.SGD(linear.parameters(), lr, momentum=0.9, weight_decay=head.weight_decay)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs, eta_min=0)
    for _ in range(epochs):
        for features, labels in batches:
            loss = F.cross_entropy(linear(features[:, columns]), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
    return linear


def train_grid(batches: list[tuple[Tensor, Tensor]], *, epochs: int, seed: int = 3, **options) -> HeadGrid:
    grid = HeadGrid(PLAN, lrs=LRS, weight_decays=WEIGHT_DECAYS, num_classes=NUM_CLASSES, seed=seed, **options)
    for epoch in range(epochs):
        scale = 0.5 * (1 + torch.cos(torch.tensor(torch.pi * epoch / epochs, dtype=torch.float64)))
        for features, labels in batches:
            grid.step(features, labels, lr_scale=float(scale) * BATCH / LR_BATCH)
    return grid


def test_the_time_of_a_step_is_taken_without_training(monkeypatch: pytest.MonkeyPatch) -> None:
    grid, fresh = (train_grid([], epochs=1) for _ in range(2))
    assert grid.seconds_of_step(BATCH) > 0
    for head_input, group in grid.groups.items():
        for name, tensor in group.tensors().items():
            assert torch.equal(tensor, fresh.groups[head_input].tensors()[name]), name
    step = HeadGrid.step

    def slow(*given: Any, **options: Any) -> Tensor:
        time.sleep(0.05)
        return step(*given, **options)

    monkeypatch.setattr(HeadGrid, "step", slow)
    assert grid.seconds_of_step(BATCH) > 0.05


def test_after_an_epoch_each_head_of_the_grid_is_the_one_trained_alone() -> None:
    batches = make_batches(STEPS)
    grid = train_grid(batches, epochs=1)
    assert len(grid.heads) == len(INPUTS) * 4
    seen = 0
    for group in grid.groups.values():
        for row, head in enumerate(group.heads):
            alone = train_alone(head, batches, seed=3, epochs=1)
            start = new_head(alone.in_features, NUM_CLASSES, seed=3)
            assert (alone.weight - start.weight).abs().max() > 0.01, "training must move the head"
            assert (group.weight[row] - alone.weight).abs().max() < 1e-5
            assert (group.bias[row] - alone.bias).abs().max() < 1e-5
            seen += 1
    assert seen == len(grid.heads)


def test_over_several_epochs_the_cosine_is_that_of_torch() -> None:
    batches = make_batches(10)
    grid = train_grid(batches, epochs=EPOCHS)
    for group in grid.groups.values():
        for row, head in enumerate(group.heads):
            alone = train_alone(head, batches, seed=3, epochs=EPOCHS)
            torch.testing.assert_close(group.weight[row], alone.weight.detach(), rtol=0, atol=1e-5)


def test_losses_and_predictions_are_those_of_each_head() -> None:
    batches = make_batches(STEPS)
    grid = train_grid(batches, epochs=1)
    features, labels = make_batches(1, seed=9)[0]
    predicted = grid.predict(features)
    alone = [train_alone(head, batches, seed=3, epochs=1) for head in grid.heads]
    logits = [linear(features[:, columns_of(head)]) for linear, head in zip(alone, grid.heads, strict=True)]
    assert predicted.tolist() == [part.argmax(-1).tolist() for part in logits]
    losses = grid.step(features, labels, lr_scale=0.0)
    expected = torch.stack([F.cross_entropy(part, labels) for part in logits])
    torch.testing.assert_close(losses, expected.detach(), rtol=1e-4, atol=1e-5)


def test_ranks_share_the_heads_out_and_train_them_to_the_same_values() -> None:
    batches = make_batches(10)
    whole = train_grid(batches, epochs=1)
    device = torch.device("cpu")
    parts = [train_grid(batches, epochs=1, world=World(device, rank=rank, size=3)) for rank in range(3)]
    assert sorted(number for part in parts for number in part.own_heads) == list(range(len(whole.heads)))
    trained = {head: group.weight[row] for part in parts for group in part.groups.values()
               for row, head in enumerate(group.heads)}  # fmt: skip
    for group in whole.groups.values():
        for row, head in enumerate(group.heads):
            torch.testing.assert_close(trained[head], group.weight[row], rtol=0, atol=1e-6)  # products of other shapes


def test_a_head_that_blows_up_leaves_the_others_alone() -> None:
    batches = make_batches(STEPS)
    calm = HeadGrid(PLAN, lrs=(0.1,), weight_decays=(0.0,), num_classes=NUM_CLASSES)
    mixed = HeadGrid(PLAN, lrs=(0.1, 1e38), weight_decays=(0.0,), num_classes=NUM_CLASSES)
    for features, labels in batches:
        for grid in (calm, mixed):
            grid.step(features, labels, lr_scale=1.0)
    assert mixed.finite().tolist() == [True, False] * len(INPUTS)
    for head_input, group in calm.groups.items():
        torch.testing.assert_close(mixed.groups[head_input].weight[0], group.weight[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"num_classes": 1}, "1 classes"), ({"lrs": ()}, "some lr above 0"), ({"weight_decays": (-1.0,)}, "some wd from")],
)
def test_grids_that_cannot_be_are_refused(changes: dict, words: str) -> None:
    options = {"lrs": (0.1,), "weight_decays": (0.0,), "num_classes": 3}
    with pytest.raises(ValueError, match=words):
        HeadGrid(PLAN, **{**options, **changes})
