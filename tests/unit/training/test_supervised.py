"""The regularisers of supervised training, each against its definition, PIL or a law of large numbers."""

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageOps
from timm.data import auto_augment as timm_moves
from timm.data.mixup import rand_bbox
from timm.optim import param_groups_weight_decay

from mixlab.backbones.zoo import create_model
from mixlab.data.crops import normalise
from mixlab.data.packed import PackedBatch, pack_images
from mixlab.training import augment, supervised
from mixlab.training.augment import (
    CHANGES,
    COLOURS,
    Blend,
    change_by_name,
    draw_beta,
    draw_blend,
    draw_blends,
    draw_changes,
    draw_cubic,
    draw_erasures,
    erase,
    rand_augment,
    soft_targets,
)
from mixlab.training.optim import parameter_groups
from mixlab.training.recipe import BatchPart
from mixlab.training.supervised import SupervisedConfig, SupervisedRecipe


def picture(size: int = 96) -> torch.Tensor:
    """Smooth colours with some noise, uint8 (3, S, S)."""
    generator = torch.Generator().manual_seed(0)
    small = torch.rand(1, 3, 5, 5, generator=generator)
    big = F.interpolate(small, (size, size), mode="bilinear")[0] + 0.1 * torch.rand(3, size, size, generator=generator)
    return (big.clamp(0, 1) * 255).round().to(torch.uint8)


def changed(name: str, strength: float) -> np.ndarray:
    out = change_by_name(name, picture()[None].float() / 255, torch.tensor([strength]), None)
    return (out[0] * 255).numpy()


def four_images() -> PackedBatch:
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    return PackedBatch(pack_images(images), torch.arange(4), torch.arange(4), torch.full((4, 2), 32))


def pil(image: Image.Image) -> np.ndarray:
    return np.asarray(image).transpose(2, 0, 1).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "strength", "oracle"),
    [
        ("auto_contrast", 0.5, ImageOps.autocontrast),
        ("equalise", 0.5, ImageOps.equalize),
        ("invert", 0.5, ImageOps.invert),
        ("posterise", 0.5, lambda image: ImageOps.posterize(image, 2)),
        ("solarise", -0.5, lambda image: ImageOps.solarize(image, 128)),
        ("saturation", 0.6, lambda image: ImageEnhance.Color(image).enhance(1 + 0.9 * 0.6)),
        ("contrast", -0.6, lambda image: ImageEnhance.Contrast(image).enhance(1 - 0.9 * 0.6)),
        ("brightness", 0.4, lambda image: ImageEnhance.Brightness(image).enhance(1 + 0.9 * 0.4)),
        ("sharpness", 0.8, lambda image: ImageEnhance.Sharpness(image).enhance(1 + 0.9 * 0.8)),
        ("rotate", 1.0, lambda image: image.rotate(30, Image.Resampling.BILINEAR, fillcolor=(128, 128, 128))),
    ],
)
def test_changes_look_like_pils(name: str, strength: float, oracle) -> None:
    image = Image.fromarray(picture().permute(1, 2, 0).numpy())
    expected = pil(oracle(image))
    difference = np.abs(changed(name, strength) - expected)
    assert np.median(difference) <= 2.0 and difference.mean() < 6.0, (name, difference.mean())
    assert np.abs(pil(image) - expected).mean() > 2 * difference.mean(), "the oracle should change the image more"


@pytest.mark.parametrize("resample", [Image.Resampling.BILINEAR, Image.Resampling.BICUBIC])
@pytest.mark.parametrize(
    ("name", "strength", "theirs", "level"),
    [
        ("rotate", 0.7, timm_moves.rotate, 21.0),
        ("shear_x", -0.9, timm_moves.shear_x, -0.27),
        ("shear_y", 0.5, timm_moves.shear_y, 0.15),
        ("translate_x", 0.9, timm_moves.translate_x_rel, 0.405),
        ("translate_y", -0.63, timm_moves.translate_y_rel, -0.2835),
    ],
)
def test_moves_are_those_of_timm_pixel_by_pixel(name, strength, theirs, level, resample) -> None:
    image, mean = picture(), (124, 116, 104)
    expected = pil(theirs(Image.fromarray(image.permute(1, 2, 0).numpy()), level, resample=resample, fillcolor=mean))
    cubic = torch.tensor([resample == Image.Resampling.BICUBIC])
    ours = change_by_name(name, image[None].float() / 255, torch.tensor([strength]), cubic)[0] * 255
    off = np.abs(ours.numpy() - expected)
    assert np.quantile(off, 0.995) < 1.01, "but for a pixel at the border that rounding puts inside or outside"


def test_channels_of_one_level_stay_as_they_are_when_levels_are_spread() -> None:
    flat = torch.zeros(1, 3, 8, 8)
    flat[:, 0], flat[:, 1] = 0.5, 1.0
    noisy = picture(96)[None].float() / 255
    noisy[:, 1] = 100 / 255
    for images in (flat, noisy):
        found = change_by_name("equalise", images, torch.tensor([0.5]), None)[0] * 255
        image = Image.fromarray((images[0] * 255).round().to(torch.uint8).permute(1, 2, 0).numpy())
        expected = pil(ImageOps.equalize(image))
        assert np.abs(found.numpy() - expected).mean() < 3, "PIL leaves a channel of one level alone"
    torch.testing.assert_close(change_by_name("auto_contrast", flat, torch.tensor([0.5]), None), flat)


def test_rand_augment_changes_each_image_as_if_it_were_alone() -> None:
    images = torch.rand(16, 3, 24, 24)
    chosen, strengths = draw_changes(16, torch.Generator().manual_seed(1), magnitude=9, deviation=0.5)
    cubic = draw_cubic(16, torch.Generator().manual_seed(1))
    assert cubic.any() and not cubic.all()
    together = rand_augment(images, chosen, strengths, cubic)
    for row in range(16):
        alone = rand_augment(images[row : row + 1], *(part[:, row : row + 1] for part in (chosen, strengths, cubic)))
        torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-4, atol=1e-5)
    untouched = (chosen < 0).all(0)
    assert untouched.any() and torch.equal(together[untouched], images[untouched])
    assert together.min() >= -1e-5 and together.max() <= 1 + 1e-5


def test_changes_are_drawn_evenly_and_half_of_the_time() -> None:
    chosen, strengths = draw_changes(20_000, torch.Generator().manual_seed(2), magnitude=9, deviation=0.5)
    assert (chosen >= 0).float().mean().item() == pytest.approx(0.5, abs=0.01)
    counts = torch.bincount(chosen[chosen >= 0], minlength=len(CHANGES)).float()
    assert (counts / counts.mean() - 1).abs().max() < 0.15
    assert strengths.abs().mean().item() == pytest.approx(0.9, abs=0.02) and strengths.mean().abs() < 0.02
    assert len(COLOURS) == 10 and len(CHANGES) == 15


def test_parts_draw_the_rows_of_the_whole() -> None:
    backbone = create_model("vit_tiny", dim=16, depth=1, image=24, patch=8, head_dim=8)
    recipe = SupervisedConfig(size=24).build(backbone, num_classes=3, total_steps=1, steps_per_epoch=1)
    images = normalise(torch.rand(8, 3, 24, 24))

    def change(index: int, num_parts: int) -> torch.Tensor:
        part = BatchPart(step=3, epoch=0, index=index, num_parts=num_parts)
        return recipe._rand_augment(images[part.rows(8 // num_parts)], part.generator(), part)

    whole = change(0, 1)
    torch.testing.assert_close(torch.cat([change(0, 2), change(1, 2)]), whole)
    assert not torch.allclose(whole, images, atol=0.1)


def test_mixup_and_cutmix_share_images_and_labels_in_the_same_proportion() -> None:
    images, labels = torch.rand(4, 3, 16, 16), torch.tensor([0, 1, 2, 3])
    targets = soft_targets(labels, num_classes=4, smoothing=0.0)
    mixed = Blend(0.3)
    torch.testing.assert_close(mixed.images(images)[0], 0.3 * images[0] + 0.7 * images[3])
    torch.testing.assert_close(mixed.targets(targets)[0], torch.tensor([0.3, 0.0, 0.0, 0.7]))
    cut = Blend(1 - 24 / 256, (2, 3, 4, 6)).images(images)
    assert torch.equal(cut[1, :, 2:6, 3:9], images[2, :, 2:6, 3:9])
    assert (cut[1] != images[1]).any(0).sum() == 24


def test_every_128_images_have_a_draw_of_their_own_however_they_are_shared_out() -> None:
    law = {"side": 32, "mixup": 0.8, "cutmix": 1.0, "switch": 0.5}

    def draw(num: int, part: int, parts: int) -> list[tuple[slice, Blend]]:
        return draw_blends(num, torch.Generator().manual_seed(8), every=128, part=part, num_parts=parts, **law)

    whole = draw(512, 0, 1)
    assert [(rows.start, rows.stop) for rows, _ in whole] == [(0, 128), (128, 256), (256, 384), (384, 512)]
    assert len({blend for _, blend in whole}) == 4
    assert [blend for part in range(2) for _, blend in draw(256, part, 2)] == [blend for _, blend in whole]
    assert len(draw(100, 0, 1)) == 1
    ((rows, _),) = draw_blends(512, torch.Generator(), every=0, part=0, num_parts=1, **law)
    assert rows == slice(None)


@pytest.mark.parametrize("first", [True, False])
def test_erasing_comes_after_mixing_unless_it_is_asked_to_come_first(first: bool, monkeypatch) -> None:
    config = SupervisedConfig(size=32, rand_augment=0.0, mixup=0.0, cutmix=1.0, erasing=1.0, erase_first=first)
    order: list[str] = []
    monkeypatch.setattr(supervised, "erase", lambda images, boxes: order.append("erase") or images)
    monkeypatch.setattr(Blend, "images", lambda self, images: order.append("mix") or images)
    backbone = create_model("vit_tiny", dim=32, depth=1, patch=8, image=32, head_dim=16)
    SupervisedRecipe(config, backbone, num_classes=5).prepare(four_images(), BatchPart(step=0, epoch=0))
    assert order == (["erase", "mix"] if first else ["mix", "erase"])


def test_a_cut_keeps_the_share_that_its_label_says() -> None:
    generator = torch.Generator().manual_seed(4)
    images = torch.stack([torch.zeros(3, 32, 32), torch.ones(3, 32, 32)])
    for _ in range(50):
        blend = draw_blend(generator, side=32, mixup=0.0, cutmix=1.0, switch=0.5)
        assert blend.images(images)[0].mean().item() == pytest.approx(1 - blend.keep, abs=1e-6)


def test_cuts_lie_where_timm_puts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augment, "draw_beta", lambda alpha, generator: 0.4)
    generator = torch.Generator().manual_seed(7)
    boxes = [draw_blend(generator, side=16, mixup=0.0, cutmix=1.0, switch=0.5).box for _ in range(500)]
    monkeypatch.setattr(np, "random", np.random.RandomState(7))
    theirs = [rand_bbox((1, 3, 16, 16), 0.4) for _ in range(500)]
    assert {(top, top + height) for top, _, height, _ in boxes} == {(low, high) for low, high, *_ in theirs}
    assert {(left, left + width) for _, left, _, width in boxes} == {(low, high) for *_, low, high in theirs}


def test_mixup_and_cutmix_take_turns_and_either_can_be_off() -> None:
    generator = torch.Generator().manual_seed(5)
    cuts = sum(draw_blend(generator, side=8, mixup=0.8, cutmix=1.0, switch=0.5).box is not None for _ in range(1000))
    assert 430 < cuts < 570
    assert all(draw_blend(generator, side=8, mixup=0.8, cutmix=0.0, switch=0.5).box is None for _ in range(20))
    assert draw_blend(generator, side=8, mixup=0.0, cutmix=0.0, switch=0.5) == Blend(1.0)


def test_beta_has_the_right_mean_and_spread() -> None:
    generator = torch.Generator().manual_seed(6)
    draws = np.array([draw_beta(0.8, generator) for _ in range(4000)])
    assert draws.mean() == pytest.approx(0.5, abs=0.02)
    assert draws.var() == pytest.approx(1 / (4 * (2 * 0.8 + 1)), rel=0.05)


def test_smoothed_labels_sum_to_one_and_agree_with_torch() -> None:
    labels, logits = torch.tensor([2, 0]), torch.randn(2, 5)
    targets = soft_targets(labels, num_classes=5, smoothing=0.1)
    ours = -(targets * logits.log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(ours, F.cross_entropy(logits, labels, label_smoothing=0.1))


def test_erasing_fills_only_its_boxes_in_about_the_asked_share_of_images() -> None:
    boxes = draw_erasures(2000, torch.Generator().manual_seed(7), side=32, probability=0.25)
    assert sum(box is not None for box in boxes) / 2000 == pytest.approx(0.25, abs=0.04)
    images = torch.full((2000, 3, 32, 32), 5.0)
    erased = erase(images, boxes)
    for row, box in enumerate(boxes[:100]):
        touched = (erased[row] != 5.0).any(0)
        assert touched.sum() == (0 if box is None else box[2] * box[3])
    areas = [box[2] * box[3] / 1024 for box in boxes if box is not None]
    assert min(areas) > 0.01 and max(areas) < 0.36


@pytest.mark.parametrize("name", ["vit_tiny", "mambaout_femto"])
def test_a_recipe_exports_the_trained_backbone_and_its_classifier(name: str) -> None:
    fields = {"dim": 32, "depth": 2, "patch": 8, "image": 32, "head_dim": 16} if name == "vit_tiny" else {
        "depths": [1, 1, 1, 1], "dims": [8, 16, 16, 24]}  # fmt: skip
    recipe = SupervisedRecipe(SupervisedConfig(size=32), create_model(name, **fields), num_classes=5)
    loss, metrics = recipe.loss(recipe.prepare(four_images(), BatchPart(step=0, epoch=0)))
    loss.backward()
    assert set(metrics) == {"train_accuracy"}
    assert all(p.grad is not None for p in recipe.network.parameters() if p.requires_grad)
    with torch.no_grad():
        for parameter in recipe.network.parameters():
            parameter += 0.01
    head = recipe.exported_head()
    assert head and all("head" in key for key in head)
    shared = {key.removeprefix("backbone."): value for key, value in recipe.network.state_dict().items()}
    for key, value in recipe.exported().state_dict().items():
        assert torch.equal(value, shared[key.removeprefix("model.")]), key


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"])
def test_training_with_labels_spares_what_timm_spares_and_the_classifier_s_bias(name: str) -> None:
    shallow = {"depths": (1, 1, 1, 1)} if "swin" in name else {"depth": 1}
    recipe = SupervisedRecipe(SupervisedConfig(size=224), create_model(f"timm/{name}", **shallow), num_classes=5)
    groups = parameter_groups(recipe.network, recipe.no_weight_decay())
    ours = [{name for group in groups if group["decay"] == decay for name in group["names"]} for decay in (False, True)]
    network = timm.create_model(name, num_classes=5, **shallow)
    names = {id(parameter): key for key, parameter in network.named_parameters()}
    theirs = param_groups_weight_decay(network, 0.1, no_weight_decay_list=network.no_weight_decay())
    assert ours == [{names[id(parameter)] for parameter in group["params"]} for group in theirs]
    assert any("table" in key or "cls_token" in key for key in ours[0])


def test_data_without_labels_is_refused_with_a_way_out() -> None:
    backbone = create_model("vit_tiny", dim=32, depth=1, patch=8, image=32, head_dim=16)
    with pytest.raises(ValueError, match="pretrain without labels"):
        SupervisedConfig().build(backbone, num_classes=0, total_steps=1, steps_per_epoch=1)
