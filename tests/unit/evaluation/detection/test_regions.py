"""Regions: cut out of maps and masks, pasted back, sampled."""

import numpy as np
import pytest
import torch
from torchvision.ops import box_iou

from mixlab.data.objects import Objects, scale_boxes
from mixlab.data.shapes import Shapes
from mixlab.evaluation.detection.evaluate import paste_masks
from mixlab.evaluation.detection.regions import (
    BoxHead,
    MaskHead,
    box_losses,
    cut_masks,
    mask_loss,
    pool_regions,
    sample_regions,
)

STRIDES = (4, 8, 16, 32)


def coordinate_maps(size: int = 128) -> list[torch.Tensor]:
    """Each cell holds the pixel coordinates (x, y) of its centre, and the number of its level."""
    maps = []
    for level, stride in enumerate(STRIDES):
        centres = (torch.arange(size // stride) + 0.5) * stride
        y, x = torch.meshgrid(centres, centres, indexing="ij")
        maps.append(torch.stack([x, y, torch.full_like(x, level)]).repeat(2, 1, 1, 1))
    maps[0][1] += 1000  # the second image is another
    return maps


def test_a_region_is_read_where_it_lies_without_half_a_cell_of_shift():
    box = torch.tensor([[20.0, 30.0, 62.0, 58.0]])
    pooled = pool_regions(coordinate_maps(), STRIDES, 40.0, 2, [box], 7)[0]
    columns = 20 + (torch.arange(7) + 0.5) * 42 / 7
    rows = 30 + (torch.arange(7) + 0.5) * 28 / 7
    assert torch.allclose(pooled[0], columns.expand(7, 7), atol=1e-3)
    assert torch.allclose(pooled[1], rows[:, None].expand(7, 7), atol=1e-3)


@pytest.mark.parametrize(("side", "level"), [(5, 0), (15.9, 0), (16.1, 1), (33, 2), (65, 3), (127, 3)])
def test_each_doubling_of_a_region_moves_one_level_up(side, level):
    box = torch.tensor([[0.0, 0.0, side, side]])
    pooled = pool_regions(coordinate_maps(), STRIDES, 8.0, 2, [box], 2)
    assert pooled[0, 2].unique().tolist() == [level]


def test_regions_come_out_in_their_order_and_from_their_own_image():
    small, large = [0.0, 0.0, 8.0, 8.0], [0.0, 0.0, 100.0, 100.0]
    boxes = [torch.tensor([large, small]), torch.tensor([small])]
    pooled = pool_regions(coordinate_maps(), STRIDES, 8.0, 2, boxes, 1)[:, 2, 0, 0]
    assert pooled.tolist() == [3, 0, 1000]
    assert pool_regions(coordinate_maps(), STRIDES, 8.0, 2, [torch.empty(0, 4)] * 2, 1).shape == (0, 3, 1, 1)


def test_every_region_gives_its_gradient_to_its_map():
    maps = [part.clone().requires_grad_() for part in coordinate_maps()]
    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 120.0, 120.0]])
    pool_regions(maps, STRIDES, 8.0, 2, [boxes], 3).sum().backward()
    assert [float(part.grad.abs().sum()) > 0 for part in maps] == [True, False, False, True]


def test_a_mask_cut_out_and_pasted_back_is_the_mask():
    scenes = Shapes(size=96, num_images=30)
    overlaps = []
    for index in range(30):
        scene = scenes.scene(index)
        owner = torch.arange(len(scene.boxes))
        cut = cut_masks(scene.instances, owner, scene.boxes, size=28)
        back = paste_masks(cut, scene.boxes, 96, 96)
        both, either = (back & scene.instances).sum((1, 2)), (back | scene.instances).sum((1, 2))
        overlaps += (both / either).tolist()
    assert np.mean(overlaps) > 0.95 and min(overlaps) > 0.8


def test_pasting_keeps_to_the_box_and_to_the_image():
    pasted = paste_masks(torch.ones(2, 28, 28), torch.tensor([[2.0, 3.0, 7.0, 5.0], [-4.0, -4.0, 40.0, 40.0]]), 8, 10)
    assert pasted[0].nonzero().tolist() == [[y, x] for y in (3, 4) for x in range(2, 7)]
    assert pasted[1].all()
    assert paste_masks(torch.ones(0, 28, 28), torch.empty(0, 4), 8, 10).shape == (0, 8, 10)


def test_boxes_scale_with_their_image():
    box = torch.tensor([[10.0, 20.0, 30.0, 60.0]])
    assert scale_boxes(box, old=(100, 200), new=(50, 400)).tolist() == [[20.0, 10.0, 60.0, 30.0]]


def random_boxes(number: int, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    corner, size = torch.rand(number, 2) * 80, torch.rand(number, 2) * 40 + 4
    return torch.cat([corner, corner + size], dim=1)


def objects_at(boxes: torch.Tensor, classes: list[int]) -> Objects:
    return Objects(boxes, torch.tensor(classes, dtype=torch.int64), torch.zeros(len(boxes), 128, 128, dtype=torch.bool))


@pytest.mark.parametrize("iou", [0.5, 0.7])
def test_sampled_regions_are_labelled_by_the_object_they_overlap_most(iou):
    truth = objects_at(random_boxes(5, seed=1), [4, 0, 2, 2, 9])
    near = truth.boxes.repeat(8, 1) + torch.randn(40, 4) * 3
    proposals = torch.cat([near, random_boxes(60, seed=2)])
    sample = sample_regions(proposals, truth, iou=iou, number=64, share=0.25, num_classes=10)
    assert len(sample.boxes) == 64 and len(sample.owner) <= 16
    for place, (box, label) in enumerate(zip(sample.boxes, sample.labels.tolist(), strict=True)):
        overlaps = box_iou(box[None], truth.boxes)[0]
        if place < len(sample.owner):
            owner = int(overlaps.argmax())
            assert overlaps[owner] >= iou and label == truth.classes[owner]
            assert torch.equal(sample.targets[place], truth.boxes[owner])
        else:
            assert overlaps.max() < iou and label == 10


def test_the_objects_themselves_are_proposals_and_are_known_as_such():
    truth = objects_at(random_boxes(3, seed=4), [1, 2, 3])
    sample = sample_regions(torch.empty(0, 4), truth, iou=0.5, number=64, share=0.25, num_classes=10)
    assert sample.is_truth.all() and sorted(sample.labels.tolist()) == [1, 2, 3]


def test_without_objects_everything_is_background():
    sample = sample_regions(
        random_boxes(9, seed=5), objects_at(torch.empty(0, 4), []), iou=0.5, number=4, share=0.25, num_classes=10
    )
    assert sample.labels.tolist() == [10] * 4 and len(sample.owner) == 0


def test_losses_of_boxes_are_those_of_a_loop_over_regions():
    torch.manual_seed(0)
    scores, corrections = torch.randn(6, 4), torch.randn(6, 3, 4)
    labels, targets = torch.tensor([2, 0, 3, 3, 3, 3]), torch.randn(2, 4)
    classify, correct = box_losses(scores, corrections, labels, targets, beta=1.0)
    by_hand = -sum(float(scores[r].log_softmax(0)[labels[r]]) for r in range(6)) / 6
    assert float(classify) == pytest.approx(by_hand, rel=1e-5)
    total = 0.0
    for region in range(2):
        for error in (corrections[region, labels[region]] - targets[region]).abs().tolist():
            total += 0.5 * error**2 if error < 1 else error - 0.5
    assert float(correct) == pytest.approx(total / 6, rel=1e-5)


def test_only_the_mask_of_the_own_class_is_learnt():
    logits = torch.zeros(2, 3, 4, 4, requires_grad=True)
    mask_loss(logits, torch.tensor([1, 2]), torch.ones(2, 4, 4)).backward()
    touched = [[bool(logits.grad[region, kind].any()) for kind in range(3)] for region in range(2)]
    assert touched == [[False, True, False], [False, False, True]]


@pytest.mark.parametrize("agnostic", [False, True])
def test_heads_answer_for_every_class_or_once_for_all(agnostic):
    box = BoxHead(8, hidden=16, num_classes=5, agnostic=agnostic)
    scores, corrections = box(torch.randn(3, 8, 7, 7))
    assert scores.shape == (3, 6) and corrections.shape == (3, 1 if agnostic else 5, 4)
    mask = MaskHead(8, num_classes=5, agnostic=agnostic, num_convs=4)
    assert mask(torch.randn(3, 8, 14, 14)).shape == (3, 1 if agnostic else 5, 28, 28)
    assert mask(torch.randn(0, 8, 14, 14)).shape[0] == 0
    assert float(mask(torch.randn(3, 8, 14, 14)).sigmoid().sub(0.5).detach().abs().max()) < 0.1  # undecided at first
