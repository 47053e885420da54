"""Mask R-CNN and Cascade Mask R-CNN as wholes."""

import json
import os

import pytest
import torch
from torchvision.models.detection.image_list import ImageList
from torchvision.ops import box_iou

import mixlab
from mixlab.data.dense_batches import ObjectReader, Resizing
from mixlab.data.objects import parse_objects
from mixlab.evaluation.detection import detector as detector_module
from mixlab.evaluation.detection.detector import Detector, RegionHeads, to_input
from mixlab.evaluation.detection.evaluate import paste_masks
from mixlab.evaluation.detection.proposals import CentredAnchors
from mixlab.evaluation.detection.recipe import DetectionConfig
from mixlab.evaluation.detection.regions import pool_regions
from mixlab.evaluation.pyramid import Pyramid
from mixlab.recipes import find_recipe
from tests.coco_folder import draw_coco

HEADS = ("mask", "cascade")
pytestmark = pytest.mark.usefixtures("one_thread")


def tiny(head: str, *, rules: str = "torchvision", frozen: bool = False) -> Detector:
    torch.manual_seed(0)
    config = DetectionConfig(head=head, rules=rules, short=(64, 64), long=128, channels=16, hidden=32, mask_convs=1,
                             anchor_scale=2.5, finest=10.0, candidates=100, proposals=30, anchors=32,
                             regions=16)  # fmt: skip
    backbone = mixlab.create_model("mambaout_femto", depths=[1, 1, 1, 1], dims=[8, 16, 16, 16])
    return Detector(Pyramid(backbone, frozen=frozen), config, num_classes=10)


def batch_of(data: str = "shapes:n=8,size=64", number: int = 4):
    reader = ObjectReader(parse_objects(data), Resizing(short=(64, 64), long=128), augment=True)
    return reader.collate([reader.read(index, 0) for index in range(number)])


def losses_of(detector: Detector, batch) -> dict[str, torch.Tensor]:
    return detector(to_input(batch, detector.pyramid.backbone), batch.shapes(), batch.objects())


@pytest.mark.parametrize("head", HEADS)
def test_every_parameter_learns(head):
    detector = tiny(head)
    losses = losses_of(detector, batch_of())
    assert len(losses) == (5 if head == "mask" else 11)
    torch.stack(list(losses.values())).sum().backward()
    used = [name for name, parameter in detector.named_parameters() if parameter.grad is None]
    assert not [name for name in used if not name.startswith("pyramid.backbone.model.head")]  # timm's classifier


@pytest.mark.parametrize("rules", ["mmdetection", "torchvision"])
@pytest.mark.parametrize("head", HEADS)
def test_images_without_objects_give_a_finite_loss_and_gradients_everywhere(head, rules):
    batch = batch_of()
    empty = batch._replace(
        boxes=batch.boxes[:0], classes=batch.classes[:0], masks=batch.masks[:0], counts=torch.zeros_like(batch.counts)
    )
    detector = tiny(head, rules=rules)
    losses = losses_of(detector, empty)
    torch.stack(list(losses.values())).sum().backward()
    assert all(bool(value.isfinite()) for value in losses.values())
    assert float(losses["loss_masks" if head == "mask" else "loss_masks_3"].detach()) == 0.0
    assert all(parameter.grad is not None for parameter in detector.regions.parameters())


def test_boxes_of_a_cascade_are_for_all_classes_and_others_by_choice():
    kinds = {("mask", False): 10, ("mask", True): 1, ("cascade", False): 1}
    for (head, agnostic), boxes in kinds.items():
        config = DetectionConfig(head=head, agnostic_boxes=agnostic, channels=8, hidden=8)
        stages = RegionHeads(config, num_classes=10).stages
        assert {stage.boxes.num_boxes for stage in stages} == {boxes}


def test_later_stages_count_less():
    torch.manual_seed(0)
    detector = tiny("cascade")
    for stage in detector.regions.stages:  # the same undecided answer from each stage
        torch.nn.init.zeros_(stage.boxes.classify.weight)
    losses = losses_of(detector, batch_of())
    first, second, third = (float(losses[f"loss_classes_{number}"].detach()) for number in (1, 2, 3))
    assert (second / first, third / first) == (pytest.approx(0.5), pytest.approx(0.25))


def test_detecting_averages_scores_refines_boxes_and_averages_masks_over_the_stages(monkeypatch):
    """The cascade by hand: region after region, stage after stage."""
    torch.manual_seed(1)
    monkeypatch.setattr(detector_module, "MIN_SCORE", 0.0)
    monkeypatch.setattr(detector_module, "NMS_IOU", 1.0)
    config = DetectionConfig(
        head="cascade", rules="torchvision", channels=8, hidden=16, mask_convs=1, finest=8.0, most=1000
    )
    heads = RegionHeads(config, num_classes=4).double().eval()
    for stage in heads.stages:
        torch.nn.init.normal_(stage.boxes.correct.weight, std=0.5)
        torch.nn.init.normal_(stage.boxes.classify.weight, std=0.5)
    maps = [torch.randn(1, 8, 64 // stride, 64 // stride, dtype=torch.float64) for stride in (4, 8, 16, 32)]
    proposals = torch.tensor([[5.0, 5, 30, 40], [20, 10, 50, 60], [0, 0, 12, 9]], dtype=torch.float64)
    (found,) = heads.detect(maps, (4, 8, 16, 32), [proposals], [(64, 64)])

    for proposal in proposals:
        box, scores = proposal[None], []
        for head in heads.stages:
            logits, corrections = head.boxes(pool_regions(maps, (4, 8, 16, 32), 8.0, 2, [box], 7))
            scores.append(logits.softmax(1)[0, :-1])
            (left, top, right, bottom), (dx, dy, dw, dh) = box[0], corrections[0, 0] * torch.tensor(head.stage.units)
            width, height = right - left, bottom - top
            x, y = left + width / 2 + dx * width, top + height / 2 + dy * height
            width, height = width * dw.exp(), height * dh.exp()
            box = torch.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2])[None].clamp(0, 64)
        mean = torch.stack(scores).mean(0)
        for kind in range(4):
            (row,) = [
                k for k in range(len(found.boxes))
                if int(found.classes[k]) == kind and torch.allclose(found.boxes[k], box[0], atol=1e-6)
            ]  # fmt: skip
            assert float(found.scores[row]) == pytest.approx(float(mean[kind].detach()), rel=1e-6)
            cut = pool_regions(maps, (4, 8, 16, 32), 8.0, 2, [box], 14)
            masks = torch.stack([head.masks(cut)[0, kind].sigmoid() for head in heads.stages]).mean(0)
            assert torch.allclose(found.masks[row], masks, atol=1e-6)


@pytest.mark.parametrize("head", HEADS)
def test_nothing_found_is_an_empty_answer(head):
    detector = tiny(head).eval()
    for part in detector.regions.stages:
        part.boxes.classify.bias.data[-1] = 50.0  # all background
    batch = batch_of()
    found = detector.detect(to_input(batch, detector.pyramid.backbone), batch.shapes())
    assert [len(one.boxes) for one in found] == [0] * 4
    assert found[0].masks.shape == (0, 28, 28)


@pytest.mark.parametrize(("head", "rules"), [("mask", "mmdetection"), ("cascade", "torchvision")])
def test_boxes_keep_their_digits_in_bfloat16(head, rules):
    detector = tiny(head, rules=rules).eval()
    batch = batch_of()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        images = to_input(batch, detector.pyramid.backbone)
        maps = detector.maps(images)
        found = detector.detect(images, batch.shapes())
        losses = losses_of(detector.train(), batch)
    assert {part.dtype for part in maps} == {torch.float32}
    assert {one.boxes.dtype for one in found} == {torch.float32}
    values = found[0].boxes[:, 0]
    assert not torch.equal(values, values.bfloat16().float())
    assert all(bool(value.isfinite()) for value in losses.values())


def test_boxes_stay_inside_their_image_and_out_of_the_padding():
    detector = tiny("cascade").eval()
    for part in detector.regions.stages:
        torch.nn.init.normal_(part.boxes.correct.weight, std=1.0)
    images = torch.randn(2, 3, 64, 96)
    found = detector.detect(images, [(40, 90), (64, 33)])
    for one, (height, width) in zip(found, [(40, 90), (64, 33)], strict=True):
        assert one.boxes.min() >= 0
        assert one.boxes[:, 2].max() <= width and one.boxes[:, 3].max() <= height


def test_anchors_stand_around_the_middle_of_their_cell():
    anchors = CentredAnchors(((8.0,), (16.0,)), ((1.0,), (1.0,)))
    images = torch.zeros(1, 3, 32, 64)
    (boxes,) = anchors(ImageList(images, [(32, 64)]), [torch.zeros(1, 1, 8, 16), torch.zeros(1, 1, 4, 8)])
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    assert centres[0].tolist() == [2.0, 2.0] and centres[1].tolist() == [6.0, 2.0]
    assert centres[8 * 16].tolist() == [4.0, 4.0] and centres[-1].tolist() == [60.0, 28.0]


def test_a_frozen_backbone_gets_no_gradient_and_stays_in_evaluation_mode():
    detector = tiny("mask", frozen=True).train()
    torch.stack(list(losses_of(detector, batch_of()).values())).sum().backward()
    assert all(parameter.grad is None for parameter in detector.pyramid.backbone.parameters())
    assert not detector.pyramid.backbone.training and detector.neck.training
    assert all(parameter.grad is not None for parameter in detector.regions.parameters())


# The cascade has the mask head and three box heads; MIXLAB_FAULTS=all also trains one box head alone.
@pytest.mark.parametrize("head", HEADS if os.environ.get("MIXLAB_FAULTS") == "all" else ("cascade",))
def test_two_scenes_can_be_learnt_by_heart(head):
    detector = tiny(head)
    batch = batch_of(number=2)
    optimizer = torch.optim.AdamW(detector.parameters(), lr=3e-3)
    for _ in range(100):
        optimizer.zero_grad()
        torch.stack(list(losses_of(detector, batch).values())).sum().backward()
        optimizer.step()
    found = detector.eval().detect(to_input(batch, detector.pyramid.backbone), batch.shapes())
    for one, objects in zip(found, batch.objects(), strict=True):
        best = box_iou(objects.boxes, one.boxes).max(dim=1)
        assert (best.values > 0.5).all(), best.values
        assert (one.classes[best.indices] == objects.classes).all()
        pasted = paste_masks(one.masks[best.indices], one.boxes[best.indices], 64, 64)
        overlap = (pasted & objects.masks).sum((1, 2)) / (pasted | objects.masks).sum((1, 2))
        assert (overlap > 0.4).all(), overlap


@pytest.mark.parametrize("name", ["detect_dinovim_tiny64", "detect_vit_tiny64", "detect_mambaout_femto64"])
def test_recipes_build_detectors_on_plain_and_staged_backbones(name):
    config = find_recipe(name)
    recipe = config.method.build(config.model.build(), num_classes=10, total_steps=1, steps_per_epoch=1)
    losses = losses_of(recipe.network, batch_of(number=2))
    assert all(bool(value.isfinite()) for value in losses.values())


def test_published_recipes_follow_the_papers():
    dinovim, mambaout = find_recipe("detect_dinovim_base"), find_recipe("detect_mambaout_tiny")
    assert (dinovim.method.head, mambaout.method.head) == ("cascade", "mask")
    assert {dinovim.method.rules, mambaout.method.rules} == {"mmdetection"}
    assert (dinovim.optim.weight_decay, mambaout.optim.weight_decay) == (0.1, 0.05)
    for config in (dinovim, mambaout):
        assert (config.epochs, config.batch, config.optim.lr, config.optim.drop_epochs) == (12, 16, 1e-4, (8, 11))
        assert (config.method.short, config.method.long, config.optim.warmup_steps) == ((800, 800), 1333, 500)
    with pytest.raises(ValueError, match="method.regions is 0"):
        DetectionConfig(regions=0)


def test_data_without_categories_is_refused_clearly():
    backbone = mixlab.create_model("vit_tiny", depth=4)
    with pytest.raises(ValueError, match="nothing to detect"):
        DetectionConfig().build(backbone, num_classes=0, total_steps=1, steps_per_epoch=1)


def test_a_validation_set_of_other_categories_is_refused_before_training(tmp_path):
    draw_coco(tmp_path, name="annotations/instances_train2017.json", images="train2017")
    content = draw_coco(tmp_path, name="annotations/instances_val2017.json", images="val2017")
    assert len(DetectionConfig().open(str(tmp_path))) == 5
    content["categories"][0]["name"] = "dog"
    (tmp_path / "annotations" / "instances_val2017.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"3 categories of the validation set are not the 3 .*has: cat, dog\); give"):
        DetectionConfig().open(str(tmp_path))
