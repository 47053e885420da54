"""One step, and one answer, of our detectors against mmdetection's behaviour: the same inputs, the same weights."""

import as_mmdetection as theirs
import numpy as np
import pytest
import torch
from torch import nn

from mixlab.data.objects import Objects
from mixlab.evaluation.detection.detector import Detector
from mixlab.evaluation.detection.evaluate import paste_masks
from mixlab.evaluation.detection.proposals import match
from mixlab.evaluation.detection.regions import DetectorConfig

HEIGHT, WIDTH = 96, 128
SIZES = [(90, 120), (61, 128)]  # the second image ends before the batch does
BOXES = [
    [[52.0, 28.0, 82.0, 88.0], [54.0, 31.0, 85.0, 90.0], [70.5, 30.2, 74.0, 33.1]],  # two overlap, one is tiny
    [[30.0, 5.0, 110.0, 55.0], [0.0, 40.0, 33.0, 61.0]],
]
LABELS = [[0, 3, 2], [1, 1]]
NUM_CLASSES, WIDTHS = 4, (6, 8, 10, 12)
ALL = 10**6  # draws of everything there is
KINDS = {"mask": theirs.MASK, "cascade": theirs.CASCADE}


class GivenMaps(nn.Module):
    """In the place of a backbone and its pyramid."""

    channels, strides = list(WIDTHS), [4, 8, 16, 32]

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.maps = [
            torch.randn(2, width, HEIGHT // stride, WIDTH // stride, dtype=torch.float64)
            for width, stride in zip(WIDTHS, self.strides, strict=True)
        ]

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        return self.maps


def build(head: str) -> Detector:
    config = DetectorConfig(
        head=head, rules="mmdetection", channels=8, hidden=12, candidates=20, proposals=20, anchors=ALL, regions=ALL
    )
    detector = Detector(GivenMaps(), config, num_classes=NUM_CLASSES).double()
    torch.manual_seed(2)
    for name, parameter in detector.named_parameters():  # answers that matter: the first ones would be close to 0
        scale = 0.1 if parameter.ndim < 2 else 0.6 / parameter[0].numel() ** 0.5
        nn.init.normal_(parameter, std=scale * (3 if "classify" in name else 1))
    return detector


def masks_of(image: int) -> np.ndarray:
    """Ellipses in the boxes."""
    y, x = np.mgrid[:HEIGHT, :WIDTH] + 0.5
    drawn = []
    for left, top, right, bottom in BOXES[image]:
        across, down = (2 * x - left - right) / (right - left), (2 * y - top - bottom) / (bottom - top)
        drawn.append(across**2 + down**2 <= 1)
    return np.stack(drawn)


MASKS = [masks_of(0), masks_of(1)]


@pytest.mark.parametrize("head", KINDS)
def test_one_step_has_the_losses_of_mmdetection(head: str) -> None:
    detector, kind = build(head), KINDS[head]
    objects = [
        Objects(torch.tensor(boxes, dtype=torch.float64), torch.tensor(labels), torch.from_numpy(masks))
        for boxes, labels, masks in zip(BOXES, LABELS, MASKS, strict=True)
    ]
    ours = {
        name: float(value.detach())
        for name, value in detector(torch.zeros(2, 3, HEIGHT, WIDTH), SIZES, objects).items()
    }

    weights, levels = detector.state_dict(), theirs.neck(detector.pyramid.maps, detector.state_dict())
    anchors = [theirs.anchors_of(levels, weights, image) for image in range(2)]
    objectness, corrections = theirs.proposal_losses(anchors, SIZES, BOXES, kind)
    proposals = [
        theirs.proposals_of(own, size, candidates=20, most=20) for own, size in zip(anchors, SIZES, strict=True)
    ]
    expected = {"loss_objectness": objectness, "loss_proposals": corrections}
    expected |= theirs.region_losses(levels, weights, proposals, SIZES, BOXES, LABELS, MASKS, kind)
    assert ours == pytest.approx(expected, abs=1e-5, rel=1e-5)
    assert min(expected.values()) > 1e-3  # nothing is compared that is not there
    assert ours == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("positive", "negative", "keep_best"), [(0.7, 0.3, True), (0.5, 0.5, True), (0.6, 0.6, False)])
def test_boxes_are_matched_to_objects_as_by_mmdetection(positive: float, negative: float, keep_best: bool) -> None:
    random = np.random.default_rng(0)
    rules = {"positive": positive, "negative": negative, "lowest": negative, "low_quality": keep_best}
    overruled = 0
    for _ in range(40):
        corners, sides = random.integers(0, 20, (4, 2)), random.integers(5, 30, (4, 2))
        objects = np.concatenate([corners, corners + sides], axis=1).astype(float)
        boxes = np.repeat(objects, 4, axis=0) + random.integers(-4, 5, (16, 4))  # whole numbers: ties happen
        boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 1)
        expected = theirs.assign(boxes, objects, **rules)
        overruled += expected != theirs.assign(boxes, objects, **rules | {"low_quality": False})
        found = match(torch.from_numpy(boxes), torch.from_numpy(objects), positive, negative, keep_best=keep_best)
        assert found.tolist() == expected
    assert (overruled > 0) == keep_best
    none = torch.empty(0, 4)
    assert match(torch.rand(3, 4), none, 0.5, 0.5, keep_best=keep_best).tolist() == [-1] * 3
    assert match(none, torch.rand(3, 4), 0.5, 0.5, keep_best=keep_best).tolist() == []


@pytest.mark.parametrize("head", KINDS)
def test_answers_are_those_of_mmdetection(head: str) -> None:
    detector, kind = build(head).eval(), KINDS[head]
    found = detector.detect(torch.zeros(2, 3, HEIGHT, WIDTH), SIZES)

    weights, levels = detector.state_dict(), theirs.neck(detector.pyramid.maps, detector.state_dict())
    anchors = [theirs.anchors_of(levels, weights, image) for image in range(2)]
    proposals = [
        theirs.proposals_of(own, size, candidates=20, most=20) for own, size in zip(anchors, SIZES, strict=True)
    ]
    expected = theirs.detections(levels, weights, proposals, SIZES, kind)
    assert [len(one.boxes) for one in found] == [len(one) for one in expected]
    assert min(len(one) for one in expected) > 3
    for one, wanted in zip(found, expected, strict=True):
        boxes, scores, classes, masks = zip(*wanted, strict=True)
        assert one.scores.tolist() == pytest.approx(scores, rel=1e-9)
        assert one.classes.tolist() == list(classes)
        assert torch.allclose(one.boxes, torch.tensor(boxes, dtype=torch.float64), atol=1e-9)
        assert torch.allclose(one.masks, torch.stack(masks), atol=1e-9)


def test_masks_are_pasted_as_by_mmdetection() -> None:
    torch.manual_seed(0)
    mask, box, size = torch.rand(7, 7) * 0.4 + 0.45, (3.3, 2.1, 29.7, 17.4), (20, 32)
    expected = theirs.pasted(mask.double().numpy(), box, size)
    assert 0 < expected.sum() < expected.size
    ours = paste_masks(mask[None], torch.tensor([box]), *size, soft_edges=True)[0]
    assert np.array_equal(ours.numpy(), expected)
    assert int(paste_masks(mask[None], torch.tensor([box]), *size)[0].sum()) > expected.sum()  # without the fading


def test_published_detectors_learn_and_answer_from_as_many_proposals_as_mmdetection_s() -> None:
    numbers = {"mask": (1000, 1000), "cascade": (2000, 1000)}
    for head, expected in numbers.items():
        proposals = Detector(GivenMaps(), DetectorConfig(head=head, rules="mmdetection"), num_classes=2).proposals
        assert (proposals.train().post_nms_top_n(), proposals.eval().post_nms_top_n()) == expected
        assert (proposals.train().pre_nms_top_n(), proposals.eval().pre_nms_top_n()) == (2000, 1000)
        assert (proposals.nms_thresh, proposals.fg_bg_sampler.batch_size_per_image) == (0.7, 256)
